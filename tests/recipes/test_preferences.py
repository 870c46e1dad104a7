"""`preferences`: the loss falls and the margin rises, on pairs that can be told apart."""

from __future__ import annotations

import math
from pathlib import Path

from purerl.loop.train import Summary
from tests.data.made import assistant, user, write

from .made import lines, train

PAIRS = [
    {"prompt": [user(f"{k}?")], "chosen": [assistant("Yes")], "rejected": [assistant("No")]} for k in range(10, 30)
]


def test_the_loss_falls_and_the_margin_rises(taught: Summary, tmp_path: Path) -> None:
    settings = [f"model={taught.model}", f"data={write(tmp_path / 'pairs.jsonl', PAIRS)}"]
    settings += ["steps=12", "examples=8", "trainer.lr=1e-3", "trainer.warm_up=2", "threads=1"]
    _, first, *_, last = lines(train("preferences", tmp_path / "run", *settings).directory)
    assert abs(first["policy/loss/preference"] - math.log(2)) < 1e-4
    assert abs(first["policy/margin"]) < 1e-4
    assert last["policy/loss/preference"] < 0.5 * math.log(2)
    assert last["policy/margin"] > 0.5
    assert last["policy/accuracy"] == 1
