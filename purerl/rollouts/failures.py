"""Samples that are missing because an engine, a reward function or an environment failed.

They are counted, and too many of them are an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from textwrap import indent
from typing import NamedTuple, Self

from attrs import define, field, frozen

from purerl.errors import RewardError, RolloutError
from purerl.rewards.outcomes import FailedPart, Failure
from purerl.rollouts.episode_rows import samples_of
from purerl.rollouts.types import Group

__all__ = [
    "AttemptFailures",
    "FailureLimit",
    "MissingSample",
    "describe_failure",
    "max_failures",
    "missing_samples",
    "remedy",
]

_ALWAYS_TOLERATED = 3

_LOG = logging.getLogger(__name__)


def max_failures(max_rate: float, rows: int) -> float:
    """The number of failures that are tolerated on `rows` completions.

    A rate says little about a few completions. So three failures are always tolerated, but at most on half of the
    completions. With the rate 0 none is.

    >>> [max_failures(0.1, rows) for rows in (1, 4, 16, 100)], max_failures(0.0, 100)
    ([0.5, 2.0, 3, 10.0], 0.0)
    """
    return max(max_rate * rows, min(_ALWAYS_TOLERATED, rows / 2)) if max_rate else 0.0


class MissingSample(NamedTuple):
    """A sample without a reward because of `failure`: its name, and its text as far as it is known."""

    name: str
    failure: Failure
    completion: str


def missing_samples(group: Group, samples: int) -> Iterator[MissingSample]:
    """Those of the `samples` of `group` that failed, each once. If its workflow failed, all are missing."""
    for k, rows in enumerate(samples_of(group.trajectories)):
        failed = [row for row in rows if row.result.failure is not None]
        if failed:
            text = failed[-1].texts.get("completion", "")
            yield MissingSample(f"{group.draw}/{k}", failed[0].result.failure, text)
    for k in range(samples if group.failure else 0):
        yield MissingSample(f"{group.draw}/{k}", group.failure, "")


@define
class FailureLimit:
    """Counts failures on completions that belong together, such as those of a step.

    max_rate  the share of the completions that may fail, see `max_failures`
    remedy    advice if there are too many, of the part that has failed most often
    expected  number of completions, as far as it is known before they are scored
    scored    number of completions so far
    count     number of failures so far
    """

    max_rate: float
    remedy: Callable[[FailedPart], str]
    expected: int = 0
    scored: int = 0
    count: int = 0
    _by_part: dict[FailedPart, list[Failure]] = field(factory=dict)

    def add(self, failure: Failure) -> None:
        """Count `failure`.

        Raises: RewardError, or RolloutError if something else than reward functions failed most often, as soon as there
        are too many. The message has the first such failure.
        """
        self.count += 1
        self._by_part.setdefault(failure.part, []).append(failure)
        rows = max(self.expected, self.scored)
        limit = max_failures(self.max_rate, rows)
        if self.count > limit:
            part = max(self._by_part, key=lambda part: len(self._by_part[part]))
            error = RewardError if part == "reward" else RolloutError
            raise error(
                f"too many completions failed; the first failure:\n{describe_failure(self._by_part[part][0])}",
                got=f"{self.count} of {rows} already",
                need=f"at most {math.floor(limit)}, with max_failure_rate = {self.max_rate:g}",
                do=self.remedy(part),
            )


def remedy(part: FailedPart) -> str:
    """Advice on failures of `part`, for messages.

    >>> remedy("reward"), remedy("environment")
    ('fix the function, its server or the example', 'fix the environment')
    """
    remedies = {"reward": "fix the function, its server or the example", "engine": "see the message of the engine"}
    return remedies.get(part, f"fix the {part}")


def describe_failure(failure: Failure) -> str:
    """The part that failed, the kind of failure, and its traceback."""
    return indent(f"{failure.function} {failure.kind}\n{failure.traceback}".rstrip(), "  | ")


@frozen
class AttemptFailures:
    """Counts the failures of an evaluation outside of a run, and shows the first one at once.

    samples  number of samples of a group
    """

    limit: FailureLimit
    samples: int

    @classmethod
    def of_rate(cls, max_rate: float, *, samples: int, expected: int) -> Self:
        """None yet; of `expected` completions the share `max_rate` may fail."""
        return cls(FailureLimit(max_rate, remedy, expected=expected), samples)

    def counting(self, on_group: Callable[[str, Group], object]) -> Callable[[str, Group], None]:
        """A function that counts the failures of a group before it calls `on_group`, which gets the same arguments."""

        def count(name: str, group: Group) -> None:
            self.limit.scored += self.samples
            for missing in missing_samples(group, self.samples):
                self.add_missing(missing)
            on_group(name, group)

        return count

    def add_missing(self, missing: MissingSample) -> None:
        """Count a sample of a group that is counted already. Raises: as `FailureLimit.add`."""
        if self.limit.count == 0:
            what = "a completion failed, and is left out; the first failure:\n%s"
            _LOG.warning(what, describe_failure(missing.failure))
        self.limit.add(missing.failure)

    def log_total(self) -> None:
        """Log how many completions have failed, if any."""
        if self.limit.count:
            _LOG.warning("%d of %d completions failed, and are left out", self.limit.count, self.limit.scored)
