"""The run: data, batches, evaluation, rewards, checkpoints, trackers and length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from purerl.plugins import names
from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.values import Values, local_path

__all__ = ["batches", "checkpoints", "data", "evaluation", "model", "profiling", "run", "trackers"]

_NEVER = 1_000_000
_EACH_EPOCH = "after_each_epoch"


def run(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The name and the length of the run."""
    v = Values(values)
    name = re.sub(r"[^\w., -]", "_", str(v.get("trainer.experiment_name") or "verl"))[:100].strip(". ")
    yield Setting("name", name or "verl")
    steps, epochs = v.integer("trainer.total_training_steps"), v.number("trainer.total_epochs")
    if steps > 0:
        yield Setting("max_steps", steps)
    elif epochs is not None:
        yield Setting("num_epochs", float(epochs))
    if v.has_critic and (warmup := v.integer("trainer.critic_warmup")) > 1:
        yield Setting("critic_warmup", warmup - 1)


def model(values: Mapping[str, Any]) -> Iterator[Setting]:
    """The model that is trained."""
    v = Values(values)
    yield Setting("model.path", local_path(v.get("model.partial_pretrain", "model.path")))
    if v.is_on("model.trust_remote_code") or v.is_on("data.trust_remote_code"):
        yield Setting("model.trust_remote_code", True)  # noqa: FBT003 - the value
    overrides = v.table("model.override_config")
    attention = overrides.get("attn_implementation") or overrides.get("model_config.attn_implementation")
    if attention:
        yield Setting("model.attention", str(attention))


