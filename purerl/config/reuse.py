"""The check that rows are only used again, or used late, by an algorithm that can correct for it.

A policy gradient without a ratio, -A logp, is right for rows that the current policy sampled. After one optimizer step
that is another policy: the next mini-batch and the next pass are off policy, and so are rollouts of earlier weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import bypass, clipped_surrogate, importance_weight
from purerl.algos.parts.behavior import has_policy_ratio, has_rollout_ratio, is_policy_gradient, weights_rollouts
from purerl.composition import with_modifiers
from purerl.config.requirements import Requirements, StepSchedule
from purerl.errors import ConfigError
from purerl.rollouts.settings import Rollout

__all__ = ["check_reuse"]


def check_reuse(needs: Requirements, rollout: Rollout | None) -> None:
    """Refuse several optimizer steps per step, and stale rollouts, if the policy gradient is then biased.

    It depends on what the algorithm, with its modifiers, computes. Raises: ConfigError that names a modifier or an
    algorithm that corrects for it.
    """
    algorithm, kind = needs.algorithm, needs.kind
    staleness, recorded = (rollout.max_staleness, rollout.recorded) if rollout else (0, None)
    if not is_policy_gradient(algorithm):
        return
    if needs.schedule.updates_per_step > 1 and not has_policy_ratio(algorithm):
        raise _refusal_of_updates(needs.schedule, algorithm, kind)
    if (staleness or recorded) and not _accounts_for_staleness(algorithm):
        remedies = [bypass.Config(), importance_weight.Config()]
        names = [_name_of(each) for each in remedies if _is_remedy(algorithm, each, _accounts_for_staleness)]
        do = " or ".join(f"algorithm.{name}=true" for name in names) or "an algorithm with a weight, such as icepop"
        if recorded:
            need = (
                f"sampling: the policy loss of {kind} does not read the log-probabilities of the policy that sampled "
            )
            need = f"{need}the rows, so it is biased for rows of another one"
            raise ConfigError("rollout.recorded", got=repr(recorded), need=need, do=f"set {do}")
        raise ConfigError(
            "rollout.max_staleness",
            got=staleness,
            need=f"0: the policy loss of {kind} does not read the log-probabilities of the weights that sampled the "
            "rows, so it is biased for rows of earlier weights",
            do=f"set {do}, or rollout.max_staleness=0",
        )


def _accounts_for_staleness(algorithm: Algorithm) -> bool:
    return weights_rollouts(algorithm) or has_rollout_ratio(algorithm)


def _refusal_of_updates(schedule: StepSchedule, algorithm: Algorithm, kind: str) -> ConfigError:
    by_size = schedule.minibatch_size is not None
    whole = {
        "ppo_epochs": (schedule.ppo_epochs, 1),
        "minibatch_size": (schedule.minibatch_size, schedule.batch_size if by_size else None),
        "num_minibatches": (None if by_size else schedule.minibatches, None if by_size else 1),
    }
    wrong = {name: pair for name, pair in whole.items() if pair[0] != pair[1]}
    values = ", ".join(f"{name} = {value}" for name, (value, _) in wrong.items())
    settings = " and ".join(f"{name}={value}" for name, (_, value) in wrong.items())
    return ConfigError(
        next(iter(wrong)),
        got=f"{schedule.updates_per_step} optimizer steps with the rows of a step: {values}",
        need=f"1: the policy loss of {kind} has no ratio to the policy that sampled the rows, "
        "so only the first optimizer step has an unbiased gradient",
        do=f"set {settings}, or {_alternative(algorithm, clipped_surrogate.Config(), has_policy_ratio)}",
    )


def _alternative(algorithm: Algorithm, modifier: Any, corrects: Callable[[Algorithm], bool]) -> str:
    """The modifier, if it can change `algorithm` so that it `corrects`, or else another algorithm."""
    is_remedy = _is_remedy(algorithm, modifier, corrects)
    name = _name_of(modifier)
    return f"algorithm.{name}=true" if is_remedy else "an algorithm with a ratio, such as algorithm.kind=grpo"


def _is_remedy(algorithm: Algorithm, modifier: Any, corrects: Callable[[Algorithm], bool]) -> bool:
    try:
        return corrects(with_modifiers(algorithm, modifier))
    except ConfigError:
        return False


def _name_of(modifier: Any) -> str:
    """The name of the modifier that this Config belongs to."""
    return type(modifier).__module__.rpartition(".")[-1]
