"""Settings of the sections `rewards`, `gates` and `reward_workers`, and their checks."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardFunction, as_reward, is_async, load_reward
from purerl.rewards.components import check_names
from purerl.settings import at_least, no_effect, setting

if TYPE_CHECKING:
    from purerl.algos.algebra import Algorithm

__all__ = ["Reward", "RewardWorkers", "check_rewards", "check_weights", "to_mib", "to_rewards"]


@frozen
class Reward:
    """A reward function and its weight. In settings a string stands for the function with that name, with weight 1."""

    function: str = setting("the function, as module:function or file.py:function", short=True)
    weight: float = setting("factor of its value in the weighted sum; 0: the value is only logged", default=1.0)

    def __attrs_post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigError("weight", got=self.weight, need="a finite number")


def to_rewards(values: Iterable[str | Reward]) -> tuple[Reward, ...]:
    """Names of functions as the rewards that they stand for."""
    return tuple(Reward(value) if isinstance(value, str) else value for value in values)


_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


def to_mib(value: Any) -> Any:
    """A size with a unit in MiB; every other value is returned unchanged.

    >>> to_mib("2GB"), to_mib("1.5 GiB"), to_mib(512)
    (1907, 1536, 512)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\w+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        return value
    return int(float(match[1]) * _UNITS[match[2]]) // 2**20


@frozen(kw_only=True)
class RewardWorkers:
    """How reward functions are called, and how many failures are tolerated."""

    timeout: float = setting(
        "maximum duration of one call of a reward function", unit="s", default=10.0, may_change=True
    )
    num_workers: int | None = setting(
        "number of worker processes, divided among the ranks of a host; if not given, the number of cores, at most 8",
        default=None,
        may_change=True,
        **at_least(1),
    )
    max_memory: int | None = setting(
        "maximum memory of each worker process, and of each process that it starts: a number of MiB, or a size such as "
        '"2GB" or "512MiB". If not given, there is no limit',
        unit="MiB",
        default=None,
        may_change=True,
        converter=to_mib,
        read=to_mib,
        **at_least(64),
    )
    max_failure_rate: float = setting(
        "maximum fraction of the samples of a step, or of an evaluation, that may be missing because a reward "
        "function, an environment or the engine failed. Up to 3 failures are always tolerated, but on at most half of "
        "the samples; with 0, none is",
        default=0.1,
        may_change=True,
    )

    def __attrs_post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ConfigError("timeout", got=self.timeout, need="above 0, and finite")
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigError("max_failure_rate", got=self.max_failure_rate, need="from 0 to 1")


def check_rewards(
    rewards: Sequence[Reward],
    gates: Sequence[str],
    workers: RewardWorkers,
    functions: Mapping[str, RewardFunction],
) -> None:
    """Refuse functions that cannot be called, and settings of workers without effect.

    `functions` are functions of this process, by name; all others run in worker processes.

    Raises: ConfigError.
    """
    names = [reward.function for reward in rewards]
    for key, group in (("rewards", names), ("gates", list(gates))):
        for name in group:
            if group.count(name) > 1:
                got, do = f"{name!r} {group.count(name)} times", "list it once, with a weight"
                raise ConfigError(key, got=got, need="each function once", do=do)
    every = dict.fromkeys([*names, *gates])
    check_names(every)
    local = [as_reward(name, functions[name]) for name in every if name in functions]
    remote = [load_reward(name) for name in every if name not in functions]
    if workers.max_memory is not None and sys.platform != "linux":
        raise no_effect("reward_workers.max_memory", workers.max_memory, "Linux, which limits the memory of a process")
    if not every or remote:
        return
    do = "give the functions by name, as module:function"
    for key in ("num_workers", "max_memory"):
        if getattr(workers, key) is not None:
            need = "a function that runs in a worker process; all functions are objects and run in this process"
            raise ConfigError(f"reward_workers.{key} has no effect", got=getattr(workers, key), need=need, do=do)
    if workers.timeout != RewardWorkers().timeout and not any(is_async(reward.function) for reward in local):
        need = "a function that can be stopped; all functions run in this process, and none is async"
        raise ConfigError("reward_workers.timeout has no effect", got=workers.timeout, need=need, do=do)


def check_weights(rewards: Sequence[Reward], algorithm: Algorithm, kind: str, *, own: Sequence[float]) -> None:
    """Refuse weights of rewards that have no effect with `algorithm`, which is called `kind`.

    `own` are the weights in the settings of the algorithm.

    Raises: ConfigError.
    """
    weights = [reward.weight for reward in rewards]
    if "reward" in algorithm.reads:
        if not any(weights):
            need = "at least one weight that is not 0: otherwise every reward is 0"
            raise ConfigError("rewards.weight", got="0 for each function", need=need, do="set a weight")
    elif "components" in algorithm.reads and any(weight != 1 for weight in weights):
        need = f"an algorithm that reads the weighted sum; {kind} reads each component"
        raise no_effect("rewards.weight", weights, need, "set algorithm.weights instead")
    elif 0 < len(own) < len(weights):
        need = f"one for each component of the {len(weights)} rewards, or none"
        raise ConfigError("algorithm.weights", got=own, need=need)
