"""Scripts that draw pictures of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.images import console
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
