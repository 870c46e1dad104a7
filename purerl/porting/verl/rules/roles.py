"""The critic and the reference: settings that differ from those of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.rules.training import ACTOR, CRITIC, Part, engine_settings, optimizer_settings
from purerl.porting.verl.values import Values, local_path

__all__ = ["critic", "critic_batches", "reference"]

_PLACEHOLDER = "~/models/deepseek-llm-7b-chat"
"""The path of every model in verl's own files."""

_OF_REFERENCE = ("mesh.", "max_tokens_per_microbatch", "cpu_offload", "reshard_after_forward")


_OFF: Mapping[str, Any] = {
    "cpu_offload": False,
    "optimizer_offload": False,
    "packing": False,
    "share_prefixes": False,
    "recompute": "none",
    "mesh.sequence": 1,
    "mesh.sequence_parallel": False,
    "lr_scheduler": "constant",
    "min_lr_ratio": 0.0,
    "warmup_steps": 0,
    "warmup_ratio": 0.0,
}
"""Values of settings that the policy has, and another role has not."""


def critic(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The critic, whose trainer has the settings of the policy's unless they are set."""
    v = Values(values)
    if not v.has_critic:
        return
    path = v.get("critic.model.path")
    if path not in (None, _PLACEHOLDER, v.get("model.path")):
        yield Setting("roles.critic.model", local_path(path))
    own = [*engine_settings(v, CRITIC), *optimizer_settings(v, CRITIC)]
    policy = [*engine_settings(v, ACTOR), *optimizer_settings(v, ACTOR)]
    yield from _different("roles.critic.trainer", own, policy)


def critic_batches(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The mini-batches and epochs of the critic, which are those of the policy."""
    v = Values(values)
    for name in ("ppo_mini_batch_size", "ppo_epochs") if v.has_critic else ():
        own, policy = v.number(f"critic.{name}"), v.number(f"actor.{name}")
        if own not in (None, policy):
            yield Missing(f"critic.{name}", f"the critic has the same as the policy: {policy}")


def reference(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The reference, if there is a KL penalty."""
    v = Values(values)
    if not v.has_reference:
        return
    part = Part("ref.fsdp_config", "ref.megatron", "actor.optim", "model", "ref")
    own = [_with_budget(v, each) for each in engine_settings(v, part) if isinstance(each, Setting)]
    policy = [each for each in engine_settings(v, ACTOR) if isinstance(each, Setting)]
    kept, shared = ([each for each in some if each.key.startswith(_OF_REFERENCE)] for some in (own, policy))
    yield from _different("roles.reference.trainer", kept, shared)


def _with_budget(v: Values, setting: Setting) -> Setting:
    """`setting`; the size of micro-batches is that of the settings of the reference."""
    if setting.key != "max_tokens_per_microbatch":
        return setting
    rows = v.integer("ref.log_prob_micro_batch_size_per_gpu") or v.integer("ref.log_prob_micro_batch_size") // v.ranks
    tokens = v.integer("ref.log_prob_max_token_len_per_gpu")
    is_dynamic = v.is_on("ref.log_prob_use_dynamic_bsz") and tokens
    value = max(tokens, v.row_tokens) if is_dynamic else max(1, rows) * v.row_tokens
    comment = "" if is_dynamic else f"{max(1, rows)} row{'s' * (rows > 1)} of {v.row_tokens} tokens"
    return Setting(setting.key, value * max(1, v.integer("ref.ulysses_sequence_parallel_size")), comment)


def _different(
    section: str, own: Iterable[Setting | Missing], policy: Iterable[Setting | Missing]
) -> Iterator[Setting | Missing]:
    """Those of the settings `own` that the policy has not, below `section`."""
    shared = {each.key: each.value for each in policy if isinstance(each, Setting)}
    mine = [each for each in own if isinstance(each, Setting)]
    # A trainer with a kind inherits nothing: so it can leave out what the policy has.
    is_apart = any(key.startswith("lora.") for key in shared) and not any(each.key.startswith("lora.") for each in mine)
    if is_apart and section.endswith("critic.trainer"):
        yield Setting(f"{section}.kind", "hf", "without the adapter of the policy")
    for each in own:
        if isinstance(each, Missing) or is_apart or shared.get(each.key) != each.value:
            yield each if isinstance(each, Missing) else each._replace(key=f"{section}.{each.key}")
    for key in shared.keys() - {each.key for each in mine} if not is_apart else ():
        if key in _OFF and not (key.startswith("warmup") and any(each.key.startswith("warmup") for each in mine)):
            yield Setting(f"{section}.{key}", _OFF[key], "other than the policy's")
