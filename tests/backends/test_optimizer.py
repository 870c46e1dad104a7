"""The learning rate of the HF trainer."""

from __future__ import annotations

import math

import pytest

from purerl.backends.hf.optimizer import learning_rate
from purerl.backends.hf.trainer import Config

RUN = {"lr": 2.0, "updates": 12, "warmup_steps": 4}


@pytest.mark.parametrize("lr_scheduler", ["constant", "linear", "cosine"])
def test_warmup_is_linear_and_ends_at_lr(lr_scheduler):
    rates = [learning_rate(k, **RUN, lr_scheduler=lr_scheduler, min_lr_ratio=0.0) for k in range(5)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("lr_scheduler", "min_lr_ratio", "expected"),
    [
        ("constant", 0.0, [2.0] * 8),
        ("linear", 0.0, [2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25]),
        ("linear", 0.5, [2.0, 1.875, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125]),
        ("cosine", 0.0, [1 + math.cos(math.pi * k / 8) for k in range(8)]),
        ("cosine", 0.5, [1.5 + math.cos(math.pi * k / 8) / 2 for k in range(8)]),
    ],
)
def test_decay_equals_manual_computation(lr_scheduler, min_lr_ratio, expected):
    rates = [learning_rate(k, **RUN, lr_scheduler=lr_scheduler, min_lr_ratio=min_lr_ratio) for k in range(4, 12)]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(("lr_scheduler", "final"), [("constant", 2.0), ("linear", 0.2), ("cosine", 0.2)])
def test_rate_is_constant_after_the_last_update(lr_scheduler, final):
    rates = {learning_rate(k, **RUN, lr_scheduler=lr_scheduler, min_lr_ratio=0.1) for k in (12, 13, 1000)}
    assert list(rates) == [pytest.approx(final)]


def test_rate_is_lr_without_updates():
    assert learning_rate(0, lr=1.0, lr_scheduler="cosine", warmup_steps=0, min_lr_ratio=0.0, updates=0) == 1.0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 0), ({"warmup_steps": 3}, 3), ({"warmup_ratio": 0.25}, 10), ({"warmup_ratio": 0.33}, 13)],
)
def test_warmup_ratio_is_a_fraction_of_all_updates_rounded_down(settings, expected):
    assert Config(**settings).warmup(40) == expected
