"""The checks of a run's metrics. `CHECKS` is the table of all of them; docs/reference/warnings.md explains each.

A check is a function (history) -> text, or None if there is nothing to say. The text states what the metrics show. All
thresholds are constants of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from purerl.monitoring.warnings.drops import (
    DROP_STEPS,
    TRUNCATION_STEPS,
    accuracy_drop,
    kl_spike,
    reward_drop,
    truncated_episodes,
)
from purerl.monitoring.warnings.history import History, has_improved, is_solved, mean, recent, recent_known, start

__all__ = ["CHECKS", "Check", "mismatch_growth"]

_STEPS = 10  # of most checks
_MANY_STEPS = 20  # of checks of something that need not be wrong
_FEW_STEPS = 5  # of checks of something that is never right
_GROWN_STEPS = 3
_MAX_ZERO_ADVANTAGE = 1e-6
_MAX_ZERO_GRADIENT = 1e-10
_SKIPPED = 0.5  # fraction of optimizer steps
_LOST = 0.5  # of updates
_TRUNCATED = 0.95  # fraction of rows
_COLLAPSED = 0.05  # of the entropy in the first steps
_FLAT = 0.1  # standard deviations of the reward in ten steps
_MISMATCH = 0.05  # nats
_STALE_MISMATCH = 0.5  # nats, if rollouts may be older than the weights
_MISMATCH_GROWTH = 3.0
_OTHER_MODEL = 0.5  # nats: more than any precision explains
_SAMPLE_SIZE = 0.9  # effective, as a fraction of the tokens
_STALE_SAMPLE_SIZE = 0.5  # if rollouts may be older than the weights
_FAILURES = 0.5  # of reward_workers.max_failure_rate
_LARGE_KL = 0.5  # nats
_LOGP_ABS_DIFF = "mismatch/logp_abs_diff"


class Check(NamedTuple):
    """One check.

    name          of the warning
    steps         number of last steps that the check reads. Its warning ends after twice as many steps without it
    test          what the metrics show, or None
    cause         the likely cause
    do            what to try
    explained_by  checks that name the cause of this one: while one of their warnings is present, this one is not raised
    """

    name: str
    steps: int
    test: Callable[[History], str | None]
    cause: str
    do: str
    explained_by: tuple[str, ...] = ()


def no_reward(history: History) -> str | None:
    """No completion has a reward."""
    if any(recent(history, "reward/valid_fraction", _FEW_STEPS) or [1.0]):
        return None
    return f"no completion of the last {_FEW_STEPS} steps has a reward, so nothing was trained"


def constant_reward(history: History) -> str | None:
    """All completions of a step have the same reward, and the run has not learned its task."""
    low, high = recent(history, "reward/min", _STEPS), recent(history, "reward/max", _STEPS)
    if not low or low != high or not history.facts.learns_from_rewards or is_solved(history):
        return None
    values = f"the reward {low[0]:.4g}" if len({*low}) == 1 else "the same reward within a step"
    return f"all completions of the last {_STEPS} steps have {values}"


def no_variance(history: History) -> str | None:
    """In every group all rewards are equal, and the advantages are 0 or no group is kept."""
    fractions = recent(history, "reward/zero_std_fraction", _STEPS)
    if not fractions or min(fractions) < 1 or is_solved(history):
        return None
    sizes = (max(abs(r.get("advantage/min", 0.0)), abs(r.get("advantage/max", 0.0))) for r in history.recent[-_STEPS:])
    if max(sizes) > _MAX_ZERO_ADVANTAGE:
        return None
    return f"in the last {_STEPS} steps, all completions of each prompt have the same reward"


def zero_learning_rate(history: History) -> str | None:
    """The learning rate is 0."""
    rates = recent(history, "policy/learning_rate", _FEW_STEPS)
    return f"the learning rate was 0 in the last {_FEW_STEPS} steps" if rates and not any(rates) else None


def zero_gradient(history: History) -> str | None:
    """The gradient of the policy is 0."""
    norms = recent(history, "policy/grad_norm", _STEPS)
    if not norms or max(norms) > _MAX_ZERO_GRADIENT or is_solved(history):
        return None
    return f"the gradient of the policy was 0 in the last {_STEPS} steps"


def skipped_updates(history: History) -> str | None:
    """Optimizer steps are skipped although there are rows to train on, and although their gradients are not 0."""
    skipped, has_rows = recent(history, "policy/skipped", _FEW_STEPS), recent(history, "rollout/length", _FEW_STEPS)
    without_signal = recent(history, "policy/skipped/zero_gradient", _FEW_STEPS) or [0.0]
    fraction = mean(skipped) - mean(without_signal)
    if not has_rows or not fraction >= _SKIPPED:
        return None
    return f"{fraction:.0%} of the optimizer steps of the last {_FEW_STEPS} steps were skipped"


def lost_updates(history: History) -> str | None:
    """Most of the updates is lost in the rounding of the weights."""
    lost = mean(recent_known(history, "policy/update_lost", _MANY_STEPS))
    if not lost >= _LOST:
        return None
    return f"rounding of the weights removed {lost:.0%} of the updates of the last {_MANY_STEPS} steps"


def truncation(history: History) -> str | None:
    """Nearly all completions end at the maximum length, and the reward does not improve."""
    truncated = recent(history, "rollout/truncated", _MANY_STEPS)
    if not truncated or mean(truncated) < _TRUNCATED or has_improved(history):
        return None
    limit = f" ({history.facts.max_tokens})" if history.facts.max_tokens else ""
    return (
        f"{mean(truncated):.0%} of the completions of the last {_MANY_STEPS} steps ended at rollout.max_tokens{limit}"
    )


def entropy_collapse(history: History) -> str | None:
    """The entropy has fallen nearly to 0, while the reward neither improves nor is near its maximum."""
    before, after = mean(start(history, "policy/entropy")), mean(recent(history, "policy/entropy", _STEPS))
    if not after < _COLLAPSED * before or is_solved(history) or not _is_flat(history):
        return None
    return f"the entropy of the policy fell from {before:.3g} to {after:.3g} nats, and the reward does not improve"


def _is_flat(history: History) -> bool:
    """Whether the mean reward of the last ten steps is not clearly above that of the ten steps before."""
    rewards, deviations = recent(history, "reward/mean", 2 * _STEPS), recent(history, "reward/std", _STEPS)
    rise = mean(rewards[_STEPS:]) - mean(rewards[:_STEPS])
    return rise <= _FLAT * mean(deviations or [0.0])


def mismatch(history: History) -> str | None:
    """The log-probabilities of sampler and trainer differ more and more, or so much that few tokens count.

    Or they are those of different models, which a few steps show.
    """
    return _other_model(history) or _growing_mismatch(history) or _large_mismatch(history)


def _other_model(history: History) -> str | None:
    values = recent_known(history, _LOGP_ABS_DIFF, _FEW_STEPS)
    if history.facts.max_staleness or not values or min(values) < _OTHER_MODEL:
        return None
    what = f"differ by {min(values):.3g} nats or more in each of the last {_FEW_STEPS} steps, with the same weights"
    return f"the log-probabilities of sampler and trainer {what}"


def mismatch_growth(history: History) -> str | None:
    """The log-probabilities of sampler and trainer differ far more than they did before the first step."""
    facts, values = history.facts, recent_known(history, _LOGP_ABS_DIFF, _GROWN_STEPS)
    if facts.max_staleness or facts.mismatch_limit is None or not values or min(values) <= facts.mismatch_limit:
        return None
    before = f"{facts.mismatch_level:.2g} nats before the first step"
    what = f"differ by {min(values):.2g} nats or more in each of the last {_GROWN_STEPS} steps, with the same weights"
    return f"the log-probabilities of sampler and trainer {what}; {before}"


def _growing_mismatch(history: History) -> str | None:
    before = mean(start(history, _LOGP_ABS_DIFF))
    after = mean(recent_known(history, _LOGP_ABS_DIFF, _STEPS))
    limit = _STALE_MISMATCH if history.facts.max_staleness else _MISMATCH
    if not after > max(limit, _MISMATCH_GROWTH * before):
        return None
    return f"the log-probabilities of sampler and trainer differ by {after:.3g} nats; {before:.3g} in the first steps"


def _large_mismatch(history: History) -> str | None:
    size = mean(recent_known(history, "mismatch/effective_sample_size", _STEPS))
    if not size < (_STALE_SAMPLE_SIZE if history.facts.max_staleness else _SAMPLE_SIZE):
        return None
    what = f"by importance weights, the tokens of the last {_STEPS} steps count as {size:.0%} of their number"
    return f"the log-probabilities of sampler and trainer differ: {what}"


def reward_failures(history: History) -> str | None:
    """Samples are missing nearly as often as `reward_workers.max_failure_rate` allows."""
    failed, limit = mean(recent(history, "reward/failed", _FEW_STEPS)), history.facts.max_failure_rate
    if not failed > 0 or failed < _FAILURES * limit:
        return None
    what = f"{failed:.1%} of the completions of the last {_FEW_STEPS} steps are missing because something failed"
    return f"{what}; the run stops at a step with more than {limit:.1%}"


def large_updates(history: History) -> str | None:
    """The policy changes so much within a step that its rollouts no longer describe it."""
    names = ("policy/approx_kl", "policy/sampler_kl")
    values = next(filter(None, (recent_known(history, name, _FEW_STEPS) for name in names)), None)
    if not values or not median(values) > _LARGE_KL:
        return None
    return f"the policy moved {median(values):.3g} nats (KL divergence) in a step, the median of {_FEW_STEPS} steps"


_READ = "read completions and their rewards: `purerl report RUN`"
_SIGNALS = ("no_reward", "constant_reward", "no_variance")

CHECKS = (
    Check(
        "no_reward",
        _FEW_STEPS,
        no_reward,
        "every reward function returned None or failed",
        "check the reward functions and the columns that they read; failures.jsonl has the failures",
    ),
    Check(
        "large_updates",
        _FEW_STEPS,
        large_updates,
        "the learning rate is too high, or a step has too many optimizer steps",
        "lower trainer.lr, or num_minibatches and ppo_epochs; then start again, because the policy may be damaged",
    ),
    Check(
        "kl_spike",
        1,
        kl_spike,
        "one step changed the policy far more than the others: a few rows with extreme advantages or ratios, or a "
        "learning rate that is too high",
        "read the completions of this step: `purerl report RUN`; lower trainer.lr or trainer.max_grad_norm; if the "
        "reward falls afterwards, start again from a checkpoint before it: `purerl train --resume-from RUN:STEP`",
        ("large_updates",),
    ),
    Check(
        "reward_drop",
        DROP_STEPS,
        reward_drop,
        "an update has damaged the policy, or the reward functions or the data have changed",
        f"{_READ}; look at policy/approx_kl and policy/grad_norm of the steps before; start again from a checkpoint "
        "before the drop, with a lower trainer.lr: `purerl train --resume-from RUN:STEP`",
        ("no_reward",),
    ),
    Check(
        "accuracy_drop",
        _FEW_STEPS,
        accuracy_drop,
        "the policy was damaged by an update, or learns to please the reward on the training data only",
        "read the completions of the evaluations: `purerl report RUN`; use the model of the best step: set "
        "checkpoint.best, or start again from its checkpoint with `purerl train --resume-from RUN:STEP`",
    ),
    Check(
        "entropy_collapse",
        _STEPS,
        entropy_collapse,
        "the policy has become deterministic: the learning rate is too high, or the reward prefers one answer",
        "lower trainer.lr, or set algorithm.entropy_bonus or algorithm.kl_loss",
        ("no_reward",),
    ),
    Check(
        "constant_reward",
        _STEPS,
        constant_reward,
        "the task is far too hard or too easy for the model, or the reward function does not recognize any answer, for "
        "example because of their format",
        f"{_READ}; evaluate the model before training with `purerl eval`, and use easier or harder data",
        ("no_reward", "reward_drop", "entropy_collapse"),
    ),
    Check(
        "no_variance",
        _STEPS,
        no_variance,
        "each prompt is either always or never solved, or all its completions are the same",
        f"{_READ}; raise rollout.samples_per_prompt or rollout.temperature, or use data of medium difficulty",
        ("no_reward", "reward_drop", "entropy_collapse", "constant_reward"),
    ),
    Check(
        "zero_learning_rate",
        _FEW_STEPS,
        zero_learning_rate,
        "the schedule of the learning rate has ended, or never starts",
        "check trainer.lr, trainer.lr_scheduler, trainer.warmup_steps and trainer.min_lr_ratio",
    ),
    Check(
        "zero_gradient",
        _STEPS,
        zero_gradient,
        "all advantages are 0, every token is masked out, or the loss does not depend on the weights",
        "look at advantage/std, reward/zero_std_fraction and policy/clip_fraction",
        (*_SIGNALS, "reward_drop", "entropy_collapse"),
    ),
    Check(
        "skipped_updates",
        _FEW_STEPS,
        skipped_updates,
        "gradients are not finite, or mini-batches have no counted token",
        "lower trainer.lr, train in float32 or bfloat16, or lower num_minibatches",
        (*_SIGNALS, "entropy_collapse"),
    ),
    Check(
        "lost_updates",
        _MANY_STEPS,
        lost_updates,
        "the updates are smaller than half of the distance between two numbers of the dtype of the weights, and the "
        "trainer rounds them to nearest",
        "train float32 weights with trainer.mixed_precision, or use the trainer hf: its rules (trainer.rounding) lose "
        "nothing",
    ),
    Check(
        "truncated_episodes",
        TRUNCATION_STEPS,
        truncated_episodes,
        "rollout.max_tokens (of a turn) or environment.max_turns is too low, or the model never ends its turns",
        "raise rollout.max_tokens and environment.max_turns, check the chat template and its end token, or set "
        "rollout.stop_strings",
    ),
    Check(
        "truncation",
        _MANY_STEPS,
        truncation,
        "the limit is too low for a complete answer, or the model never ends its answers",
        "raise rollout.max_tokens, check the chat template and its end token, or set rollout.stop_strings",
        ("truncated_episodes",),
    ),
    Check(
        "mismatch_growth",
        _GROWN_STEPS,
        mismatch_growth,
        "the engine has old values of some weights, or rounding has grown with the weights",
        "compare the version of the engine with docs/how-to/servers.md, and look for warnings in its log; "
        "generator.max_mismatch_growth makes it an error",
    ),
    Check(
        "mismatch",
        _STEPS,
        mismatch,
        "sampler and trainer use different weights, configurations of the model, precision, kernels or temperature, or "
        "training drives them apart",
        "compare the arguments of the engine with the model's config.json, use one dtype, lower rollout.max_staleness, "
        "or set algorithm.importance_weight or algorithm.rejection",
    ),
    Check(
        "reward_failures",
        _FEW_STEPS,
        reward_failures,
        "a reward function or an environment raises exceptions, crashes, or exceeds its time limit",
        "read the tracebacks in failures.jsonl; fix the code, or raise reward_workers.timeout or environment.timeout",
    ),
)
"""All checks. A check is listed after those that may explain it."""
