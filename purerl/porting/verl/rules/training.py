"""The settings of a trainer: engine, mesh, precision, memory, micro-batches, LoRA and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.values import Values, as_number, local_path

__all__ = ["ACTOR", "CRITIC", "ModelPart", "budget", "engine_settings", "optimizer", "optimizer_settings", "trainer"]

_DTYPES = {"fp32": "float32", "float32": "float32", "float": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
_RECOMPUTE = {"full": "layers", "selective": "selective"}
_SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "linear", "inverse_square_root": "inverse_sqrt"}
_SCHEDULES |= {"inverse-square-root": "inverse_sqrt", "WSD": "warmup_stable_decay", "wsd": "warmup_stable_decay"}


class ModelPart(NamedTuple):
    """The short names of the settings of one model: its engine, its optimizer, its model, and its micro-batches."""

    fsdp: str
    megatron: str
    optim: str
    model: str
    batches: str


ACTOR = ModelPart("actor.fsdp_config", "actor.megatron", "actor.optim", "model", "actor")
CRITIC = ModelPart("critic.fsdp", "critic.megatron", "critic.optim", "critic.model", "critic")


def trainer(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The engine that trains the policy, without its optimizer."""
    v = Values(values)
    yield Setting("trainer.kind", "megatron" if v.is_megatron else "hf")
    for outcome in engine_settings(v, ACTOR):
        yield outcome if isinstance(outcome, Missing) else outcome._replace(key=f"trainer.{outcome.key}")
    engine = v.get(f"{ACTOR.megatron}.dtype", f"{ACTOR.fsdp}.model_dtype") if v.is_megatron else _weights(v, ACTOR)
    if engine and (dtype := _DTYPES.get(str(engine))):
        yield Setting("model.dtype", dtype)
    elif engine:
        yield Missing(v.full(f"{ACTOR.fsdp}.model_dtype"), f"weights are float32 or bfloat16, not {engine}")
    if v.is_on("actor.freeze_vision_tower") and not v.is_megatron:
        yield Setting("trainer.freeze", ["vision"])
    ranks = v.integer("trainer.n_gpus_per_node")
    if ranks > 1:
        several = f"on each of {v.integer('trainer.nnodes')} hosts, by torchrun or srun" if v.ranks > ranks else ""
        yield Setting("placement.ranks", ranks, several)


def _weights(v: Values, part: ModelPart) -> Any:
    return v.get(f"{part.fsdp}.model_dtype", f"{part.model}.torch_dtype", f"{part.model}.fsdp_config.model_dtype")


