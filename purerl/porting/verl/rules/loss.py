"""Settings of the loss: clip ranges, reductions, penalties, filters and corrections."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.rules.algorithm import CLIPPED, has_dual_clip, kind_of
from purerl.porting.verl.values import Values

__all__ = ["OF_TOTAL", "corrections", "filtering", "loss", "penalties"]

_REDUCTIONS = {
    "token-mean": "token_mean",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "sequence_mean_of_token_mean",
    "seq-mean-token-sum": "sequence_mean_of_token_sum",
    "seq-mean-token-sum-norm": "constant_norm",
}
_ESTIMATORS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_OWN_REDUCTION = ("sapo", "gmpo", "opd", "opd_top_k")
_WITHOUT_LIMIT = 1000
OF_TOTAL = ("reward", "score", "seq_reward", "seq_final_reward")
"""Metrics by which groups are filtered that are the total reward."""


def loss(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The settings of the policy loss and of the critic's loss."""
    v = Values(values)
    kind = kind_of(v)
    if v.is_sft or v.is_distillation:
        return
    yield from _clipping(v, kind)
    yield from _reductions(v, kind)
    yield from _of_kind(v, kind)
    if kind in ("ppo", "pf_ppo"):
        yield Setting("algorithm.lambda_", v.decimal("algorithm.lam", 1.0))
        yield Setting("algorithm.value_clip", v.decimal("critic.cliprange_value", 0.5))
    if kind in ("ppo", "pf_ppo", "reinforce_plus_plus"):
        yield Setting("algorithm.discount", v.decimal("algorithm.gamma", 1.0))


def _clipping(v: Values, kind: str) -> Iterator[Setting | Missing]:
    names, both = CLIPPED.get(kind, ()), v.number("actor.clip_ratio")
    for name, side in zip(names, ("low", "high"), strict=bool(names)):
        value = v.number(f"actor.clip_ratio_{side}", "actor.clip_ratio")
        if value is not None:
            yield Setting(f"algorithm.{name}", float(value))
    if both is not None and both != v.number("actor.clip_ratio_low", "actor.clip_ratio"):
        why = "verl 0.9 reads clip_ratio_low and clip_ratio_high, which are 0.2 by default"
        yield Missing("actor_rollout_ref.actor.clip_ratio", why)
    dual = v.number("actor.clip_ratio_c")
    if dual is not None and kind in ("dppo", "dppo_kl"):
        yield Setting("algorithm.ratio_cap", float(dual))
    elif dual is not None and has_dual_clip(v):
        yield Setting("algorithm.dual_clip", float(dual))


def _reductions(v: Values, kind: str) -> Iterator[Setting | Missing]:
    for key, section in (("actor", "reduction"), ("critic", "critic_reduction")):
        mode = str(v.get(f"{key}.loss_agg_mode") or "token-mean")
        if mode not in _REDUCTIONS:
            yield Missing(v.full(f"{key}.loss_agg_mode"), f"there is no reduction {mode}")
        elif (key == "critic" and not v.has_critic) or kind in _OWN_REDUCTION:
            continue
        elif mode == "seq-mean-token-sum-norm":
            length = v.number(f"{key}.loss_scale_factor") or v.integer("data.max_response_length")
            yield Setting(f"algorithm.{section}.by", "constant_norm")
            yield Setting(f"algorithm.{section}.length", float(length), "verl divides by it, too")
        elif mode != "token-mean":
            yield Setting(f"algorithm.{section}", _REDUCTIONS[mode])


