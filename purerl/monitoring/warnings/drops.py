"""Checks of sudden changes: a metric is compared with its best or its usual value in the same run."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from purerl.monitoring.warnings.history import History, has_improved, mean, recent

__all__ = [
    "DROP_STEPS",
    "TRUNCATION_STEPS",
    "TURN_STEPS",
    "accuracy_drop",
    "kl_spike",
    "reward_drop",
    "truncated_episodes",
]

DROP_STEPS = 3
TRUNCATION_STEPS = 10
TURN_STEPS = 5
_FRACTION = 0.5  # of the best value
_MIN_DIFFERENCES = 2  # of the rewards of consecutive steps, from which their noise is estimated
_NOISE = 3.0  # median differences of the rewards of consecutive steps
_SPIKE = 10.0  # times the median
_SMALLEST_SPIKE = 1e-3  # nats: less changes no policy
_MIN_EARLIER_STEPS = 5  # for a median
_TRUNCATED = 0.95  # fraction of episodes


def reward_drop(history: History) -> str | None:
    """The mean reward of three steps is below half of its best, and the difference is no noise of the steps.

    If the best mean reward is not above 0, it is below the middle between the best and the lowest reward of the run.
    The noise is the median difference of the mean rewards of consecutive steps before these three.
    """
    values, best = recent(history, "reward/mean", DROP_STEPS), history.best_reward
    earlier = [record["reward/mean"] for record in history.recent[:-DROP_STEPS] if "reward/mean" in record]
    differences = [abs(after - before) for before, after in pairwise(earlier)]
    if best is None or not values or len(differences) < _MIN_DIFFERENCES:
        return None
    limit = best.value * _FRACTION if best.value > 0 else (best.value + history.lowest) / 2
    if not mean(values) < limit or best.value - mean(values) <= _NOISE * median(differences):
        return None
    level = "half of its best" if best.value > 0 else "the middle between its best and the lowest reward"
    what = f"below {level}, {best.value:.3g} in {_steps(best.step)}"
    return f"the mean reward of {_steps(int(history.recent[-1]['step']))} is {mean(values):.3g}, {what}"


def _steps(last: int) -> str:
    return f"steps {last - DROP_STEPS + 1} to {last}"


def kl_spike(history: History) -> str | None:
    """The policy moved ten times as far in the last step as in the median of the steps before it."""
    values = [record["policy/approx_kl"] for record in history.recent if "policy/approx_kl" in record]
    if len(values) <= _MIN_EARLIER_STEPS or "policy/approx_kl" not in history.recent[-1]:
        return None
    usual, last = median(values[:-1]), values[-1]
    if not last >= max(_SPIKE * usual, _SMALLEST_SPIKE):
        return None
    what = f"policy/approx_kl was {last:.3g} nats in step {int(history.recent[-1]['step'])}"
    return f"{what}; the median of the {len(values) - 1} steps before is {usual:.3g}"


def accuracy_drop(history: History) -> str | None:
    """The accuracy of two evaluations in a row is below half of the best one.

    If the confidence interval of one of them reaches the best accuracy, there are too few problems to say so.
    """
    best = history.best_accuracy
    if best is None or len(history.accuracies) < 2:
        return None
    if not all(each.value < _FRACTION * best.value and _is_below(each.high, best.value) for each in history.accuracies):
        return None
    last = " and ".join(f"{each.value:.3g} in step {each.step}" for each in history.accuracies)
    return f"the accuracy of the evaluations was {last}, below half of its best, {best.value:.3g} in step {best.step}"


def _is_below(high: float, best: float) -> bool:
    return high == float("inf") or high < best


def truncated_episodes(history: History) -> str | None:
    """Nearly all episodes end at the token limit of a turn, or at any limit without an improvement of the reward."""
    cut = recent(history, "environment/truncated_turn", TURN_STEPS)
    if cut and mean(cut) >= _TRUNCATED:
        limit = f" ({history.facts.max_tokens})" if history.facts.max_tokens else ""
        what = f"ended in a turn that was cut at its token limit{limit}, before the environment could answer it"
        return f"{mean(cut):.0%} of the episodes of the last {TURN_STEPS} steps {what}"
    truncated = recent(history, "environment/truncated", TRUNCATION_STEPS)
    if not truncated or mean(truncated) < _TRUNCATED or has_improved(history):
        return None
    what = "were ended by a limit of turns, tokens or the environment"
    return f"{mean(truncated):.0%} of the episodes of the last {TRUNCATION_STEPS} steps {what}"
