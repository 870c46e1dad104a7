"""Algorithms as pure functions of tensors.

    grpo, dapo, ppo, ...    one module per named algorithm, with its `Config` and its `algorithm(config)`
    algebra                 the types that an algorithm consists of, and the four functions that run one
    estimators              advantage estimators
    parts                   surrogates, weights, divergences, reductions, transforms, objectives, group statistics

The equations can be imported from this package, for use on any tensors:

>>> import torch
>>> from purerl.algos import ppo_clip
>>> ppo_clip(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([[3.0]]), clip_low=0.2, clip_high=0.28)
tensor([[-3.]])
"""

from __future__ import annotations

from purerl.algos.algebra import Counts
from purerl.algos.estimators.beta_normalization import beta_normalized_advantage
from purerl.algos.estimators.components import component_normalized_advantage, weighted_sum
from purerl.algos.estimators.difficulty import prompt_value
from purerl.algos.estimators.group_relative import (
    batch_normalized_advantage,
    best_of_group_advantage,
    gpg_advantage,
    group_centered_advantage,
    group_normalized_advantage,
    group_standardized_advantage,
    leave_one_out_advantage,
    length_weighted_advantage,
    mean_normalized_advantage,
    singleton_score,
    win_rate_advantage,
)
from purerl.algos.estimators.history import history_advantage
from purerl.algos.estimators.optimal_baseline import optimal_token_advantage
from purerl.algos.estimators.optimal_value import optimal_group_advantage, optimal_value
from purerl.algos.estimators.pass_k import leave_one_out_max_advantage, pass_k_advantage
from purerl.algos.estimators.ranking import ranked_advantage, win_rate, with_hacks_at_minimum
from purerl.algos.estimators.returns import (
    discounted_returns,
    gae,
    length_adaptive_lambda,
    vtrace_advantage,
    vtrace_target,
)
from purerl.algos.estimators.steps import spread_progress, step_relative_advantage
from purerl.algos.estimators.trackers import sum_by_entry, table_lookup, update_beta_counts, update_moving_average
from purerl.algos.parts import pair_losses
from purerl.algos.parts.actions import move_rewards_to_actions
from purerl.algos.parts.adaptive import adapt_entropy_coef, adapt_kl_coef
from purerl.algos.parts.corrections import (
    banded_ratio,
    effective_sample_size,
    off_policy_tokens,
    sequence_importance_ratio,
    truncated_ratio,
)
from purerl.algos.parts.distillation import prefix_weight, teacher_advantage, topk_forward_kl, topk_jsd, topk_reverse_kl
from purerl.algos.parts.divergences import (
    absolute_log_ratio,
    importance_k3,
    k1,
    k2,
    k3,
    kl_reward,
    on_policy_k3,
    straight_through,
    weighted_k2,
    weighted_k3,
)
from purerl.algos.parts.groups import (
    group_deviation,
    group_log_softmax,
    group_max,
    group_mean,
    group_size,
    group_sum,
    group_token_max,
    group_token_sum,
    prompt_weight,
)
from purerl.algos.parts.labels import kto_loss, mismatched_kl
from purerl.algos.parts.preferences import pair_log_ratios
from purerl.algos.parts.reductions import (
    constant_norm,
    sequence_mean_of_token_mean,
    sequence_mean_of_token_sum,
    token_mean,
    token_sum,
)
from purerl.algos.parts.regressions import advantage_regression, gvpo_loss, sppo_loss, target_cross_entropy
from purerl.algos.parts.resampling import best_weight, extreme_weight, power_weight, resample
from purerl.algos.parts.rows import at_last_action, broadcast_to_tokens, first_counted, row_max, row_mean, row_sum
from purerl.algos.parts.selection import (
    has_mean_in_range,
    has_variance,
    high_covariance_tokens,
    low_entropy_tokens,
    sampled_covariance_tokens,
    second_moment_outliers,
)
from purerl.algos.parts.shaping import overlong_penalty
from purerl.algos.parts.surrogates import (
    clip_high_indicator,
    clip_indicator,
    clip_low_indicator,
    clip_surrogate,
    dual_clip_surrogate,
    geometric_mean_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_log_ratio,
    sequence_ratio,
    smoothed_surrogate,
    soft_gate_surrogate,
    token_ratio,
)
from purerl.algos.parts.values import clipped_value_loss, squared_error
from purerl.algos.parts.weights import (
    asymmetric_weight,
    binary_kl,
    binary_tv,
    clipped_weight,
    complement_ratio,
    complement_weight,
    divergence_banded_weight,
    divergence_masked_weight,
    double_sided_weight,
    gamma_weight,
    gradient_preserving_weight,
    symmetric_binary_kl,
    tapered_weight,
    unbounded_positive_weight,
)
from purerl.algos.parts.whiten import whiten, whiten_rows