def engine_settings(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    """The settings below the trainer of one model: memory, micro-batches, mesh and LoRA, without the optimizer."""
    yield from _microbatches(v, part)
    yield from _lora(v, part)
    if v.is_megatron:
        yield from _of_megatron(v, part)
    else:
        yield from _of_fsdp(v, part)


def _microbatches(v: Values, part: ModelPart) -> Iterator[Setting]:
    if part is ACTOR and v.is_sft:
        names = ("data.use_dynamic_bsz", "data.max_token_len_per_gpu", "data.micro_batch_size")
    else:
        names = (f"{part.batches}.use_dynamic_bsz", f"{part.batches}.ppo_max_token_len_per_gpu", "")
        names = (*names[:2], f"{part.batches}.ppo_micro_batch_size")
    tokens, rows = v.integer(names[1]), v.integer(f"{names[2]}_per_gpu") or v.integer(names[2]) // v.ranks
    yield budget(v, tokens if v.is_on(names[0]) else 0, rows, _sequence(v, part))


def budget(v: Values, tokens: int, rows: int, sequence: int) -> Setting:
    """The size of micro-batches: the `tokens` of each of `sequence` ranks that divide a row, or if 0, the `rows`."""
    if not tokens:
        return Setting("max_rows_per_microbatch", max(1, rows))
    return Setting("max_tokens_per_microbatch", max(tokens * sequence, v.row_tokens))


def _sequence(v: Values, part: ModelPart) -> int:
    """The ranks that divide the positions of a row."""
    if v.is_megatron:
        return max(1, v.integer(f"{part.megatron}.context_parallel_size"))
    name = "ulysses_sequence_parallel_size"
    return max(1, v.integer(f"{part.batches}.{name}"), v.integer(f"{part.fsdp}.{name}"), v.integer(name))


def _lora(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    model = part.model
    own, other = v.integer(f"{model}.lora_rank"), v.integer(f"{model}.lora.rank")
    if not (own or other):
        return
    if v.is_megatron:
        yield Missing(v.full(f"{model}.{'lora_rank' if own else 'lora.rank'}"), "the trainer `megatron` has no LoRA")
        return
    yield Setting("lora.rank", own or other)
    yield Setting("lora.alpha", float(v.number(f"{model}.lora_alpha" if own else f"{model}.lora.alpha") or 16))
    modules = v.texts(f"{model}.target_modules" if own else f"{model}.lora.target_modules")
    yield Setting("lora.target_modules", ["all-linear"] if "all-linear" in modules or not own else modules)
    if path := v.get(f"{model}.lora_adapter_path", f"{model}.lora.adapter_path"):
        yield Setting("lora.initial", local_path(path))


# --- FSDP ----------------------------------------------------------------------------------------------------------


def _of_fsdp(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    sequence, size = _sequence(v, part), v.integer(f"{part.fsdp}.fsdp_size")
    shard = max(1, (size if 0 < size < v.ranks else v.ranks) // sequence)
    if shard > 1:
        yield Setting("mesh.shard", shard, "" if 0 < size < v.ranks else "verl divides models among all ranks")
    if sequence > 1:
        yield Setting("mesh.sequence", sequence)
    if shard * sequence > 1:
        yield from _offload(v, part)
    narrow = _DTYPES.get(str(_weights(v, part))) == "bfloat16"
    computed = v.get(f"{part.fsdp}.dtype", f"{part.fsdp}.mixed_precision.param_dtype")
    if computed is not None and _DTYPES.get(str(computed)) is None:
        yield Missing(v.full(f"{part.fsdp}.dtype"), f"computation is in bfloat16 or float32, not in {computed}")
    elif not narrow:
        yield Setting("mixed_precision", "bfloat16" if _DTYPES.get(str(computed)) == "bfloat16" else "off")
    if v.is_on(f"{part.model}.enable_gradient_checkpointing"):
        yield Setting("recompute", "layers")
    shares = part is ACTOR and v.is_on("actor.use_prefix_grouper")
    if shares:
        yield Setting("share_prefixes", True)  # noqa: FBT003 - the value
    elif v.is_on(f"{part.model}.use_remove_padding", "use_remove_padding"):
        yield Setting("packing", True)  # noqa: FBT003 - the value


def _offload(v: Values, part: ModelPart) -> Iterator[Setting]:
    old = f"{part.model}.fsdp_config"
    names = ("param_offload", "optimizer_offload", "offload_policy")
    offloads = [name for name in names if v.is_on(f"{part.fsdp}.{name}") or v.is_on(f"{old}.{name}")]
    if offloads:
        comment = "" if "offload_policy" in offloads else "verl moves them between phases, here they stay there"
        yield Setting("cpu_offload", True, comment)  # noqa: FBT003 - the value
    if v.get(f"{part.fsdp}.reshard_after_forward") is False:
        yield Setting("reshard_after_forward", False)  # noqa: FBT003 - the value


# --- Megatron ------------------------------------------------------------------------------------------------------


def _of_megatron(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    name, sizes = part.megatron, {}
    for key in ("tensor", "pipeline", "context", "expert"):
        suffix = "context_parallel_size" if key == "context" else f"{key}_model_parallel_size"
        sizes[key] = v.integer(f"{name}.{suffix}")
    for key, size in sizes.items():
        if size > 1:
            yield Setting(f"mesh.{key}", size)
    if sizes["tensor"] > 1 and v.is_on(f"{name}.sequence_parallel"):
        yield Setting("mesh.sequence_parallel", True)  # noqa: FBT003 - the value
    if v.is_on(f"{name}.use_distributed_optimizer"):
        yield Setting("distributed_optimizer", True)  # noqa: FBT003 - the value
    overrides = v.table(f"{part.optim}.override_optimizer_config")
    if v.is_on(f"{name}.optimizer_offload") or str(overrides.get("optimizer_cpu_offload")).lower() == "true":
        comment = "verl moves the moments between phases, here they stay there"
        yield Setting("optimizer_offload", True, comment)  # noqa: FBT003 - the value
    granularity = v.get(f"{name}.override_transformer_config.recompute_granularity")
    if granularity is not None and str(granularity) in _RECOMPUTE:
        yield Setting("recompute", _RECOMPUTE[str(granularity)])
    elif granularity is not None:
        yield Missing(v.full(f"{name}.override_transformer_config.recompute_granularity"), "full or selective")


# --- optimizer -----------------------------------------------------------------------------------------------------


def optimizer(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The optimizer of the policy and its learning rate."""
    for outcome in optimizer_settings(Values(values), ACTOR):
        yield outcome if isinstance(outcome, Missing) else outcome._replace(key=f"trainer.{outcome.key}")
    comment = "verl takes a step whose gradient is 0, too"
    yield Setting("trainer.skip_zero_gradients", False, comment)  # noqa: FBT003 - the value


def optimizer_settings(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    """The settings of the optimizer below the trainer of one model."""
    if (rate := v.number(f"{part.optim}.lr")) is not None:
        yield Setting("lr", float(rate))
    yield from _schedule(v, part)
    if (decay := v.number(f"{part.optim}.weight_decay")) is not None:
        yield Setting("weight_decay", float(decay), "verl's decay is of all weights, here of matrices")
    betas = [as_number(v.full(f"{part.optim}.betas"), beta) for beta in v.texts(f"{part.optim}.betas")]
    if len(betas) == 2:
        yield Setting("betas", [*map(float, betas)])
    clip, old = v.number(f"{part.optim}.clip_grad"), v.number(f"{part.batches}.grad_clip")
    norm = old if clip in (None, 1) and old is not None else clip
    if norm is not None:
        yield Setting("max_grad_norm", float(norm) if norm > 0 else math.inf)
    yield from _optimizer_class(v, part)


def _schedule(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    optim, is_megatron = part.optim, v.is_megatron
    key = f"{optim}.lr_decay_style" if is_megatron else f"{optim}.lr_scheduler_type"
    names = (key,) if is_megatron else (f"{optim}.warmup_style", f"{optim}.lr_scheduler", key)
    style = str(v.get(*names) or "constant")
    if style not in _SCHEDULES:
        yield Missing(v.full(key), f"there is no schedule {style}")
        style = "constant"
    steps, ratio = (
        v.integer(f"{optim}.lr_warmup_steps"),
        v.number(f"{optim}.lr_warmup_steps_ratio", f"{optim}.warmup_steps_ratio"),
    )
    if steps > 0:
        yield Setting("warmup_steps", steps, "optimizer steps in both; verl's first step has a learning rate of 0")
    elif ratio:
        yield Setting("warmup_ratio", float(ratio))
    if style == "constant":
        return
    yield Setting("lr_scheduler", _SCHEDULES[style])
    if lowest := v.number(f"{optim}.min_lr") if is_megatron else v.number(f"{optim}.min_lr_ratio"):
        yield Setting("min_lr_ratio", lowest / (v.number(f"{optim}.lr") or 1) if is_megatron else float(lowest))
    cycles, decay = v.number(f"{optim}.num_cycles"), v.integer(f"{optim}.lr_wsd_decay_steps")
    if style == "cosine" and cycles not in (None, 0.5):
        yield Setting("lr_scheduler_kwargs.num_cycles", float(cycles))
    if style in ("WSD", "wsd") and decay:
        yield Setting("lr_scheduler_kwargs.num_decay_steps", decay)
    if (length := v.integer(f"{optim}.lr_decay_steps") or v.integer(f"{optim}.total_training_steps")) > 0:
        yield Setting("lr_scheduler_steps", length)


def _optimizer_class(v: Values, part: ModelPart) -> Iterator[Setting | Missing]:
    name, options = str(v.get(f"{part.optim}.optimizer") or "AdamW"), v.table(f"{part.optim}.override_optimizer_config")
    options = {key: value for key, value in options.items() if not key.startswith(("optimizer_", "overlap_", "use_"))}
    if v.is_megatron:
        if name != "adam":
            yield Missing(v.full(f"{part.optim}.optimizer"), "the trainer `megatron` has AdamW only")
        return
    package = str(v.get(f"{part.optim}.optimizer_impl") or "torch.optim")
    if (eps := options.pop("eps", None)) is not None:
        yield Setting("eps", float(as_number(v.full(f"{part.optim}.override_optimizer_config"), eps)))
    if (package, name) == ("torch.optim", "AdamW"):
        if options:
            why = f"AdamW has no {', '.join(options)}; another optimizer is `trainer.optimizer`, with kwargs"
            yield Missing(v.full(f"{part.optim}.override_optimizer_config"), why)
    elif options == {"bf16_stochastic_round": True}:
        yield Setting("rounding", "stochastic")
    else:
        yield Setting("optimizer.factory", f"{package}:{name}", "not with a model that is divided: trainer.mesh")
        if options:
            yield Setting("optimizer.kwargs", options)
