"""The parts of the embedded trainer that are plain functions: micro-batches and the learning rate."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purerl.backends.hf.microbatch import microbatches, tokens_needed
from purerl.backends.hf.optimizer import learning_rate

rows = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([-(2**62), -1, 0, 7, 2**62])), max_size=30)


@given(rows, st.integers(1, 100))
def test_every_row_is_in_one_microbatch_within_the_budget_and_units_are_whole(drawn, budget):
    needed, unit = (torch.tensor([row[k] for row in drawn], dtype=torch.int64) for k in (0, 1))
    parts = microbatches(needed, unit, budget=budget)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(drawn)))
    assert len(parts) == 1 or all(len(part) for part in parts)
    labels = [set(unit[part].tolist()) for part in parts]
    assert sum(map(len, labels)) == len(set(unit.tolist()))
    for part, inside in zip(parts, labels, strict=True):
        assert part.tolist() == sorted(part.tolist())
        assert len(inside) <= 1 or len(part) * int(needed[part].clamp(min=1).max()) <= budget


def test_rows_of_like_length_go_together():
    needed = torch.randint(1, 100, (200,), generator=torch.Generator().manual_seed(0))
    parts = microbatches(needed, torch.arange(200), budget=1000)
    computed = sum(len(part) * int(needed[part].max()) for part in parts)
    assert computed < 1.1 * int(needed.sum())
    assert len(parts) < computed / 1000 + 5


@pytest.mark.parametrize(("action", "needed"), [("......", 0), ("..a...", 2), ("..a.a.", 4), (".....a", 5)])
def test_what_follows_the_last_prediction_is_not_needed(action, needed):
    assert tokens_needed(torch.tensor([[kind == "a" for kind in action]])).tolist() == [needed]


SHAPE = {"lr": 2.0, "updates": 12, "warmup_steps": 4}


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_warm_up_is_a_line_that_ends_at_lr(schedule):
    rates = [learning_rate(k, **SHAPE, schedule=schedule, min_lr_ratio=0.0) for k in range(5)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("schedule", "final", "wanted"),
    [
        ("constant", 0.0, [2.0] * 8),
        ("linear", 0.0, [2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25]),
        ("linear", 0.5, [2.0, 1.875, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125]),
        ("cosine", 0.0, [1 + math.cos(math.pi * k / 8) for k in range(8)]),
        ("cosine", 0.5, [1.5 + math.cos(math.pi * k / 8) / 2 for k in range(8)]),
    ],
)
def test_the_decay(schedule, final, wanted):
    rates = [learning_rate(k, **SHAPE, schedule=schedule, min_lr_ratio=final) for k in range(4, 12)]
    assert rates == pytest.approx(wanted)


@pytest.mark.parametrize(("schedule", "end"), [("constant", 2.0), ("linear", 0.2), ("cosine", 0.2)])
def test_beyond_the_end_the_rate_stays(schedule, end):
    rates = {learning_rate(k, **SHAPE, schedule=schedule, min_lr_ratio=0.1) for k in (12, 13, 1000)}
    assert list(rates) == [pytest.approx(end)]


def test_without_updates_there_is_a_rate():
    assert learning_rate(0, lr=1.0, schedule="cosine", warmup_steps=0, min_lr_ratio=0.0, updates=0) == 1.0