def _of_kind(v: Values, kind: str) -> Iterator[Setting | Missing]:
    loss = "actor.policy_loss."
    names: Mapping[str, Mapping[str, str]] = {
        "sapo": {"gate_positive": "actor.tau_pos", "gate_negative": "actor.tau_neg"},
        "clip_cov": {
            "fraction": f"{loss}clip_cov_ratio",
            "cov_low": f"{loss}clip_cov_lb",
            "cov_high": f"{loss}clip_cov_ub",
        },
        "kl_cov": {"top_fraction": f"{loss}kl_cov_ratio", "penalty_coef": f"{loss}ppo_kl_coef"},
        "dro": {"beta": f"{loss}dro_beta"},
        "pf_ppo": {"power": "algorithm.pf_ppo.weight_pow"},
    }
    for name, key in names.get(kind, {}).items():
        if (value := v.number(key)) is not None:
            yield Setting(f"algorithm.{name}", float(value))
    method = v.get("algorithm.pf_ppo.reweight_method")
    if kind == "pf_ppo" and method not in (None, "pow"):
        yield Missing("algorithm.pf_ppo.reweight_method", "pf_ppo has the method pow")


# --- penalties -----------------------------------------------------------------------------------------------------


def penalties(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The entropy bonus, and the KL penalty in the loss or in the reward."""
    v = Values(values)
    if v.is_sft or v.is_distillation:
        return
    if coef := v.number("actor.entropy_coeff"):
        yield Setting("algorithm.entropy_bonus", float(coef))
    if v.is_on("actor.use_kl_loss"):
        yield Setting("algorithm.kl_loss.coef", v.decimal("actor.kl_loss_coef", 0.0))
        yield from _estimator(v, "actor.kl_loss_type", "algorithm.kl_loss")
    if v.is_on("algorithm.use_kl_in_reward"):
        yield from _kl_in_reward(v)


def _kl_in_reward(v: Values) -> Iterator[Setting | Missing]:
    coef, is_field = v.decimal("algorithm.kl_ctrl.kl_coef", 0.0), kind_of(v) == "reinforce_plus_plus"
    if is_field:
        yield Setting("algorithm.kl_reward", coef)
        if str(v.get("algorithm.kl_penalty")) not in ("kl", "k1"):
            yield Missing("algorithm.kl_penalty", "reinforce_plus_plus has the estimator k1")
        return
    yield Setting("algorithm.kl_reward.coef", coef)
    yield from _estimator(v, "algorithm.kl_penalty", "algorithm.kl_reward")
    if v.get("algorithm.kl_ctrl.type") == "adaptive":
        comment = "verl's target is a mean over the tokens of a row, here it is a sum"
        yield Setting("algorithm.kl_reward.target", v.decimal("algorithm.kl_ctrl.target_kl", 0.1), comment)
        yield Setting("algorithm.kl_reward.horizon", v.decimal("algorithm.kl_ctrl.horizon", 10000.0))


def _estimator(v: Values, name: str, key: str) -> Iterator[Setting | Missing]:
    value = str(v.get(name))
    if value.endswith("+") and _ESTIMATORS.get(value[:-1]) not in ("k2", None) and key.endswith("kl_loss"):
        yield Setting(f"{key}.estimator", "straight_through", "the gradient of k2")
    elif value.rstrip("+") in _ESTIMATORS:
        estimator = _ESTIMATORS[value.rstrip("+")]
        yield Setting(f"{key}.estimator", estimator, "verl clamps it at 10" if estimator == "k3" else "")
    else:
        yield Missing(v.full(name), f"there is no estimate {value} of the KL divergence")


# --- filters -------------------------------------------------------------------------------------------------------


def filtering(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """Groups that are not kept, and how often they are replaced."""
    v = Values(values)
    groups, batch, generated = (
        "algorithm.filter_groups.",
        v.integer("data.train_batch_size"),
        v.number("data.gen_batch_size"),
    )
    if not v.is_on(f"{groups}enable"):
        if generated not in (None, batch) and not v.is_sft:
            yield Missing("data.gen_batch_size", "without a filter, as many prompts are sampled as are trained")
        return
    yield Setting("algorithm.group_filter", True)  # noqa: FBT003 - the value
    batches = v.integer(f"{groups}max_num_gen_batches")
    rounds, comment = (max(1, batches - 1), "") if batches > 0 else (_WITHOUT_LIMIT, "verl has no limit")
    yield Setting("rollout.max_resample_rounds", rounds, comment)
    if generated not in (None, batch):
        yield Setting("rollout.gen_batch_size", int(generated))
    metric = v.get(f"{groups}metric")
    if metric not in (None, *OF_TOTAL):
        yield Setting("rollout.filter_metric", str(metric), "a component of the reward of this name")


# --- corrections ---------------------------------------------------------------------------------------------------

_REJECTED = re.compile(r"(token|seq_sum|seq_mean|seq_max)_(k[123])")


def corrections(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """Weights and rejections for the difference of the trainer and the generator."""
    v, part = Values(values), "algorithm.rollout_correction."
    if v.is_on(f"{part}bypass_mode", "actor.use_rollout_log_probs"):
        if v.get(f"{part}loss_type") == "reinforce":
            yield Missing(f"{part}loss_type", "the ratio to the rollout policy is clipped as in PPO")
        yield Setting("algorithm.bypass", True)  # noqa: FBT003 - the value
    if level := v.get(f"{part}rollout_is", "algorithm.rollout_is_level"):
        yield from _weights(v, str(level))
    if modes := v.get(f"{part}rollout_rs"):
        yield from _rejections(str(modes), str(v.get(f"{part}rollout_rs_threshold") or ""))


def _weights(v: Values, level: str) -> Iterator[Setting | Missing]:
    part = "algorithm.rollout_correction."
    if level not in ("token", "sequence"):
        yield Missing(f"{part}rollout_is", f"weights are of tokens or of sequences, not of {level}")
        return
    bounds = _bounds(str(v.get(f"{part}rollout_is_threshold", "algorithm.rollout_is_threshold") or 2.0))
    yield Setting("algorithm.importance_weight.level", level)
    if len(bounds) == 2:
        yield Setting("algorithm.importance_weight.how", "band")
        yield Setting("algorithm.importance_weight.min_ratio", bounds[0])
    yield Setting("algorithm.importance_weight.max_ratio", bounds[-1] if bounds else 2.0)
    if v.is_on(f"{part}rollout_is_batch_normalize"):
        yield Setting("algorithm.importance_weight.normalize", True)  # noqa: FBT003 - the value


def _rejections(modes: str, threshold: str) -> Iterator[Setting | Missing]:
    part = "algorithm.rollout_correction."
    first, *others = [mode.strip() for mode in modes.split(",") if mode.strip()]
    match, bounds = _REJECTED.fullmatch(first), _bounds(threshold.split(",", maxsplit=1)[0])
    if match is None or not bounds:
        yield Missing(
            f"{part}rollout_rs", f"there is no rejection by {first}, with the threshold {threshold or 'none'}"
        )
        return
    if others:
        yield Missing(f"{part}rollout_rs", f"one rejection at a time: {first} is written, without {', '.join(others)}")
    level, measure = match[1].replace("seq", "row"), match[2]
    yield Setting("algorithm.rejection.level", level)
    yield Setting("algorithm.rejection.measure", measure)
    if measure == "k1":
        low, high = (bounds[0], bounds[-1]) if len(bounds) == 2 else (1 / bounds[0], bounds[0])
        yield Setting("algorithm.rejection.min_value", -round(math.log(high), 6), "minus the logarithm of verl's ratio")
        yield Setting("algorithm.rejection.max_value", -round(math.log(low), 6), "minus the logarithm of verl's ratio")
    else:
        yield Setting("algorithm.rejection.max_value", bounds[-1])


def _bounds(text: str) -> list[float]:
    """The numbers of a threshold: HIGH, or LOW_HIGH."""
    parts = text.strip().split("_")
    try:
        return [float(part) for part in parts if float(part) > 0]
    except ValueError:
        return []
