"""Test a plain loss with every law."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch

from purerl.algos.algebra import Algorithm
from purerl.errors import ConfigError, nearest
from purerl.testing.batches import Layout, example_batch, fields_of, layouts, random_layout
from purerl.testing.laws import LAWS, SINGLE_BATCH_LAWS, Law
from purerl.testing.losses.conventions import convention_of, plain_loss
from purerl.testing.losses.laws import laws_of_losses, reasons
from purerl.testing.plain_loss import algorithm_of, loss_of_part, prepare

__all__ = ["LawResult", "check_objective", "law_results"]

_FIRST_SEEDS = (7, 9)
"""Batches that are tested first: Hypothesis starts with the smallest ones, on which few laws fail."""


class LawResult(NamedTuple):
    """The result of a law for a loss: its name, the status, and the counterexample or the reason."""

    law: str
    status: Literal["passed", "failed", "exempt", "does not apply"]
    text: str = ""


def check_objective(
    loss: Callable,
    *,
    arguments: Mapping[str, Any] | None = None,
    exempt: Mapping[str, str] | None = None,
    laws: Collection[str] | None = None,
    accumulate: str | None = None,
    unit: str = "row",
    seed: int = 0,
    batches: int = 20,
) -> None:
    """Test a plain loss, a function of tensors, with every law that applies to it.

    The parameters of `loss` get their values by their names, which are those of purerl, verl, TRL or
    OpenRLHF (`purerl.testing.losses.conventions`). It returns a scalar, or a tuple that starts with it. `loss` may be a
    `torch.nn.Module`: the parameters are those of its `forward`.

    arguments    values of other parameters; for a loss of verl, `config` may be its own ActorConfig
    exempt       laws that the loss violates on purpose, each with a reason
    laws         names of the laws to test; all of them, if not given
    accumulate   how the losses of micro-batches become that of the step: "sum", or "mean", weighted by their rows. Not
                 given, it is the sum for a loss that gets the counts of the step, and else the mean
    unit         "group" if the loss couples the rows of a group, so that a micro-batch must not split one
    batches      number of batches that Hypothesis generates for each law, after two fixed ones

    Raises: AssertionError with the smallest counterexample of each law that fails, and for an exemption from a law that
        the loss satisfies; ConfigError for a signature that is not known, a loss that fails on an ordinary batch, and
        an unknown law.

    >>> check_objective(lambda log_prob, advantages: (-advantages * log_prob).mean())
    Traceback (most recent call last):
    purerl.errors.ConfigError: the parameters of the loss <lambda>
      got:  log_prob, advantages
      need: one mask: mask, response_mask (verl), completion_mask (TRL) or action_mask (OpenRLHF)
    """
    options = {"accumulate": accumulate, "unit": unit, "seed": seed, "batches": batches}
    results = law_results(loss, arguments=arguments, exempt=exempt, laws=laws, **options)
    failed = [result.text for result in results if result.status == "failed"]
    if failed:
        raise AssertionError("\n\n".join(failed))


def law_results(
    loss: Callable,
    *,
    arguments: Mapping[str, Any] | None = None,
    exempt: Mapping[str, str] | None = None,
    laws: Collection[str] | None = None,
    accumulate: str | None = None,
    unit: str = "row",
    seed: int = 0,
    batches: int = 20,
) -> tuple[LawResult, ...]:
    """The result of each law for `loss`, in the order of `LAWS`. The arguments are those of `check_objective`.

    Raises: ConfigError as `check_objective`.
    """
    exempt, names = exempt or {}, [law.__name__ for law in LAWS]
    for name in (*exempt, *(laws or ())):
        if name not in names:
            raise ConfigError(f"unknown law {name!r}", need="the name of a law", do=nearest(name, names))
    for name, reason in exempt.items():
        if not reason:
            raise ConfigError(f"an exemption from {name}", got="no reason", need="why the loss violates it on purpose")
    objective = plain_loss(loss, arguments or {}, accumulate=accumulate, unit=unit)
    batch = example_batch((*objective.reads, *objective.outputs), ((0, "..aa"), (0, ".aaa")))
    try:
        loss_of_part(objective, *prepare(objective, batch))
    except ConfigError:
        raise
    except Exception as error:
        need = "a loss that runs on two rows of four tokens"  # every law would report the same error
        raise ConfigError("the loss fails", got=f"{type(error).__name__}: {error}", need=need) from error
    not_applied, algorithm = reasons(objective, convention_of(loss)), algorithm_of(objective)
    return tuple(
        LawResult(name, "does not apply", not_applied[name])
        if (name := law.__name__) in not_applied
        else _result(law, algorithm, exempt.get(name), seed, batches)
        for law in laws_of_losses()
        if laws is None or law.__name__ in laws
    )


def _result(law: Law, algorithm: Algorithm, exemption: str | None, seed: int, batches: int) -> LawResult:
    error = _error_on_fixed(law, algorithm) if law in SINGLE_BATCH_LAWS else _smallest(law, algorithm, seed, batches)
    if exemption is None:
        return LawResult(law.__name__, "passed") if error is None else LawResult(law.__name__, "failed", error)
    if error is None:
        text = f"{law.__name__}: exempt, but satisfied on every batch; remove the exemption"
        return LawResult(law.__name__, "failed", text)
    return LawResult(law.__name__, "exempt", exemption)


def _error_on_fixed(law: Law, algorithm: Algorithm) -> str | None:
    return _error(law, algorithm, random_layout(_FIRST_SEEDS[-1]), _FIRST_SEEDS[-1])


def _smallest(law: Law, algorithm: Algorithm, seed: int, batches: int) -> str | None:
    """The error of `law` on the smallest batch that violates it, which Hypothesis finds; None if no batch does."""
    any_layout = layouts()  # says how to install Hypothesis if it is not there
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky, NoSuchExample

    errors: list[str] = []

    def error(case: tuple[Layout, int]) -> str | None:
        found = _error(law, algorithm, *case)
        errors.extend([found] if found else [])
        return found

    fixed = [case for number in _FIRST_SEEDS if error(case := (random_layout(number), number))]
    options = settings(
        max_examples=batches,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        cases = st.tuples(any_layout, st.integers(0, 2**16))
        found = find(cases, lambda case: error(case) is not None, settings=options, random=random.Random(seed))
    except NoSuchExample:
        return (_reduced(error, fixed[0]) or errors[-1]) if fixed else None
    except Flaky:  # the loss has a state, so that the same batch violates the law only sometimes
        return errors[-1]
    return error(found) or errors[-1]


def _reduced(error: Callable[[tuple[Layout, int]], str | None], case: tuple[Layout, int]) -> str | None:
    """The error on a batch from which no row and no token can be removed so that it still gives one."""
    layout, seed = case
    found = error(case)
    while smaller := next((each for each in _smaller(layout) if (text := error((each, seed)))), None):
        layout, found = smaller, text
    return found


def _smaller(layout: Layout) -> Iterator[Layout]:
    """`layout` without one of its rows, and without one of the tokens of a row after the first."""
    for index, (label, row) in enumerate(layout):
        before, after = layout[:index], layout[index + 1 :]
        if before or after:
            yield before + after
        for time in range(1, len(row)):
            yield (*before, (label, row[:time] + row[time + 1 :]), *after)


def _error(law: Law, algorithm: Algorithm, layout: Layout, seed: int) -> str | None:
    fields = fields_of(algorithm)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # a loss that draws numbers gives the same error again
            law(algorithm, example_batch(fields, layout, seed=seed))
    except AssertionError as error:
        return f"{error}\n  to repeat:\n    batch = example_batch({fields}, {layout}, seed={seed})"
    return None
