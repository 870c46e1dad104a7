"""Test one algorithm with one law: on four batches, and with ``PURERL_PROFILE=thorough`` on many that Hypothesis makes.

The four batches are the same for all laws, so each is made once for all algorithms that need the same fields.
"""

from __future__ import annotations

import functools
import os
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_checks import shape_checks_disabled
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm
from purerl.testing import SINGLE_BATCH_LAWS, Law, Layout, example_batch, fields_of, layouts, random_layout
from purerl.testing.batches import STRICT_SEED
from purerl.testing.laws.execution import compiled_equals_eager
from purerl.testing.laws.purity import no_hidden_state

__all__ = ["IS_THOROUGH", "check_law", "marks_of"]

IS_THOROUGH = os.environ.get("PURERL_PROFILE") == "thorough"

_OTHER_SEED, _SMALL_SEED = 9, 2825
_SMALL: dict[bool, Layout] = {
    False: ((-7, "."), (-7, ".aa."), (3, "."), (-7, ".x"), (3, "..xaax.a")),
    True: ((3, "..x.xaaa"), (-7, ".x"), (3, ".xx.aa."), (-7, ".x.aa.xx")),
}


@functools.cache
def _batches(*, pairs: bool, few: bool) -> tuple[tuple[Layout, int], ...]:
    """Layouts and seeds: a batch on which every mutant is detected, and a small one.

    If not `few`, they have another large batch, and one without action tokens, between them.
    """
    strict, other = ((random_layout(seed, pairs=pairs), seed) for seed in (STRICT_SEED, _OTHER_SEED))
    without_actions: Layout = ((0, "."),) * (2 if pairs else 1)
    others = () if few else (other, (without_actions, 0))
    return (strict, *others, (_SMALL[pairs], _SMALL_SEED))


@functools.cache
def _batch(fields: tuple[str, ...], layout: Layout, seed: int) -> TensorDict:
    return example_batch(fields, layout, seed=seed)


def marks_of(law: Law) -> tuple[pytest.MarkDecorator, ...]:
    """The marks of tests of `law`: compilation takes longer than all other laws together."""
    return (pytest.mark.slow,) if law is compiled_equals_eager else ()


def check_law(law: Law, algorithm: Algorithm, *, few: bool = False, **options) -> None:
    """Raise the error of `law` on the first batch that violates it; `options` are settings of Hypothesis.

    few  whether two batches suffice, as they do for an algorithm whose parts are tested in others

    Shape checks take longer than what they check. So they check every law on the smallest batch with action tokens,
    and every batch in the law that only runs the algorithm, but not every batch of every law.
    """
    fields = fields_of(algorithm)
    batches = _batches(pairs="chosen" in fields, few=few)
    batches = batches[:1] if law in SINGLE_BATCH_LAWS else batches
    for layout, seed in batches:
        checks_shapes = ((layout, seed) == batches[-1] or law is no_hidden_state) and law is not compiled_equals_eager
        with nullcontext() if checks_shapes else shape_checks_disabled():
            _check(law, algorithm, fields, layout, seed)
    if IS_THOROUGH and law not in SINGLE_BATCH_LAWS:
        _check_generated(law, algorithm, **options)


def _check(law: Law, algorithm: Algorithm, fields: tuple[str, ...], layout: Layout, seed: int) -> None:
    try:
        law(algorithm, _batch(fields, layout, seed).clone())
    except AssertionError as error:
        error.add_note(f"batch = example_batch({fields}, {layout}, seed={seed})")
        raise


def _check_generated(law: Law, algorithm: Algorithm, **options) -> None:
    fields = fields_of(algorithm)

    @settings(**options)
    @given(layout=layouts(pairs="chosen" in fields), seed=st.integers(0, 2**16))
    def check(layout: Layout, seed: int) -> None:
        law(algorithm, example_batch(fields, layout, seed=seed))

    check()
