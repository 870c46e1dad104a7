"""Learning rates of the HF trainer: manual computations, the schedules of transformers, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import get_scheduler

from purerl.backends.hf.trainer import Config, check
from purerl.backends.schedules import NAMES, learning_rate
from purerl.config.structure import digest, from_dict
from purerl.errors import ConfigError

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


# --- the schedules of transformers -------------------------------------------------------------------------------

UPDATES, WARMUP = 40, 6

# name in transformers -> its arguments, and our settings
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "constant_with_warmup": ("constant_with_warmup", {}, {"lr_scheduler": "constant"}),
    "linear": ("linear", {}, {"lr_scheduler": "linear"}),
    "cosine": ("cosine", {}, {"lr_scheduler": "cosine"}),
    "cosine, cycles": (
        "cosine",
        {"num_cycles": 1.5},
        {"lr_scheduler": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1.5}},
    ),
    "cosine_with_restarts": (
        "cosine_with_restarts",
        {"num_cycles": 3},
        {"lr_scheduler": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}},
    ),
    "cosine_with_min_lr": (
        "cosine_with_min_lr",
        {"min_lr_rate": 0.2},
        {"lr_scheduler": "cosine", "min_lr_ratio": 0.2},
    ),
    "polynomial": (
        "polynomial",
        {"power": 2.0, "lr_end": 0.005},
        {"lr_scheduler": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}, "min_lr_ratio": 0.1},
    ),
    "inverse_sqrt": ("inverse_sqrt", {}, {"lr_scheduler": "inverse_sqrt"}),
    "inverse_sqrt, timescale": (
        "inverse_sqrt",
        {"timescale": 20},
        {"lr_scheduler": "inverse_sqrt", "lr_scheduler_kwargs": {"timescale": 20}},
    ),
    **{
        f"warmup_stable_decay, {decay}": (
            "warmup_stable_decay",
            {"num_decay_steps": 10, "decay_type": decay, "min_lr_ratio": 0.1},
            {
                "lr_scheduler": "warmup_stable_decay",
                "lr_scheduler_kwargs": {"num_decay_steps": 10, "decay_type": decay},
                "min_lr_ratio": 0.1,
            },
        )
        for decay in ("cosine", "linear", "1-sqrt")
    },
}


def _rates_of_transformers(name: str, arguments: dict[str, Any], *, warmup: int) -> list[float]:
    """The learning rates of the steps of a run, and of five more."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    scheduler = get_scheduler(name, optimizer, warmup, UPDATES, arguments)
    rates = []
    for _ in range(UPDATES + 5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("warmup", [0, WARMUP])
@pytest.mark.parametrize("case", SAME)
def test_rates_after_the_warmup_are_those_of_transformers(case: str, warmup: int) -> None:
    name, arguments, settings = SAME[case]
    config = Config(lr=0.05, warmup_steps=warmup, **settings)
    rates = [config.learning_rate(position, UPDATES) for position in range(UPDATES + 5)]
    expected = _rates_of_transformers(name, arguments, warmup=warmup)
    # After the end, the cosine of transformers rises again.
    compared = slice(warmup, UPDATES + (1 if name in ("cosine", "cosine_with_min_lr") else 5))
    assert rates[compared] == pytest.approx(expected[compared], rel=1e-12, abs=1e-12)
    # The warm-up is one step ahead: transformers starts at 0.
    assert rates[:warmup] == pytest.approx([0.05 * (k + 1) / warmup for k in range(warmup)])


def test_every_schedule_is_compared_with_transformers() -> None:
    assert {settings["lr_scheduler"] for *_, settings in SAME.values()} == {*NAMES}


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_scheduler": "cosin"}, "did you mean 'cosine'"),
        ({"lr_scheduler": "constant_with_warmup"}, "set it to constant, with warmup_steps or warmup_ratio"),
        ({"lr_scheduler": "cosine_with_min_lr"}, "set it to cosine, with min_lr_ratio"),
        (
            {"lr_scheduler": "cosine", "lr_scheduler_kwargs": {"num_cycle": 1}},
            "lr_scheduler_kwargs.num_cycle\n.*\n.*'num_cycles'",
        ),
        ({"lr_scheduler_kwargs": {"power": 2}}, "unknown argument lr_scheduler_kwargs.power\n  need: .*it has none"),
        (
            {"lr_scheduler": "polynomial", "lr_scheduler_kwargs": {"power": 0}},
            "power\n  got:  0\n  need: a finite number above 0",
        ),
        ({"lr_scheduler": "polynomial", "lr_scheduler_kwargs": {"power": "2"}}, "power\n  got:  '2'"),
        ({"lr_scheduler": "polynomial", "lr_scheduler_kwargs": {"power": True}}, "power\n  got:  True"),
        ({"lr_scheduler": "warmup_stable_decay"}, "lr_scheduler_kwargs.num_decay_steps is missing"),
        (
            {
                "lr_scheduler": "warmup_stable_decay",
                "lr_scheduler_kwargs": {"num_decay_steps": 3, "decay_type": "linear", "num_cycles": 0.5},
            },
            "lr_scheduler_kwargs.num_cycles has no effect",
        ),
        ({"lr_scheduler": "inverse_sqrt", "min_lr_ratio": 0.1}, "(?s)min_lr_ratio has no effect.*do:   set it to 0$"),
        ({"lr_scheduler": "inverse_sqrt", "lr_scheduler_steps": 10}, "lr_scheduler_steps has no effect"),
    ],
)
def test_schedule_that_does_not_exist_or_has_no_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**settings)


def test_decay_that_is_longer_than_the_schedule_is_refused() -> None:
    config = Config(lr_scheduler="warmup_stable_decay", lr_scheduler_kwargs={"num_decay_steps": 8}, warmup_steps=3)
    check(config, role="policy", outputs=(), updates=11)
    with pytest.raises(ConfigError, match="num_decay_steps\n  got:  8\n  need: at most 7, the optimizer steps"):
        check(config, role="policy", outputs=(), updates=10)


def test_only_schedules_with_an_end_depend_on_the_length_of_the_run() -> None:
    needed: dict[str, dict[str, Any]] = {"warmup_stable_decay": {"lr_scheduler_kwargs": {"num_decay_steps": 2}}}
    dependent = {name for name in NAMES if Config(lr_scheduler=name, **needed.get(name, {})).depends_on_run}
    assert dependent == {*NAMES} - {"constant", "inverse_sqrt"}


def test_arguments_are_read_from_a_table_and_change_the_digest() -> None:
    one, two = (
        from_dict(Config, {"lr_scheduler": "polynomial", "lr_scheduler_kwargs": {"power": power}}) for power in (2, 3)
    )
    assert one.lr_scheduler_kwargs == {"power": 2}
    assert digest(one) != digest(two)
