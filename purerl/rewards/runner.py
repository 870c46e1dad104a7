"""RewardWorkers completions: every reward function asked, and what they say made into one reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Self

from attrs import field, frozen

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardFunction, RewardInput, as_reward, columns_of, load_reward, one_of
from purerl.rewards.outcomes import Failure, Outcome, call_reward, short_name
from purerl.rewards.workers import Workers

__all__ = ["RewardResult", "RewardRunner", "combine", "fractions"]


@frozen
class RewardResult:
    """What reward functions say of a completion.

    components  each by its name, as it was said
    counted     what each adds to the reward; empty where no reward can be told
    failure     the first of a function that failed
    """

    components: Mapping[str, float] = field(factory=dict)
    counted: Mapping[str, float] = field(factory=dict)
    failure: Failure | None = None

    @property
    def reward(self) -> float | None:
        """The sum of what is counted; None where no reward can be told."""
        return sum(self.counted.values()) if self.counted else None


def combine(said: Mapping[str, Outcome], weights: Mapping[str, float], gates: Collection[str]) -> RewardResult:
    """One verdict of what each function has said of a completion.

        reward = sum over functions f and their components c of weights[f] * c   where no component of a gate is below 1
                 0                                                               elsewhere

    A function outside of `weights` adds nothing. Components of one name add up, but those that are named after their
    function: of two functions of one name, each component has the whole name of its own. Where a function fails, or
    says None, there is no reward.

    >>> said = {"m:right": {"right": 1.0}, "m:short": {"short": 0.5}, "m:tagged": {"tagged": 1.0}}
    >>> combine(said, {"m:right": 1.0, "m:short": 0.2}, ["m:tagged"]).reward
    1.1
    >>> combine(said | {"m:tagged": {"tagged": 0.0}}, {"m:right": 1.0, "m:short": 0.2}, ["m:tagged"]).reward
    0.0
    """
    told = {name: outcome for name, outcome in said.items() if isinstance(outcome, Mapping)}
    if len(told) < len(said):
        return RewardResult(failure=next((one for one in said.values() if isinstance(one, Failure)), None))
    components: dict[str, float] = {}
    counted: dict[str, float] = {}
    shared = _shared(tuple(said))
    for name, outcome in told.items():
        for component, value in outcome.items():
            component = name if name in shared and component == short_name(name) else component
            components[component] = components.get(component, 0.0) + value
            if name in weights:
                counted[component] = counted.get(component, 0.0) + weights[name] * value
    if any(value < 1 for name in gates for value in told[name].values()):
        counted = dict.fromkeys(counted, 0.0)
    return RewardResult(components, counted)


@cache
def _shared(names: tuple[str, ...]) -> frozenset[str]:
    """Those of `names` that are not the only ones with their short name."""
    count = Counter(map(short_name, names))
    return frozenset(name for name in names if count[short_name(name)] > 1)


def fractions(verdicts: Sequence[RewardResult]) -> dict[str, float]:
    """Of all completions: whose reward was told; whose reward function failed; where it outlived its deadline."""
    failures = [combine.failure.kind for combine in verdicts if combine.failure]
    counts = {
        "valid_fraction": sum(combine.reward is not None for combine in verdicts),
        "failed": len(failures),
        "timed_out": failures.count("timed out"),
    }
    return {name: count / len(verdicts) for name, count in counts.items()}


class RewardRunner:
    """Asks reward functions: those in `given` in this process, all others, known by their names, in workers.

    `weights` are of the functions that add up, `gates` those that must be at least 1; `deadline` is in seconds, for one
    call of a function. What is in `given` cannot be ended: there only what is awaited has a deadline. Used in a `with`
    block: workers live as long as it.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        gates: Collection[str] = (),
        *,
        given: Mapping[str, RewardFunction],
        deadline: float,
        workers: int | None,
    ):
        self._names = tuple(dict.fromkeys((*weights, *gates)))
        self._weights, self._gates, self._deadline = weights, gates, deadline
        self._here = [as_reward(name, given[name]) for name in self._names if name in given]
        self._elsewhere = [load_reward(name) for name in self._names if name not in given]
        self._workers = Workers(self._elsewhere, count=workers, deadline=deadline) if self._elsewhere else None

    def check_columns(self, columns: Collection[str]) -> None:
        """Raises ConfigError where a function cannot do without a column that is not among `columns`."""
        for one in (*self._here, *self._elsewhere):
            missing = [name for name in columns_of(one) if name not in columns]
            either = one_of(one)
            if missing or (either and not set(either) & set(columns)):
                what = f"reward {one.name!r} reads columns that the data has not"
                need = f"also {', '.join(missing)}" if missing else f"also {' or '.join(either)}"
                do = "rename a column of the data, or name another function"
                raise ConfigError(what, got=", ".join(columns), need=need, do=do)

    def __enter__(self) -> Self:
        if self._workers is not None:
            self._workers.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def __call__(self, cases: Sequence[RewardInput]) -> list[RewardResult]:
        """A verdict for each of `cases`, in their order. Raises RewardError where no worker process can live."""
        said = self._workers.score(cases) if self._workers else {}
        said |= {one.name: call_reward(one, cases, deadline=self._deadline) for one in self._here}
        return [
            combine({name: said[name][k] for name in self._names}, self._weights, self._gates)
            for k in range(len(cases))
        ]
