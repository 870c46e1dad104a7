"""Checks of the sections `rewards`, `gates` and `reward_workers`, before a run starts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.rewards.adapters import LoadedReward, RewardFunction
from purerl.rewards.components import check_names
from purerl.rewards.loading import as_reward, declared_seconds, is_async
from purerl.rewards.settings import Gate, Reward, RewardWorkers, by_name
from purerl.rewards.sources import load, seconds_of, source_of
from purerl.settings import in_section, no_effect

if TYPE_CHECKING:
    from purerl.algos.algebra import Algorithm

__all__ = ["check_models_as_rewards", "check_rewards", "check_weights"]


def check_rewards(
    rewards: Sequence[Reward], gates: Sequence[Gate], workers: RewardWorkers, functions: Mapping[str, RewardFunction]
) -> None:
    """Refuse functions that cannot be called, kinds that cannot be used, and settings of workers without effect.

    Models are checked with the roles. `functions` are functions of this process, by the name of their reward; all other
    functions run in worker processes.

    Raises: ConfigError.
    """
    _check_names(rewards, gates)
    every = {name: each for name, each in by_name(rewards, gates).items() if each.role is None}
    local = [as_reward(name, functions[name], each.kwargs) for name, each in every.items() if name in functions]
    remote = [reward for name, reward in every.items() if name not in functions]
    for reward in remote:
        _check_source(reward, workers.timeout)
    if workers.max_memory is not None and sys.platform != "linux":
        raise no_effect("reward_workers.max_memory", workers.max_memory, "Linux, which limits the memory of a process")
    if remote and all(seconds_of(source_of(reward), 0.0) for reward in remote):
        _check_timeout(workers, local, "a reward that has no time limit of its own, as judges have", "leave it out")
    if not every or remote:
        return
    do = "give the functions by name, as module:function"
    for key in ("num_workers", "max_memory"):
        if getattr(workers, key) is not None:
            need = "a function that runs in a worker process; all functions are objects and run in this process"
            raise no_effect(f"reward_workers.{key}", getattr(workers, key), need, do)
    need = "a function that can be stopped; all functions run in this process, and none is async"
    _check_timeout(workers, local, need, do)


def _check_timeout(workers: RewardWorkers, local: Sequence[LoadedReward], need: str, do: str) -> None:
    """Refuse a timeout that limits nothing, unless one of the functions of this process is async."""
    if workers.timeout != RewardWorkers().timeout and not any(is_async(reward.function) for reward in local):
        raise no_effect("reward_workers.timeout", workers.timeout, need, do)


def _check_names(rewards: Sequence[Reward], gates: Sequence[Gate]) -> None:
    """Refuse two rewards, or two gates, with one name, and names of metrics."""
    for key, group in (("rewards", rewards), ("gates", gates)):
        for name, count in Counter(reward.full_name for reward in group).items():
            if count > 1:
                got, do = f"{name!r} {count} times", 'list it once, with a weight; or give each a name: name = "..."'
                raise ConfigError(key, got=got, need="each function, kind or model once", do=do)
    every = by_name(rewards, gates)
    for gate in gates:
        if _source(every[gate.full_name]) != _source(gate):
            got = f"{gate.full_name!r}, which is also another reward, or one for other data sources"
            do = 'give one of them a name: name = "..."'
            raise ConfigError("gates", got=got, need="names that differ from those of other rewards", do=do)
    check_names(every)


def _source(reward: Reward | Gate) -> tuple[Any, ...]:
    return reward.function, reward.kwargs, reward.config, reward.role, reward.data_source


def _check_source(reward: Reward | Gate, timeout: float) -> None:
    """Refuse a function that cannot be called or has limits above `timeout`, and a kind that cannot be used."""
    if reward.config is None:
        needed = declared_seconds(load(source_of(reward)))
        if needed > timeout:
            need = f"at least {needed:g}: {reward.full_name} ends by limits of its own"
            raise ConfigError("reward_workers.timeout", got=timeout, need=need)
        return
    check = getattr(find("reward", kind_of(reward.config)), "check", None)
    if check is not None:
        with in_section(f"reward {reward.full_name!r}", type(reward.config)):
            check(reward.config)


def check_weights(rewards: Sequence[Reward], algorithm: Algorithm, own: Mapping[str, Sequence[float]]) -> None:
    """Refuse weights of rewards that have no effect with `algorithm`.

    `own` are the weights in the settings of the algorithm and its modifiers, by the key of the setting.

    Raises: ConfigError.
    """
    weights, is_weighted = [reward.weight for reward in rewards], "components" not in algorithm.reads
    if is_weighted and "reward" in algorithm.reads and not any(weights):
        need = "at least one weight that is not 0: otherwise every reward is 0"
        raise ConfigError("rewards.weight", got="0 for each reward", need=need, do="set a weight")
    if is_weighted:
        return
    need = "an algorithm that reads the weighted sum; this one normalizes each component"
    if any(weight != 1 for weight in weights):
        do = f"set {' or '.join(own)} instead" if own else "leave it out"
        raise no_effect("rewards.weight", weights, need, do)
    if any((reward.mean or reward.std) and not reward.clip for reward in rewards):
        raise ConfigError("rewards.mean or std has no effect", got="no clip", need=f"a clip, or {need}")
    for key, numbers in own.items():
        if 0 < len(numbers) < len(weights):
            need = f"one for each component of the {len(weights)} rewards, or none"
            raise ConfigError(key, got=numbers, need=need)


def check_models_as_rewards(rewards: Sequence[Reward | Gate], reads: Collection[str], kind: str) -> None:
    """Refuse rewards and gates that are models if the algorithm `kind` reads the score of a greedy completion.

    `reads` are the fields that it reads. Raises: ConfigError.
    """
    models = [reward.full_name for reward in rewards if reward.role is not None]
    if models and "greedy_score" in reads:
        need = f"functions and kinds only: {kind} compares with a greedy completion, which models do not score"
        raise ConfigError("rewards or gates", got=", ".join(models), need=need, do="use another algorithm")
