"""Learning rates over a run: the schedules of transformers, after a linear warm-up.

A schedule is a function of the steps after the warm-up. It returns the fraction of `lr`:

    k   optimizer steps since the warm-up, at most n
    n   optimizer steps from the warm-up to the end of the schedule, at least 1

Its further parameters are the arguments that ``lr_scheduler_kwargs`` can set. They have the names and the defaults of
transformers' `get_scheduler`. Differences from transformers:

1. The warm-up rises from lr / warmup_steps to lr. In transformers it starts at 0, where a step changes nothing.
2. After step n the rate stays as it is at n.
3. ``min_lr_ratio`` holds for every schedule that decays to an end. It replaces ``lr_end`` of `polynomial`, which is
   1e-7 in transformers. `warmup_stable_decay` has no `warmup_type`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any

from purerl.errors import ConfigError, nearest
from purerl.settings import above_zero, at_least, no_effect, one_of

__all__ = ["NAMES", "UNENDING", "check_schedule", "learning_rate"]

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


def learning_rate(
    position: int,
    *,
    lr: float,
    lr_scheduler: str,
    warmup_steps: int,
    min_lr_ratio: float,
    updates: int,
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
) -> float:
    """The learning rate of optimizer step `position` (from 0) of `updates`.

        rate = lr * (position + 1) / warmup_steps                       if position < warmup_steps
        rate = lr * (min_lr_ratio + (1 - min_lr_ratio) * schedule(k, n))    otherwise
        n    = max(1, updates - warmup_steps)
        k    = min(n, position - warmup_steps)

    `schedule` is the function in `NAMES` that is called `lr_scheduler`, with `arguments`. For a schedule without an end
    k grows without limit. The last step of a run has k < n, so every step of `linear` and of a cosine with its default
    argument has a learning rate above 0.

    >>> [learning_rate(k, lr=1.0, lr_scheduler="linear", warmup_steps=2, min_lr_ratio=0.0, updates=4) for k in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if position < warmup_steps:
        return lr * (position + 1) / warmup_steps
    if lr_scheduler == "inverse_sqrt":
        arguments = {"timescale": warmup_steps or _TIMESCALE, **arguments}
    n, k = max(1, updates - warmup_steps), position - warmup_steps
    fraction = NAMES[lr_scheduler](k if lr_scheduler in UNENDING else min(n, k), n, **arguments)
    return lr * (min_lr_ratio + (1 - min_lr_ratio) * fraction)


# --- schedules -----------------------------------------------------------------------------------------------------

_TIMESCALE = 10_000


def _constant(k: int, n: int) -> float:
    """1."""
    return 1.0


def _linear(k: int, n: int) -> float:
    """1 - k / n."""
    return 1 - k / n


def _cosine(k: int, n: int, *, num_cycles: float = 0.5) -> float:
    """(1 + cos(2 pi num_cycles k / n)) / 2."""
    return (1 + math.cos(2 * math.pi * num_cycles * k / n)) / 2


def _cosine_with_restarts(k: int, n: int, *, num_cycles: int = 1) -> float:
    """(1 + cos(pi (num_cycles k / n mod 1))) / 2, and 0 at k = n."""
    return (1 + math.cos(math.pi * (num_cycles * k / n % 1))) / 2 if k < n else 0.0


def _polynomial(k: int, n: int, *, power: float = 1.0) -> float:
    """(1 - k / n)^power."""
    return (1 - k / n) ** power


def _inverse_sqrt(k: int, n: int, *, timescale: int) -> float:
    """1 / sqrt(1 + k / timescale). The default of `timescale` is the length of the warm-up, or 10,000 without one."""
    return 1 / math.sqrt(1 + k / timescale)


def _warmup_stable_decay(
    k: int, n: int, *, num_decay_steps: int, decay_type: str = "cosine", num_cycles: float = 0.5
) -> float:
    """1 until the last `num_decay_steps` steps; in these a decay of x, their fraction that is over.

    decay_type `cosine`: (1 + cos(2 pi num_cycles x)) / 2; `linear`: 1 - x; `1-sqrt`: 1 - sqrt(x).
    """
    x = max(0, k - (n - num_decay_steps)) / num_decay_steps
    cosine = (1 + math.cos(2 * math.pi * num_cycles * x)) / 2
    return {"cosine": cosine, "linear": 1 - x, "1-sqrt": 1 - math.sqrt(x)}[decay_type]


NAMES: Mapping[str, Callable[..., float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _warmup_stable_decay,
}
"""The schedules, by the names of transformers."""

UNENDING = ("constant", "inverse_sqrt")
"""Schedules that do not depend on the length of a run, and have no last rate."""


# --- checks --------------------------------------------------------------------------------------------------------

_ELSEWHERE = {
    "constant_with_warmup": "set it to constant, with warmup_steps or warmup_ratio",
    "cosine_with_min_lr": "set it to cosine, with min_lr_ratio",
}
"""Names of transformers that are combinations of other settings here."""

_VALID = {
    "num_cycles": above_zero(),
    "power": above_zero(),
    "timescale": at_least(1),
    "num_decay_steps": at_least(1),
    "decay_type": one_of("cosine", "linear", "1-sqrt"),
}


def check_schedule(name: str, arguments: Mapping[str, Any], *, min_lr_ratio: float) -> None:
    """Refuse an unknown schedule, and arguments that it does not have, or that have no effect.

    Raises: ConfigError with the nearest known name.
    """
    if name not in NAMES:
        do = _ELSEWHERE.get(name) or nearest(name, NAMES)
        raise ConfigError("lr_scheduler", got=repr(name), need=f"one of: {', '.join(NAMES)}", do=do)
    known = {key: p for key, p in signature(NAMES[name]).parameters.items() if p.kind is Parameter.KEYWORD_ONLY}
    for key, value in arguments.items():
        _check_argument(name, known, key, value)
    if missing := [key for key in known if key not in arguments and key == "num_decay_steps"]:
        do = f"set lr_scheduler_kwargs.{missing[0]} to the number of last optimizer steps in which the rate decays"
        raise ConfigError(f"lr_scheduler_kwargs.{missing[0]} is missing", need=f"a value for {name}", do=do)
    if arguments.get("decay_type", "cosine") != "cosine" and "num_cycles" in arguments:
        raise no_effect("lr_scheduler_kwargs.num_cycles", arguments["num_cycles"], "decay_type cosine")
    if min_lr_ratio and name in UNENDING:
        need = f"another lr_scheduler than {' and '.join(UNENDING)}, which have no last learning rate"
        raise no_effect("min_lr_ratio", min_lr_ratio, need, "set it to 0")


def _check_argument(name: str, known: Mapping[str, Parameter], key: str, value: Any) -> None:
    if key not in known:
        do = nearest(key, known) if known else "leave it out"
        need = f"arguments of {name}: {', '.join(known) or 'it has none'}"
        raise ConfigError(f"unknown argument lr_scheduler_kwargs.{key}", need=need, do=do)
    try:
        is_valid = type(value) is not bool and _VALID[key]["valid"](value)
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"lr_scheduler_kwargs.{key}", got=repr(value), need=_VALID[key]["need"])
