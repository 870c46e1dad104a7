"""Rules for the algorithm: losses, advantages, penalties, and the reference model that follows the policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.trl.fields import Fields

__all__ = ["LOSS_RULES"]

Outcomes = Iterator[Setting | Missing]
Values = Mapping[str, Any]

_PRESETS = {
    "dapo": "grpo@trl",
    "bnpo": "bnpo@trl",
    "grpo": "grpo_paper@trl",
    "dr_grpo": "dr_grpo@trl",
    "cispo": "cispo@trl",
    "sapo": "sapo@trl",
    "vespo": "vespo@trl",
}
"""Presets by `loss_type`, with ratios of tokens."""

_OF_SEQUENCES = {**dict.fromkeys(("dapo", "bnpo", "grpo", "dr_grpo"), "gspo@trl"), "luspo": "luspo@trl"}
"""Presets by `loss_type`, with ratios of whole rows."""

_CLIPPED = ("dapo", "bnpo", "grpo", "dr_grpo", "luspo")
_SETTINGS_OF = {
    "sapo": {"gate_positive": "sapo_temperature_pos", "gate_negative": "sapo_temperature_neg"},
    "vespo": {
        "power_positive": "vespo_k_pos",
        "decay_positive": "vespo_lambda_pos",
        "power_negative": "vespo_k_neg",
        "decay_negative": "vespo_lambda_neg",
    },
}


def _grpo(values: Values) -> Outcomes:
    fields = Fields(values)
    loss, level = fields["loss_type"], fields["importance_sampling_level"]
    preset = (_OF_SEQUENCES if level == "sequence" else _PRESETS).get(loss)
    if preset is None:
        yield Missing(fields.name("loss_type"), f"there is no {loss!r} with ratios of a {level}")
        return
    yield Setting("algorithm.kind", preset, f"loss_type {loss}" + (" of sequences" if level == "sequence" else ""))
    yield from _clipping(fields, loss)
    yield from _reduction(fields, loss, preset)
    yield from _scale(fields, preset)
    for key, field in _SETTINGS_OF.get(loss, {}).items():
        yield Setting(f"algorithm.{key}", fields[field])
    if fields["multi_objective_aggregation"] == "normalize_then_sum":
        weights = fields["reward_weights"]
        yield Setting("algorithm.component_normalization.by", "group")
        if isinstance(weights, Sequence):
            yield Setting("algorithm.component_normalization.weights", [float(weight) for weight in weights])


def _clipping(fields: Fields, loss: str) -> Outcomes:
    low, high = fields["epsilon"], fields["epsilon_high"]
    high = low if high is None else high
    if loss in _CLIPPED:
        yield Setting("algorithm.clip_low", float(low))
        yield Setting("algorithm.clip_high", float(high))
    elif loss == "cispo" and high >= 1:
        yield Setting("algorithm.clip_high", high - 1.0, f"the weight is at most {high:g}")
    elif loss == "cispo":
        yield Missing(fields.name("epsilon_high"), f"no weight is above {high:g} in TRL; here the bound is at least 1")
    if fields["delta"] is not None:
        yield Setting("algorithm.dual_clip.ratio", float(fields["delta"]))


def _reduction(fields: Fields, loss: str, preset: str) -> Outcomes:
    if preset == "gspo@trl" and loss in ("dapo", "bnpo"):
        yield Setting("algorithm.reduction.by", "token_mean")
    if loss == "dr_grpo":
        if preset == "gspo@trl":
            yield Setting("algorithm.reduction.by", "constant_norm")
        yield Setting("algorithm.reduction.length", float(fields["max_completion_length"]), "max_completion_length")


def _scale(fields: Fields, preset: str) -> Outcomes:
    given = {True: "group", False: "none"}.get(fields["scale_rewards"], fields["scale_rewards"])
    by = {"group": "group_std", "batch": "batch_std", "none": "none"}.get(given)
    default = "none" if preset == "dr_grpo@trl" else "group_std"
    if by is None:
        yield Missing(fields.name("scale_rewards"), f"there is no scale {given!r}")
    elif by != default:
        yield Setting("algorithm.advantage_scale.by", by)
        comment = "" if by != "none" else "the default, which has no effect, in place of the preset's"
        yield Setting("algorithm.advantage_scale.eps", 1e-4 if by != "none" else 1e-6, comment)


def _kl(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["beta"]:
        yield Setting("algorithm.kl_loss.coef", float(fields["beta"]))
        if not fields["use_bias_correction_kl"]:
            yield Setting("algorithm.kl_loss.estimator", "k3")


def _sync(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["sync_ref_model"] and (fields["beta"] or not fields.samples):
        steps, loop = fields["ref_model_sync_steps"], fields.steps_per_loop
        yield Setting("roles.reference.update_every", max(1, round(steps / loop)), f"{steps} optimizer steps")
        yield Setting("roles.reference.update_mix", float(fields["ref_model_mixup_alpha"]))


def _entropy(values: Values) -> Outcomes:
    fields = Fields(values)
    coef, adapts = fields["entropy_coef"], fields["use_adaptive_entropy"]
    if coef or adapts:
        yield Setting("algorithm.entropy_bonus.coef", float(coef))
    if adapts:
        yield Setting("algorithm.entropy_bonus.target", float(fields["entropy_target"]))
        yield Setting("algorithm.entropy_bonus.step_size", float(fields["entropy_coef_delta"]))
        yield Setting("algorithm.entropy_bonus.max_coef", float(fields["entropy_coef_max"]))


def _correction(values: Values) -> Outcomes:
    fields = Fields(values)
    if not (fields["use_vllm"] and fields["vllm_importance_sampling_correction"]):
        return
    if fields["loss_type"] == "vespo":
        why = "vespo has the rollout policy in its own weight"
        yield Missing(fields.name("vllm_importance_sampling_correction"), why)
        return
    level, _, how = fields["vllm_importance_sampling_mode"].partition("_")
    low, cap = fields["vllm_importance_sampling_clip_min"], fields["vllm_importance_sampling_cap"]
    high = fields["vllm_importance_sampling_clip_max"] if cap is None else cap
    how = "band" if how == "mask" else "truncate" if low is None else "clamp"
    yield Setting("algorithm.importance_weight.level", level, "TRL's correction of the mismatch to vLLM")
    yield Setting("algorithm.importance_weight.how", how)
    yield Setting("algorithm.importance_weight.max_ratio", math.inf if high is None else float(high))
    if low is not None:
        yield Setting("algorithm.importance_weight.min_ratio", float(low))


# --- SFT and DPO --------------------------------------------------------------------------------------------------


def _all_tokens(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["completion_only_loss"] is False:
        yield Missing(fields.name("completion_only_loss"), "prompts are not trained on, only completions")
    elif not fields["assistant_only_loss"] and not fields["completion_only_loss"]:
        why = "unless it is True, TRL trains on all tokens of a column `messages`, and purerl on those"
        yield Missing(fields.name("assistant_only_loss"), f"{why} of the assistant")


_PAIR_LOSSES = ("sigmoid", "hinge", "exo_pair", "nca_pair", "bco_pair", "sppo_hard")
_PAIR_LOSSES += ("apo_zero", "apo_down", "discopop")
_ALONE = ("ipo", "sigmoid_norm", "robust", "aot", "aot_unpaired")
"""Loss types that change more than the function of the margin, so that they are not added to others."""


def _dpo(values: Values) -> Outcomes:
    fields = Fields(values)
    given = fields["loss_type"]
    kinds = [given] if isinstance(given, str) else list(given)
    weights = dict(zip(kinds, fields["loss_weights"] or [1.0] * len(kinds), strict=False))
    pairs = [kind for kind in kinds if kind != "sft"]
    alone = [kind for kind in pairs if kind in _ALONE]
    unknown = [kind for kind in pairs if kind not in (*_ALONE, *_PAIR_LOSSES)]
    if unknown or (alone and len(pairs) > 1) or not pairs:
        why = f"there is no sum of these losses: {', '.join(kinds)}"
        yield Missing(fields.name("loss_type"), why)
        return
    yield from _alone(pairs[0], float(fields["label_smoothing"])) if alone else _pairs(fields, pairs, weights)
    yield Setting("algorithm.beta", float(fields["beta"]))
    if "sft" in kinds:
        yield Setting("algorithm.nll_loss.coef", float(weights["sft"]))


def _alone(kind: str, smoothing: float) -> Outcomes:
    yield Setting("algorithm.kind", "ipo@trl" if kind == "ipo" else "dpo@trl", f"loss_type {kind}")
    if kind == "sigmoid_norm":
        yield Setting("algorithm.length_normalization", value=True)
    if kind in ("aot", "aot_unpaired"):
        yield Setting("algorithm.rank_matching.of", "margins" if kind == "aot" else "completions")
    if smoothing and kind in ("robust", "aot", "aot_unpaired"):
        yield Setting("algorithm.label_smoothing.smoothing", smoothing)
    if smoothing and kind == "robust":
        yield Setting("algorithm.label_smoothing.robust", value=True)


def _pairs(fields: Fields, pairs: Sequence[str], weights: Mapping[str, float]) -> Outcomes:
    yield Setting("algorithm.kind", "dpo@trl", f"loss_type {', '.join(pairs)}")
    if [*pairs] != ["sigmoid"]:
        yield Setting("algorithm.losses", [*pairs])
    if any(weights[kind] != 1 for kind in pairs):
        yield Setting("algorithm.weights", [float(weights[kind]) for kind in pairs])
    if "exo_pair" in pairs and fields["label_smoothing"]:
        yield Setting("algorithm.exo_smoothing", float(fields["label_smoothing"]))
    if "discopop" in pairs:
        yield Setting("algorithm.discopop_tau", float(fields["discopop_tau"]))


LOSS_RULES = {
    "grpo": _grpo,
    "kl": _kl,
    "sync": _sync,
    "entropy": _entropy,
    "correction": _correction,
    "all_tokens": _all_tokens,
    "dpo": _dpo,
}
"""The rules of this module by the names that purerl/config/aliases/trl_answers.toml has."""