def batches(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The optimizer steps of a step."""
    v = Values(values)
    batch, mini = v.integer("data.train_batch_size"), v.integer("actor.ppo_mini_batch_size")
    if v.is_sft or not batch or not mini:
        return
    if batch % mini == 0:
        yield Setting("minibatch_size", mini)
    elif mini > batch:
        yield Setting("minibatch_size", batch, f"ppo_mini_batch_size is {mini}, more than train_batch_size")
    else:
        count = max(1, round(batch / mini))
        yield Setting("num_minibatches", count, f"ppo_mini_batch_size {mini} does not divide {batch}")


# --- data ----------------------------------------------------------------------------------------------------------

_COLUMNS = {"data.reward_fn_key": "data_source", "data.image_key": "images"}
_SIDES = ("error", "left", "right", "middle")


def data(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The training data: files, columns, order and long prompts."""
    v = Values(values)
    yield Setting("data.files", [local_path(file) for file in v.texts("data.train_files")])
    yield from _columns(v)
    yield from _long_prompts(v)
    if v.get("data.shuffle") is False:
        yield Setting("data.order", "sequential")
    elif v.get("data.seed") is not None:
        yield Setting("data.seed", max(0, v.integer("data.seed")))
    if arguments := {key: value for key, value in v.table("data.apply_chat_template_kwargs").items() if "." not in key}:
        yield Setting("data.chat_template_kwargs", arguments)


def _columns(v: Values) -> Iterator[Setting | Missing]:
    columns = {"data.prompt_key": "prompt", **_COLUMNS}
    if v.is_sft:
        columns = {
            "data.messages_key": "messages",
            "data.multiturn.messages_key": "messages",
            "data.tools_key": "tools",
        }
        if v.get("data.prompt_key"):
            columns = {"data.prompt_key": "prompt", "data.response_key": "completion"}
    for key, column in columns.items():
        value = v.get(key)
        if value not in (None, column):
            yield Setting(f"data.columns.{column}", str(value))


def _long_prompts(v: Values) -> Iterator[Setting | Missing]:
    if v.is_sft:
        why = "demonstrations are neither left out nor truncated"
        yield from (Missing(name, why) for name in ("data.max_length", "data.truncation"))
        return
    if longest := v.integer("data.max_prompt_length"):
        yield Setting("data.max_prompt_tokens", longest)
    side = str(v.get("data.truncation") or "error")
    if side not in _SIDES:
        yield Missing("data.truncation", f"a prompt is cut left, right or middle, not {side}")
    elif v.is_on("data.filter_overlong_prompts") or not longest:
        yield Setting("data.truncation", "drop")
    elif side != "error" and v.has_environment:
        yield Missing("data.truncation", "the conversations of an environment are not cut: longer ones are left out")
    else:
        yield Setting("data.truncation", side)


# --- evaluation ----------------------------------------------------------------------------------------------------


def evaluation(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """When and how the policy is evaluated; of SFT, its loss on held-out data."""
    v = Values(values)
    files = [local_path(file) for file in v.texts("data.val_files")]
    is_each_epoch = v.get("trainer.test_freq") == _EACH_EPOCH
    every = 0 if is_each_epoch else v.integer("trainer.test_freq")
    before = v.is_on("trainer.val_before_train") and not v.is_sft
    if not files or not (every > 0 or is_each_epoch or before):
        return
    section = "validation" if v.is_sft else "evaluate"
    yield Setting(f"{section}.data", files if v.is_sft else _named(files))
    if is_each_epoch:
        why = f"evaluations are every number of steps: `{section}.every`, 20 by default"
        yield Missing("trainer.test_freq", why)
    else:
        comment = "" if every > 0 else "verl: only before training"
        yield Setting(f"{section}.every", every if every > 0 else _NEVER, comment)
    if (limit := v.integer("data.val_max_samples")) > 0:
        yield Setting(f"{section}.max_examples", limit)
    if not v.is_sft:
        yield Setting("evaluate.max_tokens", v.integer("data.max_response_length"))
        yield Setting("evaluate.before_training", before)
        yield from _sampling(v)


def _named(files: list[str]) -> list[str] | dict[str, str]:
    """Files by name: with the folder, if several have the same name."""
    stems = [PurePosixPath(file).stem for file in files]
    if len({*stems}) == len(stems):
        return files
    named = {re.sub(r"[^\w.-]", "_", "_".join(PurePosixPath(file).with_suffix("").parts[-2:])): file for file in files}
    return named if len(named) == len(files) else {f"data_{index}": file for index, file in enumerate(files)}


def _sampling(v: Values) -> Iterator[Setting | Missing]:
    part = "rollout.val_kwargs."
    temperature, samples = float(v.number(f"{part}temperature") or 0), max(1, v.integer(f"{part}n"))
    yield Setting("evaluate.temperature", temperature)
    if samples > 1 and temperature == 0:
        why = "all greedy completions of a problem are equal"
        yield Missing("actor_rollout_ref.rollout.val_kwargs.n", why)
    elif samples > 1:
        yield Setting("evaluate.samples_per_prompt", samples)
    top_p, top_k = v.number(f"{part}top_p"), v.integer(f"{part}top_k")
    if temperature > 0 and top_p is not None and 0 < top_p <= 1:
        yield Setting("evaluate.top_p", float(top_p))
    if temperature > 0:
        yield Setting("evaluate.top_k", max(0, top_k))


# --- checkpoints and trackers --------------------------------------------------------------------------------------


def checkpoints(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """When checkpoints are written, and how many are kept."""
    v = Values(values)
    is_each_epoch = v.get("trainer.save_freq") == _EACH_EPOCH
    every = 0 if is_each_epoch else v.integer("trainer.save_freq")
    if is_each_epoch:
        why = "checkpoints are written every number of steps: `checkpoint.every`, 20 by default"
        yield Missing("trainer.save_freq", why)
    else:
        yield Setting("checkpoint.every", every if every > 0 else _NEVER, "" if every > 0 else "verl: never")
    kept = [v.integer(f"trainer.max_{name}ckpt_to_keep") for name in ("actor_", "critic_", "")]
    if v.is_on("trainer.del_local_ckpt_after_load"):
        kept.append(1)
    number = max(kept)
    if every > 0 or is_each_epoch:
        yield Setting("checkpoint.keep", number or _NEVER, "" if number else "verl keeps all")


_PROJECTS = {"wandb": "project", "swanlab": "project", "trackio": "project", "mlflow": "experiment"}
_CONSOLE = ("console", "file", "none")


def trackers(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """Trackers beside the files of the run."""
    v = Values(values)
    found = []
    for name in v.texts("trainer.logger"):
        if name in names("tracker"):
            project = {_PROJECTS[name]: str(v.get("trainer.project_name"))} if name in _PROJECTS else {}
            found.append({"kind": name, **project})
        elif name not in _CONSOLE:
            yield Missing("trainer.logger", f"there is no tracker {name}; one of your own is a class")
    if found:
        yield Setting("trackers", found)


def profiling(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """Steps that are recorded."""
    v = Values(values)
    tool, steps = v.get("global_profiler.tool"), v.texts("global_profiler.steps")
    if tool in ("torch", "torch_memory") and steps:
        yield Setting("debug.profile_steps", [int(step) for step in steps if step.isdigit() and int(step) > 0])
        if tool == "torch_memory":
            yield Setting("debug.memory_snapshot", True)  # noqa: FBT003 - the value
    elif tool is not None:
        yield Missing("global_profiler.tool", f"the profiler is torch's, not {tool}")
