"""The table math_answers.toml: each ground truth with the answers that are equal to it, and others that are not."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from purerl.rewards import math
from purerl.rewards.kinds.math import Config, build
from purerl.rewards.math import boxed

KINDS = tomllib.loads((Path(__file__).parent / "math_answers.toml").read_text(encoding="utf-8"))["kinds"]
ROWS = [(kind, row) for kind in KINDS for row in kind["rows"]]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{kind['name']}: {row['truth']}" for kind, row in ROWS])
def test_row(kind: dict[str, Any], row: dict[str, Any]) -> None:
    reward = build(Config(**kind["settings"])) if "settings" in kind else getattr(math, kind.get("reward", "math"))
    template = "{}" if "reward" in kind else r"so $\boxed{{{}}}$."
    completions = {answer: template.format(answer) for answer in row["accepted"] + row["rejected"]}
    example = {"answer": row["truth"]}
    scores = {answer: reward(completion, example) for answer, completion in completions.items()}
    assert {answer for answer in row["accepted"] if scores[answer] != 1.0} == set(), "rejected"
    assert {answer for answer in row["rejected"] if scores[answer] != 0.0} == set(), "accepted"
    if not {"reward", "settings"} & {*kind}:
        assert scores == {answer: boxed(completion, example) for answer, completion in completions.items()}


def test_every_ground_truth_of_a_reward_occurs_once_and_no_answer_twice() -> None:
    truths = Counter((kind.get("reward"), str(kind.get("settings")), row["truth"]) for kind, row in ROWS)
    assert [truth for truth, count in truths.items() if count > 1] == []
    for _, row in ROWS:
        assert [answer for answer, count in Counter(row["accepted"] + row["rejected"]).items() if count > 1] == []
        assert row["accepted"]
        assert row["rejected"]
