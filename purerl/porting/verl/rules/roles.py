"""The critic and the reference: settings that differ from those of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.rules.training import ACTOR, CRITIC, ModelPart, budget, engine_settings, optimizer_settings
from purerl.porting.verl.values import Values, local_path

__all__ = ["critic", "critic_batches", "reference"]

_PLACEHOLDER = "~/models/deepseek-llm-7b-chat"
"""The path of every model in verl's own files."""

_BATCH = "data.train_batch_size"
_OF_REFERENCE = ("mesh.", "max_", "cpu_offload", "reshard_after_forward")


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
    """The mini-batches and epochs of the critic, if they are not those of the policy."""
    v = Values(values)
    if not v.has_critic:
        return
    epochs, mini, batch = v.integer("critic.ppo_epochs"), v.integer("critic.ppo_mini_batch_size"), v.integer(_BATCH)
    if epochs not in (0, v.integer("actor.ppo_epochs")):
        yield Setting("roles.critic.ppo_epochs", epochs)
    if mini in (0, v.integer("actor.ppo_mini_batch_size")):
        return
    if batch % mini == 0:
        yield Setting("roles.critic.minibatch_size", mini)
    else:
        count = max(1, round(batch / mini))
        yield Setting("roles.critic.num_minibatches", count, f"{mini} does not divide {batch}")


def reference(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The reference, if there is a KL penalty."""
    v = Values(values)
    if not v.has_reference:
        return
    part = ModelPart("ref.fsdp_config", "ref.megatron", "actor.optim", "model", "ref")
    own, policy = _of_reference(v, part), _of_reference(v, ACTOR)
    own = [each for each in own if not each.key.endswith("_microbatch")]
    tokens, rows = v.integer("ref.log_prob_max_token_len_per_gpu"), "ref.log_prob_micro_batch_size"
    count = v.integer(f"{rows}_per_gpu") or v.integer(rows) // v.ranks
    sequence = max(1, v.integer("ref.ulysses_sequence_parallel_size"))
    size = budget(v, tokens if v.is_on("ref.log_prob_use_dynamic_bsz") else 0, count, sequence)
    yield from _different("roles.reference.trainer", [*own, size], policy)


def _of_reference(v: Values, part: ModelPart) -> list[Setting]:
    outcomes = engine_settings(v, part)
    return [each for each in outcomes if isinstance(each, Setting) and each.key.startswith(_OF_REFERENCE)]


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
