"""The draws in flight, the groups that wait, and the selection of those that are trained next.

At most ``(1 + max_staleness) * batch_size`` groups are in flight, wait, or are part of the current step. A draw that is
submitted at step k is therefore trained at step k + max_staleness at the latest, if groups are trained in the order of
their draws. In any other order a group is preferred as soon as it would become too old otherwise, see `num_due`.

`max_staleness` = 0 is synchronous training, 1 is one step off policy, more is asynchronous.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from attrs import define, field, frozen

from purerl.rollouts.distributed import Supplier
from purerl.rollouts.settings import Order
from purerl.rollouts.types import Draw, Group

__all__ = ["Contents", "Window", "num_due"]


@frozen
class Contents:
    """The numbers of the draws in flight, and the groups that wait."""

    in_flight: tuple[int, ...]
    waiting: tuple[Group, ...]


class Window:
    """Keeps `rollouts` busy, and returns groups.

    draw           (first, count) -> draws
    batch_size     groups that each step takes at least
    on_group       called with each group when it has been collected
    order          "drawn": groups are trained in the order of their draws. "finished": those that finish first
    num_extra      draws that are sampled beyond the limit, with the order "finished". No group is waited for because of
                   its age then; `cancel_surplus` gives up those that would become too old
    """

    def __init__(
        self,
        rollouts: Supplier,
        draw: Callable[[int, int], list[Draw]],
        *,
        batch_size: int,
        max_staleness: int = 0,
        order: Order = "drawn",
        num_extra: int = 0,
        on_group: Callable[[Group], object] = lambda group: None,
    ) -> None:
        self._rollouts, self._draw, self._on_group = rollouts, draw, on_group
        self._batch_size, self._max_staleness, self._num_extra = batch_size, max_staleness, num_extra
        self._is_in_order = order == "drawn"
        self.num_draws = 0
        self._version: dict[int, int] = {}  # of the weights when the draw was submitted
        self._waiting: dict[int, Group] = {}  # in the order in which they finished
        self._to_resample: deque[int] = deque()  # draws that are sampled again before new ones are drawn

    @property
    def in_flight(self) -> list[int]:
        """The numbers of the draws that are being sampled, or are sampled again as soon as the limit permits."""
        return [*self._rollouts.in_flight, *self._to_resample]

    @property
    def waiting(self) -> list[Group]:
        """The groups that have not been taken."""
        return [*self._waiting.values()]

    @property
    def contents(self) -> Contents:
        """The part of a checkpoint that describes the window."""
        return Contents(tuple(self.in_flight), tuple(self.waiting))

    def restore(self, num_draws: int, in_flight: Sequence[int], waiting: Sequence[Group], *, step: int) -> None:
        """Continue after `step` where a checkpoint was written.

        The draws `in_flight` are sampled again, before new ones are drawn. So are those of `waiting` whose groups would
        be too old when it is their turn, because fewer groups may wait than when the checkpoint was written.
        """
        versions = {group.draw: group.oldest_version(step) for group in waiting}
        numbers = [*in_flight, *versions]
        turn = sorted(numbers, key=lambda n: (0 if self._is_in_order else versions.get(n, step), n))
        too_old = {
            number
            for position, number in enumerate(turn)
            if step + position // self._batch_size > versions.get(number, step) + self._max_staleness
        }
        self.num_draws = num_draws
        self._waiting = {group.draw: group for group in waiting if group.draw not in too_old}
        self._version = {number: versions[number] for number in self._waiting}
        self._to_resample = deque(sorted(number for number in numbers if number not in self._waiting))

    def _submit(self, draws: Sequence[Draw], step: int) -> None:
        self._version.update((draw.number, step) for draw in draws)
        self._rollouts.submit(draws)

    def take_groups(self, count: int, step: int, *, num_kept: int = 0) -> list[Group]:
        """`count` groups for the step after `step`, in the order of their draws; it has `num_kept` others already.

        Groups that are missing are submitted first, and later ones, as far as the limit permits.
        """
        limit = (1 + self._max_staleness) * self._batch_size + self._num_extra
        missing = max(0, limit - num_kept - len(self._version))
        again = [self._to_resample.popleft() for _ in range(min(missing, len(self._to_resample)))]
        new = range(self.num_draws, self.num_draws + missing - len(again))
        self.num_draws = new.stop
        repeated = [draw for first, number in _ranges(again) for draw in self._draw(first, number)]
        self._submit([*repeated, *(self._draw(new.start, len(new)) if new else ())], step)
        chosen = self._choose_drawn(count) if self._is_in_order else self._choose_finished(count, step)
        for number in chosen:
            del self._version[number]
        return [self._waiting.pop(number) for number in sorted(chosen)]

    def _choose_drawn(self, count: int) -> list[int]:
        chosen = sorted(self._version)[:count]
        self._collect(chosen)
        return chosen

    def _choose_finished(self, count: int, step: int) -> list[int]:
        """The first `count` groups that finish; but groups that would become too old otherwise are waited for."""
        number_due = {} if self._num_extra else num_due(self._last_steps(), step, self._batch_size)
        due = {e: min(number, count) for e, number in number_due.items()}
        selection, new = _Selection(count, due), [*self._waiting]
        while True:
            for number in new:
                selection.consider(number, self._version[number] + self._max_staleness)
            if selection.remaining == 0 or not (new := self._collect(None)):
                return selection.numbers

    def _last_steps(self) -> dict[int, int]:
        """The last step at which each draw may be trained."""
        return {number: version + self._max_staleness for number, version in self._version.items()}

    def cancel_surplus(self, step: int) -> int:
        """Give up draws that would become too old, because more were sampled than are needed; return their number.

        Called when the step after `step` has its groups. Draws in flight are given up first, the latest ones before.
        """
        last_steps = self._last_steps()
        by_preference = sorted(last_steps, key=lambda number: (number in self._waiting, -number))
        due = num_due(last_steps, step, self._batch_size)
        selection = _Selection(max(due.values(), default=0), due)
        for number in by_preference:
            selection.consider(number, last_steps[number])
        surplus = selection.numbers
        self._rollouts.cancel([number for number in surplus if number not in self._waiting])
        for number in surplus:
            del self._version[number]
            self._waiting.pop(number, None)
        return len(surplus)

    def _collect(self, draws: Sequence[int] | None) -> list[int]:
        """Wait for all `draws`, or for any group if no draws are named; return those that have finished."""
        missing = None if draws is None else [number for number in draws if number not in self._waiting]
        groups = self._rollouts.collect(draws=missing)
        self._waiting.update((group.draw, group) for group in groups)
        for group in groups:
            self._on_group(group)
        return [group.draw for group in groups]

    def drain(self) -> None:
        """Wait for everything that is in flight."""
        self._collect(self._rollouts.in_flight)


@define
class _Selection:
    """Selects `count` of the considered draws: the first ones, unless draws that are due need their places.

    due      for each step e, how many draws must be chosen whose last step is at most e
    numbers  the draws that were selected
    """

    count: int
    due: dict[int, int]
    numbers: list[int] = field(factory=list)

    @property
    def remaining(self) -> int:
        """The number of draws that are missing."""
        return self.count - len(self.numbers)

    def consider(self, number: int, last_step: int) -> None:
        """Select the draw `number`, unless its place is needed. A draw that is refused would be refused later too."""
        due = {e: needed - (last_step <= e) for e, needed in self.due.items()}
        if self.remaining > max([0, *due.values()]):
            self.numbers.append(number)
            self.due = due


def num_due(last_steps: Mapping[int, int], step: int, batch_size: int) -> dict[int, int]:
    """The number of draws that the step after `step` must train, so that every step can train `batch_size` of them.

    `last_steps` has the last step at which each draw may be trained. Of the draws with a last step up to e, at most
    batch_size * (e - step) can be trained in later steps. The result has the number of the others for each e, where
    there are any.

    >>> num_due({0: 1, 1: 1, 2: 1, 3: 2}, step=0, batch_size=2)
    {1: 1}
    """
    counts = sorted(Counter(last_steps.values()).items())
    members = zip([e for e, _ in counts], accumulate(number for _, number in counts), strict=True)
    due = {e: number - batch_size * max(0, e - step) for e, number in members}
    return {e: number for e, number in due.items() if number > 0}


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ranges of consecutive `numbers`, each as its first number and its length."""
    for _, pairs in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in pairs]
        yield members[0], len(members)
