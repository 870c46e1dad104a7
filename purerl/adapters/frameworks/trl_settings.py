"""Settings of TRL's GRPOConfig that an algorithm of purerl would ignore, and sizes that do not fit it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from purerl.adapters.frameworks.availability import TRL, refusals, require
from purerl.algos.algebra import Algorithm, unchanged
from purerl.algos.parts.editing import policy_of
from purerl.errors import ConfigError

__all__ = ["REFUSED", "check", "reads_rollout_policy", "uses_reference"]

REFUSED: Mapping[str, str] = {
    "loss_type": "choose the algorithm",
    "epsilon": "set clip_low and clip_high of the algorithm",
    "epsilon_high": "set clip_high of the algorithm",
    "delta": "add the modifier dual_clip",
    "beta": "add the modifier kl_loss, or kl_reward",
    "use_bias_correction_kl": "leave it out, and set the estimator k3 in the modifier kl_loss",
    "importance_sampling_level": "choose the algorithm, for example gspo",
    "scale_rewards": "add the modifier advantage_scale",
    "multi_objective_aggregation": "choose the algorithm gdpo",
    "top_entropy_quantile": "add the modifier high_entropy_tokens",
    "entropy_coef": "add the modifier entropy_bonus",
    "use_adaptive_entropy": "set target of the modifier entropy_bonus",
    "entropy_coef_min": "add the modifier entropy_bonus",
    "entropy_coef_max": "set max_coef of the modifier entropy_bonus",
    "entropy_coef_delta": "set step_size of the modifier entropy_bonus",
    "entropy_target": "set target of the modifier entropy_bonus",
    "mask_truncated_completions": "add the modifier mask_truncated",
    "off_policy_mask_threshold": "add the modifier off_policy_mask",
    "sapo_temperature_neg": "set it in the algorithm sapo",
    "sapo_temperature_pos": "set it in the algorithm sapo",
    "vespo_k_pos": "set power_positive of the algorithm vespo",
    "vespo_lambda_pos": "set decay_positive of the algorithm vespo",
    "vespo_k_neg": "set power_negative of the algorithm vespo",
    "vespo_lambda_neg": "set decay_negative of the algorithm vespo",
}
"""Settings of TRL that have no effect on an algorithm of purerl, and what has this effect."""


def check(args: Any, algorithm: Algorithm, *, has_rollout_logp: bool) -> None:
    """Raise ConfigError if `algorithm` cannot run in TRL, or if settings in `args`, a GRPOConfig, do not fit it.

    has_rollout_logp   completions have log-probabilities of the policy that sampled them: from vLLM, or from a
                       `rollout_func`. Otherwise the rollout policy is the policy at the start of the update
    """
    require("this algorithm in TRL", [*refusals(algorithm, TRL)])
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    ignored = [(name, do) for name, do in REFUSED.items() if getattr(args, name) != defaults[name]]
    if ignored:
        got = ", ".join(f"{name}={getattr(args, name)}" for name, _ in ignored)
        do = "; ".join(f"{name}: {do}" for name, do in ignored)
        raise ConfigError("settings of GRPOConfig that have no effect on an algorithm of purerl", got=got, do=do)
    for what, got, need, do in (
        *_sizes(args, algorithm),
        *_of_rollout_policy(args, algorithm, has_rollout_logp=has_rollout_logp),
    ):
        raise ConfigError(what, got=got, need=need, do=do)


def uses_reference(algorithm: Algorithm) -> bool:
    """Whether `algorithm` reads the log-probabilities of the reference model."""
    return "ref_logp" in (*algorithm.reads, *policy_of(algorithm).reads)


def reads_rollout_policy(algorithm: Algorithm) -> bool:
    """Whether `algorithm` reads the log-probabilities of the rollout policy."""
    return "rollout_logp" in (*algorithm.reads, *policy_of(algorithm).reads)


_Problem = tuple[str, str, str, str | None]


def _sizes(args: Any, algorithm: Algorithm) -> Iterator[_Problem]:
    objective = policy_of(algorithm)
    steps, accumulation = args.steps_per_generation, args.gradient_accumulation_steps
    if args.num_generations < algorithm.min_group_size:
        need = f"at least {algorithm.min_group_size}: in smaller groups every advantage is 0"
        yield "num_generations", str(args.num_generations), need, None
    if objective.prepare is not unchanged and steps != accumulation:
        need = f"gradient_accumulation_steps, which is {accumulation}: the loss is prepared on whole optimizer steps"
        yield "steps_per_generation", str(steps), need, "leave out steps_per_generation and generation_batch_size"
    if objective.unit == "group" and (steps != 1 or args.per_device_train_batch_size % args.num_generations):
        got = f"steps_per_generation={steps}, per_device_train_batch_size={args.per_device_train_batch_size}"
        need = "whole groups on each device: steps_per_generation=1, and a multiple of num_generations"
        yield "this algorithm couples the rows of a group", got, need, None
    if "components" in algorithm.reads and args.reward_weights is not None:
        yield "reward_weights", str(args.reward_weights), "no effect on this algorithm", "set weights of the algorithm"


def _of_rollout_policy(args: Any, algorithm: Algorithm, *, has_rollout_logp: bool) -> Iterator[_Problem]:
    corrects = args.use_vllm and args.vllm_importance_sampling_correction
    if {"old_logp", "rollout_logp"} <= {*algorithm.reads} and not has_rollout_logp:
        need = "use_vllm=True, or a rollout_func that returns logprobs: otherwise both policies are the same"
        yield "this algorithm compares the rollout policy with the old policy", "use_vllm=False", need, None
    if corrects and reads_rollout_policy(algorithm):
        need = "False: the algorithm reads the log-probabilities of the rollout policy itself"
        yield "vllm_importance_sampling_correction", "True", need, None