__all__ = [
    "Counts",
    "absolute_log_ratio",
    "adapt_entropy_coef",
    "adapt_kl_coef",
    "advantage_regression",
    "asymmetric_weight",
    "at_last_action",
    "banded_ratio",
    "batch_normalized_advantage",
    "best_of_group_advantage",
    "best_weight",
    "beta_normalized_advantage",
    "binary_kl",
    "binary_tv",
    "broadcast_to_tokens",
    "clip_high_indicator",
    "clip_indicator",
    "clip_low_indicator",
    "clip_surrogate",
    "clipped_value_loss",
    "clipped_weight",
    "complement_ratio",
    "complement_weight",
    "component_normalized_advantage",
    "constant_norm",
    "discounted_returns",
    "divergence_banded_weight",
    "divergence_masked_weight",
    "double_sided_weight",
    "dual_clip_surrogate",
    "effective_sample_size",
    "extreme_weight",
    "first_counted",
    "gae",
    "gamma_weight",
    "geometric_mean_ratio",
    "gpg_advantage",
    "gradient_preserving_weight",
    "group_centered_advantage",
    "group_deviation",
    "group_log_softmax",
    "group_max",
    "group_mean",
    "group_normalized_advantage",
    "group_size",
    "group_standardized_advantage",
    "group_sum",
    "group_token_max",
    "group_token_sum",
    "gvpo_loss",
    "has_mean_in_range",
    "has_variance",
    "high_covariance_tokens",
    "history_advantage",
    "importance_k3",
    "importance_surrogate",
    "k1",
    "k2",
    "k3",
    "kl_reward",
    "kto_loss",
    "leave_one_out_advantage",
    "leave_one_out_max_advantage",
    "length_adaptive_lambda",
    "length_weighted_advantage",
    "low_entropy_tokens",
    "mean_normalized_advantage",
    "mismatched_kl",
    "move_rewards_to_actions",
    "off_policy_tokens",
    "on_policy_k3",
    "optimal_group_advantage",
    "optimal_token_advantage",
    "optimal_value",
    "overlong_penalty",
    "pair_log_ratios",
    "pair_losses",
    "pass_k_advantage",
    "policy_gradient",
    "power_weight",
    "ppo_clip",
    "prefix_weight",
    "prompt_value",
    "prompt_weight",
    "ranked_advantage",
    "resample",
    "row_max",
    "row_mean",
    "row_sum",
    "sampled_covariance_tokens",
    "second_moment_outliers",
    "sequence_importance_ratio",
    "sequence_log_ratio",
    "sequence_mean_of_token_mean",
    "sequence_mean_of_token_sum",
    "sequence_ratio",
    "singleton_score",
    "smoothed_surrogate",
    "soft_gate_surrogate",
    "sppo_loss",
    "spread_progress",
    "squared_error",
    "step_relative_advantage",
    "straight_through",
    "sum_by_entry",
    "symmetric_binary_kl",
    "table_lookup",
    "tapered_weight",
    "target_cross_entropy",
    "teacher_advantage",
    "token_mean",
    "token_ratio",
    "token_sum",
    "topk_forward_kl",
    "topk_jsd",
    "topk_reverse_kl",
    "truncated_ratio",
    "unbounded_positive_weight",
    "update_beta_counts",
    "update_moving_average",
    "vtrace_advantage",
    "vtrace_target",
    "weighted_k2",
    "weighted_k3",
    "weighted_sum",
    "whiten",
    "whiten_rows",
    "win_rate",
    "win_rate_advantage",
    "with_hacks_at_minimum",
]
