"""Algorithms as pure functions of tensors.

    grpo, dapo, ppo, ...    a module for each named algorithm: its `Config`, and `algorithm(config)`, which composes it
    algebra                 what an algorithm is, and the four verbs that run one
    estimators              advantages
    parts                   surrogates, weights, divergences, reductions, transforms, objectives, statistics of groups

The equations are here by name, for use on tensors of your own:

>>> import torch
>>> from purerl.algos import ppo_clip
>>> ppo_clip(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([[3.0]]), clip_low=0.2, clip_high=0.28)
tensor([[-3.]])
"""

from __future__ import annotations

from purerl.algos.algebra import Counts
from purerl.algos.estimators.components import component_normalized_advantage, weighted_sum
from purerl.algos.estimators.group_relative import (
    batch_normalized_advantage,
    gpg_advantage,
    group_centered_advantage,
    group_normalized_advantage,
    leave_one_out_advantage,
    length_weighted_advantage,
    mean_normalized_advantage,
    singleton_score,
    win_rate_advantage,
)
from purerl.algos.estimators.optimal_baseline import optimal_token_advantage
from purerl.algos.estimators.pass_k import leave_one_out_max_advantage, pass_k_advantage
from purerl.algos.estimators.returns import (
    discounted_returns,
    gae,
    length_adaptive_lambda,
    vtrace_advantage,
    vtrace_target,
)
from purerl.algos.estimators.steps import anchored_step_advantage
from purerl.algos.estimators.trackers import beta_update, look_up, moving_average_update
from purerl.algos.parts.actions import fold_reward
from purerl.algos.parts.corrections import banded, effective_sample_size, stale, truncated, whole_row_ratio
from purerl.algos.parts.distillation import teacher_advantage, topk_forward_kl, topk_reverse_kl
from purerl.algos.parts.divergences import (
    absolute,
    adapt_kl_coef,
    importance_k3,
    k1,
    k2,
    k3,
    kl_reward,
    straight_through,
    weighted_k2,
    weighted_k3,
)
from purerl.algos.parts.entropy import adapt_entropy_coef
from purerl.algos.parts.groups import (
    group_deviation,
    group_max,
    group_mean,
    group_size,
    group_sum,
    group_token_max,
    group_token_sum,
)
from purerl.algos.parts.preferences import dpo_loss, ipo_loss, pair_margin
from purerl.algos.parts.reductions import (
    constant_norm,
    sequence_mean_of_token_mean,
    sequence_mean_of_token_sum,
    token_mean,
    token_sum,
)
from purerl.algos.parts.regressions import gvpo_loss, sppo_loss
from purerl.algos.parts.resampling import best_weight, extreme_weight, power_weight, resample
from purerl.algos.parts.rows import at_last_action, broadcast_to_tokens, first_counted, row_max, row_mean, row_sum
from purerl.algos.parts.selection import (
    excess_moment,
    has_variance,
    in_band,
    largest_covariance,
    least_uncertain,
    sampled_covariance,
)
from purerl.algos.parts.shaping import overlong_penalty
from purerl.algos.parts.surrogates import (
    clip_surrogate,
    clipped,
    dual_clip_surrogate,
    geometric_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_log_ratio,
    sequence_ratio,
    soft_gate_surrogate,
    token_ratio,
)
from purerl.algos.parts.values import clipped_value_loss, squared_error
from purerl.algos.parts.weights import (
    clipped_weight,
    flipped_weight,
    gamma_weight,
    probability_gap,
    tapered_weight,
    token_kl,
    trusted_weight,
)
from purerl.algos.parts.whiten import whiten, whiten_rows

__all__ = [
    "Counts",
    "absolute",
    "adapt_entropy_coef",
    "adapt_kl_coef",
    "anchored_step_advantage",
    "at_last_action",
    "banded",
    "batch_normalized_advantage",
    "best_weight",
    "beta_update",
    "broadcast_to_tokens",
    "clip_surrogate",
    "clipped",
    "clipped_value_loss",
    "clipped_weight",
    "component_normalized_advantage",
    "constant_norm",
    "discounted_returns",
    "dpo_loss",
    "dual_clip_surrogate",
    "effective_sample_size",
    "excess_moment",
    "extreme_weight",
    "first_counted",
    "flipped_weight",
    "fold_reward",
    "gae",
    "gamma_weight",
    "geometric_ratio",
    "gpg_advantage",
    "group_centered_advantage",
    "group_deviation",
    "group_max",
    "group_mean",
    "group_normalized_advantage",
    "group_size",
    "group_sum",
    "group_token_max",
    "group_token_sum",
    "gvpo_loss",
    "has_variance",
    "importance_k3",
    "importance_surrogate",
    "in_band",
    "ipo_loss",
    "k1",
    "k2",
    "k3",
    "kl_reward",
    "largest_covariance",
    "least_uncertain",
    "leave_one_out_advantage",
    "leave_one_out_max_advantage",
    "length_adaptive_lambda",
    "length_weighted_advantage",
    "look_up",
    "mean_normalized_advantage",
    "moving_average_update",
    "optimal_token_advantage",
    "overlong_penalty",
    "pair_margin",
    "pass_k_advantage",
    "policy_gradient",
    "power_weight",
    "ppo_clip",
    "probability_gap",
    "resample",
    "row_max",
    "row_mean",
    "row_sum",
    "sampled_covariance",
    "sequence_log_ratio",
    "sequence_mean_of_token_mean",
    "sequence_mean_of_token_sum",
    "sequence_ratio",
    "singleton_score",
    "soft_gate_surrogate",
    "sppo_loss",
    "squared_error",
    "stale",
    "straight_through",
    "tapered_weight",
    "teacher_advantage",
    "token_kl",
    "token_mean",
    "token_ratio",
    "token_sum",
    "topk_forward_kl",
    "topk_reverse_kl",
    "truncated",
    "trusted_weight",
    "vtrace_advantage",
    "vtrace_target",
    "weighted_k2",
    "weighted_k3",
    "weighted_sum",
    "whiten",
    "whiten_rows",
    "whole_row_ratio",
    "win_rate_advantage",
]
