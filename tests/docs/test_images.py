"""Scripts that draw pictures of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.images import console, staleness
from tests.report.sample_runs import make_run


def _run_of_epochs(path: Path) -> Path:
    """A run whose length was given in epochs, with one row that has a reward and one that has none."""
    run = make_run(path, steps=2, groups=[("1+1=", ("2", "3"))], unrewarded="3")
    text = (run / "config.toml").read_text().replace("max_steps = 2\n", "num_epochs = 1.0\n")
    (run / "config.toml").write_text(f'{text}[model]\npath = "tiny"\n')
    (run / "data.json").write_text(json.dumps({"max_steps": 7}))
    return run


def test_picture_of_the_console_has_the_steps_of_a_run_of_epochs_and_a_row_without_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "OUTPUT", tmp_path / "console.svg")
    console.main(_run_of_epochs(tmp_path / "run"), 2)
    drawn = (tmp_path / "console.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    assert "step 2 of 7" in drawn
    words = " ".join(re.findall("<text[^>]*>([^<]*)</text>", drawn)).split()
    assert words[words.index("completion") + 1 :] == ["1.000", "1+1=", "2", "-", "1+1=", "3"]


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "asynchronous.md"
RESULTS = {
    "steps": [0, 40, 60, 80, 100],
    "accuracy": {
        "none": {"0": {"0": [0.0, 0.5, 1.0, 1.0, 1.0], "1": [0.0, 0.7, 1.0, 1.0, 1.0]}, "8": {"0": [0, 0, 0, 0, 0.25]}},
        "bypass": {"8": {"0": [0.0, 0.0, 0.25, 0.75, 1.0]}},
    },
}


def test_figure_and_table_of_staleness_are_those_of_the_stored_results() -> None:
    stored = json.loads(staleness.RESULTS.read_text(encoding="utf-8"))
    assert staleness.OUTPUT.read_text(encoding="utf-8") == staleness.figure(stored)
    assert staleness.table(stored) in PAGE.read_text(encoding="utf-8")


def test_table_of_staleness() -> None:
    assert staleness.table(RESULTS).splitlines()[2:] == [
        "| 0 | not needed | 2 | 0.60 (0.50-0.70) | 1.00 (1.00-1.00) | 1.00 (1.00-1.00) | 1.00 (1.00-1.00) |",
        "| 8 | `none` | 1 | 0.00 (0.00-0.00) | 0.00 (0.00-0.00) | 0.00 (0.00-0.00) | 0.25 (0.25-0.25) |",
        "| 8 | `bypass` | 1 | 0.00 (0.00-0.00) | 0.25 (0.25-0.25) | 0.75 (0.75-0.75) | 1.00 (1.00-1.00) |",
    ]


def test_figure_of_staleness_has_a_panel_for_each_staleness_and_a_line_for_each_correction() -> None:
    drawn = staleness.figure(RESULTS)
    assert re.findall("staleness [0-9]+", drawn) == ["staleness 8"]
    assert drawn.count("<polyline") == 3
