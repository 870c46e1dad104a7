"""The algorithm: advantages and losses of verl, as presets and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from purerl.config.presets import expand
from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.values import Values

__all__ = ["CLIPPED", "algorithm", "distillation", "has_dual_clip", "kind_of"]

_ADVANTAGES = {
    "gae": "ppo",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "opo": "opo",
    "optimal_token_baseline": "otb",
    "tir_optimal_token_baseline": "otb",
    "grpo_passk": "pass_k_leave_one_out",
    "gdpo": "gdpo",
    "gpg": "gpg",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
_LOSSES = {
    "gspo": "gspo",
    "sapo": "sapo",
    "cispo": "cispo",
    "geo_mean": "gmpo",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo_kl",
    "dro": "dro",
    "gpg": "gpg",
}
_WITHOUT_PRESET = {"gpg", "clip_cov", "pf_ppo", "opd", "opd_top_k"}
_PLAIN = ("vanilla", "bypass_mode")
_GROUPS = ("grpo", "grpo_vectorized")

CLIPPED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("ppo", "pf_ppo", "grpo", "dr_grpo", "gdpo"), ("clip_low", "clip_high")),
    **dict.fromkeys(("reinforce_plus_plus", "reinforce_plus_plus_baseline"), ("clip_low", "clip_high")),
    **dict.fromkeys(("gspo", "cispo", "clip_cov"), ("clip_low", "clip_high")),
    "gmpo": ("log_clip_low", "log_clip_high"),
    **dict.fromkeys(("dppo", "dppo_kl"), ("divergence_low", "divergence_high")),
    **dict.fromkeys(
        ("rloo", "remax", "opo", "otb", "pass_k_leave_one_out"),
        ("clipped_surrogate.clip_low", "clipped_surrogate.clip_high"),
    ),
}
"""The settings that bound the change of the policy, by algorithm."""


def kind_of(v: Values) -> str:
    """The algorithm without the name of its preset."""
    if v.is_sft:
        return "sft"
    if v.is_distillation:
        return "opd" if v.is_on("distillation.distillation_loss.use_policy_gradient") else "opd_top_k"
    own = _own_name(v)
    if own:
        return expand({"kind": own})["kind"] if "@" in own else own
    advantage, loss = _ADVANTAGES.get(str(v.get("algorithm.adv_estimator")), "grpo"), _loss(v)
    if advantage == "ppo" and v.is_on("algorithm.use_pf_ppo"):
        return "pf_ppo"
    if loss in _LOSSES and v.get("algorithm.adv_estimator") in (*_GROUPS, "gpg", "rloo", "rloo_vectorized"):
        return _LOSSES[loss]
    return "dr_grpo" if advantage == "grpo" and not _divides_by_std(v) else advantage


def has_dual_clip(v: Values) -> bool:
    """Whether the loss is PPO's, whose ratios `clip_ratio_c` bounds."""
    return not v.is_distillation and _loss(v) not in _LOSSES and _own_name(v) is None and kind_of(v) != "gpg"


def _own_name(v: Values) -> str | None:
    """The algorithm of purerl that verl runs by its plugin, such as purerl:rloo."""
    names = [str(v.get("algorithm.adv_estimator")), _loss(v)]
    found = [name.removeprefix("purerl:") for name in names if name.startswith("purerl:")]
    return found[-1] if found else None


def _loss(v: Values) -> str:
    return str(v.get("actor.policy_loss.loss_mode") or "vanilla")


def _divides_by_std(v: Values) -> bool:
    return v.get("algorithm.norm_adv_by_std_in_grpo") is None or v.is_on("algorithm.norm_adv_by_std_in_grpo")


def algorithm(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """`adv_estimator` and `loss_mode` as the kind of the algorithm, and its advantages where the loss has others."""
    v = Values(values)
    if v.is_distillation:
        return
    kind, own = kind_of(v), _own_name(v)
    yield Setting("algorithm.kind", own or (kind if v.is_sft or kind in _WITHOUT_PRESET else f"{kind}@verl"))
    if not v.is_sft and own is None:
        yield from _advantages(v, kind)
        yield from _without_counterpart(v, kind)


def _advantages(v: Values, kind: str) -> Iterator[Setting]:
    estimator = str(v.get("algorithm.adv_estimator"))
    if kind in _LOSSES.values() and kind != "gpg":
        if estimator.startswith("rloo"):
            yield Setting("algorithm.advantage_scale.by", "none")
            yield Setting("algorithm.advantage_scale.baseline", "leave_one_out", "the advantages of RLOO")
        elif not _divides_by_std(v):
            yield Setting("algorithm.advantage_scale.by", "none")


def _without_counterpart(v: Values, kind: str) -> Iterator[Missing]:
    estimator, loss = str(v.get("algorithm.adv_estimator")), _loss(v)
    if estimator not in _ADVANTAGES:
        yield Missing("algorithm.adv_estimator", f"there is no {estimator}: {kind} is written instead")
    if estimator == "tir_optimal_token_baseline":
        yield Missing("algorithm.adv_estimator", "the baseline is that of each turn in verl, here that of each token")
    if loss not in (*_LOSSES, *_PLAIN):
        yield Missing("actor_rollout_ref.actor.policy_loss.loss_mode", f"there is no loss {loss}")
    elif loss in _LOSSES and kind not in _LOSSES.values():
        yield Missing("actor_rollout_ref.actor.policy_loss.loss_mode", f"{loss} with the advantages of {estimator}")
    if v.is_on("critic.enable") and not v.has_critic:
        yield Missing("critic.enable", f"{kind} has no critic")
    if v.is_on("algorithm.use_pf_ppo") and kind != "pf_ppo":
        yield Missing("algorithm.use_pf_ppo", f"{kind} draws no rows by their scores")


def distillation(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """A teacher, and the loss of its log-probabilities."""
    v = Values(values)
    if not v.is_distillation:
        return
    loss, kind = "distillation.distillation_loss", kind_of(v)
    yield Setting("algorithm.kind", kind)
    coef = v.number(f"{loss}.distillation_loss_coef")
    if kind == "opd":
        yield Setting("algorithm.distillation_coef", float(1 if coef is None else coef))
        yield Setting("algorithm.reward_coef", float(v.is_on(f"{loss}.use_task_rewards")))
    elif v.integer(f"{loss}.topk"):
        yield Setting("roles.teacher.trainer.top_k", v.integer(f"{loss}.topk"))
    yield from _teachers(v)


def _teachers(v: Values) -> Iterator[Setting | Missing]:
    below = v.table("distillation.teacher_models")
    names = [key.removesuffix(".model_path") for key, value in below.items() if key.endswith(".model_path") and value]
    for name in names:
        role = "roles.teacher" if len(names) == 1 else f"roles.teachers.{below.get(f'{name}.key') or name}"
        yield Setting(f"{role}.model", str(below[f"{name}.model_path"]))
    key = v.get("distillation.teacher_key")
    if len(names) > 1 and key not in (None, "data_source"):
        yield Setting("data.columns.data_source", str(key), "the name of each row's teacher")
