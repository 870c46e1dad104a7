"""Checks of a workflow: its rows depend on the draw and on the weights, and on nothing else."""

from __future__ import annotations

from purerl.seeds import restored_generators, seed_everything
from purerl.testing.rollouts.case import Case, assert_same, plain

__all__ = ["draw_determines_its_rows", "examples_are_not_changed", "other_draws_and_order_change_nothing"]

_ORDERS = 4


def draw_determines_its_rows(case: Case) -> None:
    """The same draw gives the same rows, whatever the global random generators do."""
    for draw in case.draws:
        with restored_generators():
            seed_everything(1)
            first = case.run([draw]).groups[draw.number]
            seed_everything(2)
            second = case.run([draw]).groups[draw.number]
        assert_same(second, first, "run again; random numbers must come from the seeds of the draw")


def other_draws_and_order_change_nothing(case: Case) -> None:
    """A draw gives the same rows alone and beside others, in whatever order completions finish."""
    for order in range(_ORDERS):
        together = case.run(case.draws, order=order)
        for draw in case.draws:
            expected = case.alone(draw).groups[draw.number]
            assert_same(together.groups[draw.number], expected, "beside other draws, in another order")


def examples_are_not_changed(case: Case) -> None:
    """A workflow does not change the example and the prompt of a draw, which other draws share."""
    for index, draw in enumerate(case.draws):
        case.run([draw])
        before = case.draw(index)
        for name in ("example", "prompt"):
            got, want = plain(getattr(draw, name)), plain(getattr(before, name))
            assert got == want, f"the {name} of a draw: got {got!r:.300} afterwards, expected {want!r:.300}"
