"""Rewards: functions, a reward model, verl's own table of functions, and the penalty for long completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.rules.loss import OF_TOTAL
from purerl.porting.verl.values import Values, as_number, local_path

__all__ = ["overlong", "rewards"]

_MANAGERS = ("naive", "batch", "prime", "dapo", "gdpo", "limited")
_MODEL = "reward_model"


def rewards(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The reward of a completion, as verl's reward loop chooses it; an old name counts before the new one."""
    v = Values(values)
    if v.is_sft or (v.is_distillation and not v.is_on("distillation.distillation_loss.use_task_rewards")):
        return
    path = v.get("custom_reward_function.path", "reward.custom_reward_function.path")
    model = v.get("reward_model.model.path", "reward.reward_model.model_path")
    if v.is_on("reward_model.enable", "reward.reward_model.enable") and model is not None:
        yield Setting(f"roles.rewards.{_MODEL}.model", local_path(model), "a classifier; with `judge` a language model")
        if path is None:
            yield Setting("rewards", [{"role": _MODEL}])
    if path is not None:
        yield Setting("rewards", [_function(v, local_path(path))])
    elif not (v.is_on("reward_model.enable", "reward.reward_model.enable") and model is not None):
        yield Setting("rewards", [_table(v)], "chosen by data_source; 1 if an answer is correct, otherwise 0")
    manager = v.get("reward_model.reward_manager", "reward.reward_manager.name")
    if manager not in (None, *_MANAGERS):
        yield Missing("reward.reward_manager.name", f"there is no reward manager {manager}: write a reward function")


def _function(v: Values, path: str) -> Any:
    name = v.get("custom_reward_function.name", "reward.custom_reward_function.name") or "compute_score"
    function = f"{path}:{name}"
    arguments = v.table("custom_reward_function.reward_kwargs") or v.table(
        "reward.custom_reward_function.reward_kwargs"
    )
    return {"function": function, "kwargs": arguments} if arguments else function


def _table(v: Values) -> Any:
    url = v.get("reward_model.sandbox_fusion.url", "sandbox_fusion.url", "reward.sandbox_fusion.url")
    metric = v.get("algorithm.filter_groups.metric")
    is_named = v.is_on("algorithm.filter_groups.enable") and metric not in (None, *OF_TOTAL)
    name = {"name": str(metric)} if is_named else {}  # rollout.filter_metric names it
    if url is None:
        return {"kind": "verl", **name}
    limit = v.integer("reward_model.sandbox_fusion.memory_limit_mb", "sandbox_fusion.memory_limit_mb")
    limit = limit or v.integer("reward.sandbox_fusion.memory_limit_mb")
    memory = {"memory_limit_mb": limit} if limit else {}
    return {"kind": "verl", "functions": "verl", "sandbox_fusion_url": str(url), **memory, **name}


def overlong(values: Mapping[str, Any]) -> Iterator[Setting]:
    """The penalty of DAPO for completions that are nearly too long."""
    v = Values(values)
    for part in ("reward_model.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.overlong_buffer_cfg"):
        settings = {**v.table("reward_model.overlong_buffer"), **v.table(part)}
        length = int(as_number(f"{part}.len", settings.get("len")) or 0)
        if str(settings.get("enable")).lower() == "true" and length > 0 and not v.has_environment:
            yield Setting("rollout.overlong.buffer", min(length, v.integer("data.max_response_length") or length))
            yield Setting("rollout.overlong.factor", float(as_number(part, settings.get("penalty_factor")) or 1.0))
            return
