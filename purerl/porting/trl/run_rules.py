"""Rules for the run: its name, models, steps, optimizer, memory, checkpoints and trackers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import FILL_IN, Missing, Setting, Unknown
from purerl.porting.trl.fields import Fields
from purerl.porting.trl.values import Pretrained

__all__ = ["RUN_RULES"]

Outcomes = Iterator[Setting | Missing]
Values = Mapping[str, Any]


def _name(values: Values) -> Outcomes:
    fields = Fields(values)
    text = fields["run_name"] or str(fields["output_dir"] or "").rstrip("/").rpartition("/")[2]
    if text:
        yield Setting("name", re.sub(r"[^\w., -]", "-", text)[:100])


def _model(values: Values) -> Outcomes:
    fields = Fields(values)
    given = fields.argument("model")
    if given is None:
        given = values.get("ModelConfig.model_name_or_path")
    of_config = fields["model_init_kwargs"] if isinstance(fields["model_init_kwargs"], Mapping) else {}
    arguments = {**_of_model_config(values), **of_config}
    if isinstance(given, Pretrained):
        arguments, given = {**given.arguments}, given.path
    if isinstance(given, str):
        yield Setting("model.path", given)
    else:
        comment = "the model is created by code" if given is not None else "the model of the script"
        yield Setting("model.path", FILL_IN, str(given) if isinstance(given, Unknown) else comment)
    yield from _model_arguments(fields, arguments)


def _of_model_config(values: Values) -> dict[str, Any]:
    names = {"revision": "model_revision", "dtype": "dtype", "attn_implementation": "attn_implementation"}
    found = {name: values.get(f"ModelConfig.{field}") for name, field in names.items()}
    return {name: value for name, value in found.items() if value not in (None, "main")}


_MODEL = {"revision": "model.revision", "attn_implementation": "model.attention", "dtype": "model.dtype"}
_MODEL |= {"torch_dtype": "model.dtype", "trust_remote_code": "model.trust_remote_code"}
_UNNEEDED = ("use_cache", "device_map", "low_cpu_mem_usage", "num_labels")


def _model_arguments(fields: Fields, arguments: Mapping[str, Any]) -> Outcomes:
    if fields["trust_remote_code"]:
        yield Setting("model.trust_remote_code", value=True)
    for key, value in arguments.items():
        text = value.removeprefix("torch.") if isinstance(value, str) else value
        if key in _MODEL and isinstance(value, Unknown):
            yield Setting(_MODEL[key], FILL_IN, str(value))
        elif key in _MODEL and value is not None:
            yield Setting(_MODEL[key], text)
        elif key not in _UNNEEDED and value is not None:
            yield Missing(fields.name("model_init_kwargs"), f"there is no setting for the argument {key} of a model")


def _reference(values: Values) -> Outcomes:
    fields = Fields(values)
    given = fields.argument("ref_model")
    if isinstance(given, str):
        yield Setting("roles.reference.model.path", given)
    elif isinstance(given, Pretrained):
        path = given.path if isinstance(given.path, str) else FILL_IN
        yield Setting("roles.reference.model.path", path, "" if path != FILL_IN else str(given.path))
    elif given is not None:
        yield Setting("roles.reference.model.path", FILL_IN, "the reference model is created by code")


# --- steps and the optimizer --------------------------------------------------------------------------------------


def _batches(values: Values) -> Outcomes:
    fields = Fields(values)
    yield from _generations(fields) if fields.samples else _rows(fields)
    yield Setting("trainer.max_rows_per_microbatch", fields["per_device_train_batch_size"])
    steps, epochs = fields["max_steps"], fields["num_train_epochs"]
    loop = fields.steps_per_loop
    if steps is not None and steps > 0:
        comment = "" if loop == 1 else f"{steps} optimizer steps, {loop} of them in each step here"
        yield Setting("max_steps", -(-steps // loop), comment)
    else:
        yield Setting("num_epochs", float(epochs))


def _rows(fields: Fields) -> Outcomes:
    size, accumulated = fields["per_device_train_batch_size"], fields["gradient_accumulation_steps"]
    product = _product(size, accumulated, fields.processes)
    packed = "; TRL counts packs of rows, so that more rows are in its steps" if fields["packing"] else ""
    yield Setting("batch_size", size * accumulated * fields.processes, product + packed)


def _product(size: int, accumulated: int, processes: int) -> str:
    parts = [f"{size} rows"]
    parts += [f"{accumulated} accumulated steps"] if accumulated != 1 else []
    parts += [f"{processes} processes"] if processes != 1 else []
    return " x ".join(parts)


def _generations(fields: Fields) -> Outcomes:
    samples, per_update = fields["num_generations"], fields["per_device_train_batch_size"] * fields.processes
    updates, generations = fields.generations_per_update
    accumulated = fields["gradient_accumulation_steps"]
    rows = per_update * accumulated * max(1, updates)
    yield Setting("rollout.samples_per_prompt", samples)
    yield Setting("ppo_epochs", fields["num_iterations"])
    if rows % samples:
        comment = f"{rows} completions of a generation are no multiple of {samples}: --processes says how many start"
        yield Setting("batch_size", FILL_IN, comment)
    else:
        product = _product(per_update // fields.processes, accumulated * max(1, updates), fields.processes)
        yield Setting("batch_size", rows // samples, f"prompts: {product} / {samples} completions")
    if updates > 1:
        yield Setting("num_minibatches", updates, "optimizer steps of each generation")
    if not updates and generations:
        why = f"each optimizer step has {generations} generations in TRL; here they are sampled together"
        yield Missing(fields.name("gradient_accumulation_steps"), why)
    elif not updates:
        why = "neither the steps of a generation nor the accumulated steps are a multiple of the other"
        yield Missing(fields.name("steps_per_generation"), why)


_SCHEDULES = {"constant_with_warmup": "constant", "cosine_with_min_lr": "cosine"}
_SAME_SCHEDULES = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt")
_SCHEDULES |= {name: name for name in (*_SAME_SCHEDULES, "warmup_stable_decay")}


def _schedule(values: Values) -> Outcomes:
    fields = Fields(values)
    kind, warmup = str(fields["lr_scheduler_type"]), fields["warmup_steps"]
    arguments = dict(fields["lr_scheduler_kwargs"] or {})
    if kind not in _SCHEDULES:
        yield Missing(fields.name("lr_scheduler_type"), f"there is no schedule {kind!r}")
    else:
        yield Setting("trainer.lr_scheduler", _SCHEDULES[kind])
    minimum, lr = arguments.pop("min_lr", None), fields["learning_rate"]
    ratio = arguments.pop("min_lr_rate", arguments.pop("min_lr_ratio", None))
    final = arguments.pop("lr_end", 1e-7 if kind == "polynomial" else None)
    minimum = final if minimum is None else minimum
    if ratio is None and minimum is not None and lr:
        ratio = minimum / lr
    if ratio is not None:
        yield Setting("trainer.min_lr_ratio", ratio)
    for key, value in arguments.items():
        yield Setting(f"trainer.lr_scheduler_kwargs.{key}", value)
    if warmup and kind != "constant":
        yield Setting("trainer.warmup_ratio" if warmup < 1 else "trainer.warmup_steps", warmup)


_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_anyprecision")
_OPTIMIZERS = {
    "adamw_8bit": "bitsandbytes.optim:AdamW8bit",
    "adamw_bnb_8bit": "bitsandbytes.optim:AdamW8bit",
    "paged_adamw_8bit": "bitsandbytes.optim:PagedAdamW8bit",
    "paged_adamw_32bit": "bitsandbytes.optim:PagedAdamW32bit",
    "lion_8bit": "bitsandbytes.optim:Lion8bit",
    "lion_32bit": "bitsandbytes.optim:Lion",
    "adafactor": "transformers.optimization:Adafactor",
    "sgd": "torch.optim:SGD",
    "adagrad": "torch.optim:Adagrad",
    "rmsprop": "torch.optim:RMSprop",
}


def _optimizer(values: Values) -> Outcomes:
    fields = Fields(values)
    kind = str(fields["optim"])
    betas, eps = [fields["adam_beta1"], fields["adam_beta2"]], fields["adam_epsilon"]
    if kind in _ADAMW:
        yield Setting("trainer.betas", betas)
        yield Setting("trainer.eps", eps)
    elif kind not in _OPTIMIZERS:
        yield Missing(fields.name("optim"), f"{kind}: `trainer.optimizer` takes the address of a class")
        return
    else:
        yield Setting("trainer.optimizer.factory", _OPTIMIZERS[kind])
    kwargs = {"betas": betas, "eps": eps} if "adamw" in kind and kind not in _ADAMW else {}
    kwargs |= {"betas": betas} if "lion" in kind else {}
    kwargs |= {"scale_parameter": False, "relative_step": False} if kind == "adafactor" else {}
    for key, value in (kwargs | _optim_args(fields["optim_args"], kind)).items():
        yield Setting(f"trainer.optimizer.kwargs.{key}", value)


def _optim_args(given: Any, kind: str) -> dict[str, Any]:
    """Arguments as ``name=value, name=value``; AdamW has none."""
    pairs = (part.split("=", 1) for part in str(given or "").split(",") if "=" in part)
    return {} if kind in _ADAMW else {key.strip(): _number(value.strip()) for key, value in pairs}


def _number(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _clipping(values: Values) -> Outcomes:
    fields = Fields(values)
    norm = float(fields["max_grad_norm"] or 0)
    yield Setting("trainer.max_grad_norm", norm or float("inf"), "" if norm else "not clipped")
    if fields.samples:
        yield Setting("trainer.skip_zero_gradients", value=False, comment="TRL takes a step whose gradient is 0")


# --- precision, memory, ranks -------------------------------------------------------------------------------------


def _precision(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["fp16"]:
        yield Missing(fields.name("fp16"), "training in float16 is refused; bfloat16 needs no loss scaling")
    is_on = fields["bf16"] or (fields["bf16"] is None and not fields["fp16"])
    yield Setting("trainer.mixed_precision", "bfloat16" if is_on else "off")


def _recompute(values: Values) -> Outcomes:
    fields = Fields(values)
    given = fields["activation_checkpointing"]
    is_on = fields["gradient_checkpointing"] if given is None else given
    yield Setting("trainer.recompute", "layers" if is_on else "none")


def _device(values: Values) -> Outcomes:
    if Fields(values)["use_cpu"]:
        yield Setting("trainer.device", "cpu")


def _mesh(values: Values) -> Outcomes:
    fields = Fields(values)
    for field in ("fsdp", "deepspeed"):
        if fields[field] and fields.processes > 1:
            yield Setting("trainer.mesh.shard", fields.processes, "FSDP2")
        elif fields[field]:
            yield Missing(fields.name(field), "parameters are divided among the ranks by `trainer.mesh.shard`")


def _timeout(values: Values) -> Outcomes:
    yield Setting("placement.timeout", float(Fields(values)["ddp_timeout"]))


def _lora(values: Values) -> Outcomes:
    prefix = "lora_" if values.get("ModelConfig.use_peft") else ""
    if prefix:
        found = {name: values.get(f"ModelConfig.lora_{name}") for name in ("r", "alpha", "target_modules")}
        stabilized = values.get("ModelConfig.use_rslora")
    elif "LoraConfig.r" in values:
        found = {"r": values["LoraConfig.r"], "alpha": values["LoraConfig.lora_alpha"]}
        found |= {"target_modules": values.get("LoraConfig.target_modules")}
        stabilized = values.get("LoraConfig.use_rslora")
    else:
        return
    if prefix and values.get("ModelConfig.lora_dropout"):
        yield Missing("ModelConfig.lora_dropout", "LoRA has no dropout")
    yield Setting("trainer.lora.rank", found["r"])
    yield Setting("trainer.lora.alpha", float(found["alpha"]))
    if stabilized:
        yield Setting("trainer.lora.rank_stabilized", value=True)
    modules = found["target_modules"]
    if modules is None:
        comment = "peft's default for most models, such as Llama and Qwen; for others look it up in peft"
        yield Setting("trainer.lora.target_modules", ["q_proj", "v_proj"], comment)
    elif isinstance(modules, str) and modules != "all-linear" and not modules.isidentifier():
        name = "ModelConfig.lora_target_modules" if prefix else "LoraConfig.target_modules"
        yield Missing(name, "layers are named by the ends of their names, and not by a regular expression")
    else:
        yield Setting("trainer.lora.target_modules", [modules] if isinstance(modules, str) else list(modules))


# --- checkpoints and trackers -------------------------------------------------------------------------------------


def _checkpoints(values: Values) -> Outcomes:
    fields = Fields(values)
    strategy, steps = fields["save_strategy"], fields["save_steps"]
    if strategy in ("epoch", "best") or (strategy == "steps" and steps < 1):
        yield Missing(fields.name("save_strategy"), "checkpoints are written every number of steps: `checkpoint.every`")
    elif strategy == "steps":
        loop = fields.steps_per_loop
        comment = "" if loop == 1 else f"{steps:g} optimizer steps"
        yield Setting("checkpoint.every", max(1, round(steps / loop)), comment)
    best = fields["metric_for_best_model"] or ("loss" if fields["load_best_model_at_end"] else None)
    if not fields["load_best_model_at_end"] and strategy != "best":
        return
    known = {"reward": "eval/reward", "loss": "validation/loss", "accuracy": "validation/accuracy"}
    metric = known.get(str(best).removeprefix("eval_").removeprefix("rewards/").replace("accuracies", "accuracy"))
    if metric is None or (fields.samples and metric != "eval/reward"):
        yield Missing(fields.name("metric_for_best_model"), f"{best}: see docs/reference/metrics.md for the names here")
        return
    yield Setting("checkpoint.best", metric, "purerl eval and purerl export take it as `best`")
    greater = fields["greater_is_better"]
    if greater is False or (greater is None and "loss" in metric):
        yield Setting("checkpoint.best_mode", "min")


def _trackers(values: Values) -> Outcomes:
    fields = Fields(values)
    given = fields["report_to"]
    kinds = [given] if isinstance(given, str) else [*(given or ())]
    known = ("wandb", "tensorboard", "mlflow", "swanlab", "trackio")
    found = [_tracker(kind, fields) for kind in kinds if kind in known]
    if found:
        yield Setting("trackers", found)
    for kind in kinds:
        if kind not in (*known, "none"):
            yield Missing(fields.name("report_to"), f"{kind}: the trackers are {', '.join(known)}")


def _tracker(kind: str, fields: Fields) -> dict[str, Any]:
    if kind != "trackio":
        return {"kind": kind}
    space = fields["trackio_space_id"]
    return {"kind": kind, "project": fields["project"]} | ({"space": space} if space else {})


RUN_RULES = {
    "name": _name,
    "model": _model,
    "reference": _reference,
    "batches": _batches,
    "schedule": _schedule,
    "optimizer": _optimizer,
    "clipping": _clipping,
    "precision": _precision,
    "recompute": _recompute,
    "device": _device,
    "mesh": _mesh,
    "timeout": _timeout,
    "lora": _lora,
    "checkpoints": _checkpoints,
    "trackers": _trackers,
}
"""The rules of this module by the names that purerl/config/aliases/trl_answers.toml has."""
