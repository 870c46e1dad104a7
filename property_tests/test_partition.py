"""Every law of `purerl.kernels.partition` holds, and detects its mutants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, example, given, settings
from partition_laws import CASES, LAWS, MUTANTS, Case, device_of_arguments

EXAMPLES, MUTANT_EXAMPLES = 25, 1000  # a case takes about a millisecond; a mutant is usually found at once

ALTERNATING = Case(cost=[1, 10, 1, 10, 1], unit=[0, 1, 2, 3, 4], ranks=1, budget=10, seed=0)
"""Five bins by next fit, and three are enough. Random cases are rarely that bad."""


def check(law: Callable, implementation: Callable, *, examples: int, phases: tuple[Phase, ...]) -> None:
    @settings(max_examples=examples, phases=(Phase.explicit, *phases), derandomize=True)
    @example(ALTERNATING)
    @given(CASES[LAWS[law][0]])
    def test(case: Case) -> None:
        law(implementation, case)

    test()


@pytest.mark.parametrize(
    ("law", "implementation"),
    [
        pytest.param(law, implementation, id=f"{law.__name__}-{index}")
        for law, (_, implementations) in LAWS.items()
        for index, implementation in enumerate(implementations)
    ],
)
def test_law_holds(law: Callable, implementation: Callable):
    check(law, implementation, examples=EXAMPLES, phases=(Phase.generate, Phase.shrink))


@pytest.mark.parametrize(
    ("law", "mutant"),
    [
        pytest.param(law, mutant, id=f"{law.__name__}-{label}")
        for law, mutants in MUTANTS.items()
        for label, mutant in mutants.items()
    ],
)
def test_mutant_is_detected(law: Callable, mutant: Callable):
    # Tensors of two devices cannot be added.
    with pytest.raises((AssertionError, RuntimeError) if law is device_of_arguments else AssertionError):
        check(law, mutant, examples=MUTANT_EXAMPLES, phases=(Phase.generate,))


def test_every_law_has_a_mutant():
    assert list(MUTANTS) == list(LAWS)
