"""The comparison with math-verify in docs/how-to/rewards.md: the numbers of benchmarks/results/answers.json."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.answers import LABELS, OUTPUT, read_labels
from purerl.rewards.math import math

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rewards.md"


def test_table_has_the_numbers_of_the_result() -> None:
    result = json.loads(OUTPUT.read_text(encoding="utf-8"))
    counts, graders, page = result["labels"], result["graders"], PAGE.read_text(encoding="utf-8")
    assert f"has {sum(counts.values())} completions" in page
    for name, label in (("purerl", "purerl"), ("math_verify", "math-verify")):
        row, version = graders[name], result["versions"][label]
        [line] = [each for each in page.splitlines() if each.startswith(f"| {label} {version}") and "of 30" in each]
        cells = [f"{row['accepted']} of {counts['right']}", f"{row['rejected']} of {counts['wrong']}"]
        assert line.split(" | ")[1:] == [*cells, f"{row['seconds_for_1000']:.2f} |"]


def test_result_is_what_purerl_gives_today() -> None:
    result, labels = json.loads(OUTPUT.read_text(encoding="utf-8")), read_labels(LABELS)
    agrees: dict[bool, list[bool]] = {True: [], False: []}
    for completion, truth, right in labels:
        agrees[right].append(math(completion, {"answer": truth}) == right)
    assert result["labels"] == {"right": len(agrees[True]), "wrong": len(agrees[False])}
    purerl = result["graders"]["purerl"]
    assert (purerl["accepted"], purerl["rejected"]) == (sum(agrees[True]), sum(agrees[False]))


def test_labels_of_a_file_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"completion": "\\\\boxed{5}", "ground_truth": "5", "right": 1}\n', encoding="utf-8")
    assert read_labels(path) == [(r"\boxed{5}", "5", True)]
