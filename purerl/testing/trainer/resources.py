"""Resources of the checks of trainers: trainers that are closed, and a directory that all ranks share."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import Tensor

from purerl.protocols import Metrics, Trainer
from purerl.ranks import current_ranks
from purerl.testing.trainer.reference import Build, Case, Step, weights_of

__all__ = ["builds", "closing_trainers", "shared_directory", "take_steps"]


def closing_trainers(check: Callable[[Case], None]) -> Callable[[Case], None]:
    """`check`, and then, also if it fails, close every trainer that it has built."""

    @functools.wraps(check)
    def check_and_close(case: Case) -> None:
        with ExitStack() as stack:
            build, *variants = (_registered(build, stack) for build in (case.build, *case.variants))
            load = None if case.load is None else _registered(case.load, stack)
            check(case._replace(build=build, variants=variants, load=load))

    return check_and_close


def _registered(build: Callable[..., Trainer], stack: ExitStack) -> Callable[..., Trainer]:
    """`build`, for trainers that `stack` closes."""

    def build_and_register(*arguments: Path) -> Trainer:
        trainer = build(*arguments)
        stack.callback(trainer.close)
        return trainer

    return build_and_register


@contextmanager
def shared_directory() -> Iterator[Path]:
    """An empty directory, the same one on every rank."""
    ranks = current_ranks()
    with tempfile.TemporaryDirectory() as folder:
        yield Path(ranks.gather(folder)[0])
        ranks.gather(None)  # no rank uses it any more


def builds(case: Case) -> Sequence[Build]:
    """All ways in which `case` builds a trainer."""
    return (case.build, *case.variants)


def take_steps(trainer: Trainer, steps: Iterable[Step]) -> tuple[dict[str, Tensor], list[Metrics]]:
    """The weights after `steps`, and the metrics of each."""
    reports = [trainer.step(*step) for step in steps]
    return weights_of(trainer), reports
