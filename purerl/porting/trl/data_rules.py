"""Rules for data, rewards, environments, sampling and evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import FILL_IN, Missing, Setting, Unknown
from purerl.porting.trl.fields import Fields
from purerl.porting.trl.values import Dataset, Function

__all__ = ["DATA_RULES"]

Outcomes = Iterator[Setting | Missing]
Values = Mapping[str, Any]


# --- data ---------------------------------------------------------------------------------------------------------


def _train_data(values: Values) -> Outcomes:
    fields = Fields(values)
    given = fields.argument("train_dataset")
    found = [*map(_file, _of_arguments(values, "train"))] if given is None else [_file(given)]
    files = [file for each, _ in found for file in each]
    yield Setting("data.files", files or [FILL_IN], _joined(found) if files else "nothing names the training data")


def _of_arguments(values: Values, split: str) -> list[Dataset]:
    """The data sets that the arguments of TRL's command name."""
    name, config = values.get("ScriptArguments.dataset_name"), values.get("ScriptArguments.dataset_config")
    mixed = values.get("DatasetMixtureConfig.datasets") or []
    if mixed and split == "train":
        return [_loaded(each["path"], each.get("name"), each.get("split", "train")) for each in mixed]
    return [] if name is None else [_loaded(name, config, values.get(f"ScriptArguments.dataset_{split}_split"))]


def _loaded(name: str, config: str | None, split: str | None) -> Dataset:
    names = repr(name) if config is None else f"{name!r}, {config!r}"
    return Dataset(f"load_dataset({names}, split={split!r})", name, split, {}, (), "")


def _file(given: Any) -> tuple[list[str], str]:
    """The files of a data set in a script, and a comment: those that it reads, or one that is to be written."""
    if not isinstance(given, Dataset):
        return [FILL_IN], str(given) if isinstance(given, Unknown) else "the data set of the script"
    split = given.split or "train"
    files = given.files.get(split) or given.files.get("", ())
    if files and not given.steps:
        below = given.load.startswith("load_from_disk") and given.split
        return [f"{file}/{given.split}" if below else file for file in files], ""
    file = re.sub(r"[^\w.-]", "_", f"{given.name.rstrip('/').rpartition('/')[2]}-{split}") + ".parquet"
    if given.steps:
        steps = ", ".join(dict.fromkeys(given.steps))
        return [file], f"Write it once, after {steps} ({given.place}):\n    dataset.to_parquet({file!r})"
    load = given.load if "split=" in given.load else f"{given.load}[{split!r}]"
    return [file], f"Write it once:\n    from datasets import load_dataset; {load}.to_parquet({file!r})"


def _order(values: Values) -> Outcomes:
    fields = Fields(values)
    is_shuffled = fields["train_sampling_strategy"] != "sequential" if not fields.samples else fields["shuffle_dataset"]
    if not is_shuffled and not fields["shuffle_dataset"]:
        yield Setting("data.order", "sequential")
    elif fields["data_seed"] is not None:
        yield Setting("data.seed", fields["data_seed"])


def _max_length(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["max_length"] is None:
        return
    keeps_end = fields["truncation_mode"] == "keep_end"
    effect = "the first tokens of a longer prompt are" if keeps_end else "a row with a longer prompt is"
    comment = f"TRL cuts rows at this length; here {effect} left out, and no answer is cut"
    yield Setting("data.max_prompt_tokens", fields["max_length"], comment)
    if keeps_end:
        yield Setting("data.truncation", "left")


def _packing(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["packing"] or fields["padding_free"]:
        yield Setting("trainer.packing", value=True, comment="no row is cut, and batch_size counts rows")


def _text_field(values: Values) -> Outcomes:
    fields = Fields(values)
    if fields["dataset_text_field"] != "text":
        yield Setting("data.columns.text", fields["dataset_text_field"])


# --- rewards and environments -------------------------------------------------------------------------------------

_OF_TRL = {
    "accuracy_reward": {"function": "purerl.rewards.math:boxed"},
    "reasoning_accuracy_reward": {"function": "purerl.rewards.math:boxed"},
    "think_format_reward": {"kind": "format"},
    "get_cosine_scaled_reward": {"kind": "cosine_length", "correctness": "purerl.rewards.math:math"},
    "get_repetition_penalty_reward": {"kind": "repetition"},
}
_ARGUMENTS = {"ngram_size": ("ngram_size", 1), "max_penalty": ("penalty", -1.0), "max_len": ("max_tokens", 1)}
_OVERLONG = "get_soft_overlong_punishment"


def _rewards(values: Values) -> Outcomes:
    fields = Fields(values)
    given = [*_listed(fields.argument("reward_funcs")), *_of_command(values)]
    weights = fields["reward_weights"] or [1.0] * len(given)
    if fields.argument("environment_factory") is not None or not given:
        return
    rewards, comments = [], []
    for index, (each, weight) in enumerate(zip(given, weights, strict=False)):
        if isinstance(each, Function) and each.address.rpartition(":")[2] == _OVERLONG:
            yield from _overlong(each.arguments or {}, weight)
            continue
        reward, comment = _reward(each, index)
        if isinstance(each, str) and "function" not in reward:
            yield Setting(f"roles.rewards.{reward['role']}.model", each)
        rewards.append(reward | ({} if weight == 1 else {"weight": float(weight)}))
        comments.append(comment)
    short = [each["function"] if [*each] == ["function"] else each for each in rewards]
    yield Setting("rewards", short, " ".join(dict.fromkeys(filter(None, comments))))


def _listed(given: Any) -> list[Any]:
    return [] if given is None else given if isinstance(given, list) else [given]


def _of_command(values: Values) -> list[Any]:
    """The reward functions that the arguments of TRL's command name."""
    path = values.get("GRPOScriptArguments.reward_model_name_or_path")
    names = values.get("GRPOScriptArguments.reward_funcs") or []
    functions = [
        Function(":".join(("trl.rewards", name) if "." not in name else name.rsplit(".", 1)), {}, runs_all=False)
        for name in names
    ]
    return [*([path] if path else []), *functions]


def _reward(given: Any, index: int) -> tuple[dict[str, Any], str]:
    """The table of a reward, and a comment."""
    if isinstance(given, str):
        return {"role": f"model_{index + 1}"}, "A model is one of roles.rewards."
    if not isinstance(given, Function):
        return {"function": FILL_IN}, f"{given}: a function needs a name."
    module, _, name = given.address.rpartition(":")
    if module.partition(".")[0] == "trl":
        return _of_library(name, given.arguments or {})
    if given.arguments is not None:
        return {"function": FILL_IN}, f"{given.address}(...) makes the function when the script runs."
    if given.runs_all:
        do = 'move it into a file of its own, or the training below `if __name__ == "__main__":`'
        return {"function": given.address}, f"Importing {name} would start the training of the script: {do}."
    imported = "; for them purerl imports the script, and what it imports" if module.endswith(".py") else ""
    return {"function": given.address}, f"Functions of TRL are called as they are{imported}."


def _of_library(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if name not in _OF_TRL:
        return {"function": FILL_IN}, f"There is no {name} here."
    renamed = {_ARGUMENTS[key][0]: value * _ARGUMENTS[key][1] for key, value in arguments.items() if key in _ARGUMENTS}
    return {**_OF_TRL[name], **renamed}, f"In place of TRL's {name}, see docs/how-to/rewards.md."


def _overlong(arguments: Mapping[str, Any], weight: float) -> Outcomes:
    buffer = arguments.get("soft_punish_cache", 256)
    comment = "In place of TRL's function, with the length of rollout.max_tokens"
    yield Setting("rollout.overlong.buffer", FILL_IN if isinstance(buffer, Unknown) else buffer, comment)
    yield Setting("rollout.overlong.factor", float(weight))


def _environment(values: Values) -> Outcomes:
    fields = Fields(values)
    tools, factory = fields.argument("tools"), fields.argument("environment_factory")
    iterations = fields["max_tool_calling_iterations"]
    if tools:
        yield Setting("environment.tools", [*map(_address, _listed(tools))])
    if factory is not None:
        yield Setting("environment.factory", "purerl.adapters.trl:TRLEnvironment")
        yield Setting("environment.kwargs.factory", _address(factory))
        if functions := [_address(each) for each in _listed(fields.argument("reward_funcs"))]:
            yield Setting("environment.kwargs.reward_functions", functions)
        if fields["reward_weights"]:
            yield Setting("environment.kwargs.reward_weights", fields["reward_weights"])
        if iterations is not None:
            yield Setting("environment.kwargs.max_tool_calling_iterations", iterations)
    if (tools or factory is not None) and iterations is not None:
        yield Setting("environment.max_turns", iterations + 1, "the turn of the answer is one more")


def _address(given: Any) -> str:
    return given.address if isinstance(given, Function) and given.arguments is None else FILL_IN


# --- sampling and evaluation --------------------------------------------------------------------------------------

_ANY_HOST = "0.0.0.0"  # noqa: S104 - TRL's default, which is no address to connect to
_NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0, "vllm_structured_outputs_regex": None}


def _sampling(values: Values) -> Outcomes:
    fields = Fields(values)
    for field, neutral in _NEUTRAL.items():
        if fields[field] in (neutral, None) or (field == "min_p" and not fields[field]):
            continue
        if _evaluates(fields):
            yield Setting(f"evaluate.{field.removeprefix('vllm_structured_outputs_')}", fields[field])
        why = "training samples from the whole distribution, because the importance ratio would be biased"
        yield Missing(fields.name(field), f"{why}; evaluations have the setting")


def _vllm(values: Values) -> Outcomes:
    fields = Fields(values)
    yield Setting("generator.kind", "vllm" if fields["use_vllm"] else "hf")
    if not fields["use_vllm"]:
        return
    if fields["vllm_max_model_length"] is not None:
        yield Setting("generator.max_sequence_length", fields["vllm_max_model_length"])
    if fields["vllm_mode"] == "server":
        host = fields["vllm_server_host"].replace(_ANY_HOST, "127.0.0.1")
        url = fields["vllm_server_base_url"] or f"http://{host}:{fields['vllm_server_port']}"
        yield Setting("generator.server.urls", [url], "a server that `purerl serve` has started")
        return
    yield Setting("generator.server.gpu_memory_utilization", fields["vllm_gpu_memory_utilization"])
    yield Setting("generator.server.tensor_parallel_size", fields["vllm_tensor_parallel_size"])
    if fields["vllm_enable_sleep_mode"]:
        yield Setting("generator.server.sleep_level", 2)
    if fields["vllm_model_impl"] != "vllm":
        yield Setting("generator.server.arguments.model_impl", fields["vllm_model_impl"])


def _evaluates(fields: Fields) -> bool:
    has_data = fields.argument("eval_dataset") is not None or bool(_of_arguments(fields.values, "test"))
    return fields["eval_strategy"] != "no" and has_data


def _evaluation(values: Values) -> Outcomes:
    fields = Fields(values)
    if not _evaluates(fields):
        if fields.argument("eval_dataset") is not None:
            yield Missing(f"{fields.method}Trainer.eval_dataset", "TRL does not use it, because eval_strategy is no")
        return
    section = "evaluate" if fields.samples else "validation"
    yield _evaluation_data(fields, f"{section}.data")
    yield from _interval(fields, f"{section}.every")
    if not fields.samples:
        return
    yield Setting("evaluate.max_tokens", fields["max_completion_length"])
    yield Setting("evaluate.temperature", float(fields["temperature"]), "TRL's evaluations sample as its training does")
    yield Setting("evaluate.samples_per_prompt", fields["num_generations_eval"] or fields["num_generations"])
    yield Setting("evaluate.before_training", bool(fields["eval_on_start"]))


def _evaluation_data(fields: Fields, key: str) -> Setting:
    given = fields.argument("eval_dataset")
    if isinstance(given, Mapping) and fields.samples:
        found = {name: _file(each) for name, each in given.items()}
        return Setting(key, {name: files[0] for name, (files, _) in found.items()}, _joined(found.values()))
    several = [*given.values()] if isinstance(given, Mapping) else [given]
    found = [_file(each) for each in (_of_arguments(fields.values, "test") if given is None else several)]
    return Setting(key, [file for files, _ in found for file in files], _joined(found))


def _joined(found: Any) -> str:
    return "\n".join(filter(None, (comment for _, comment in found)))


def _interval(fields: Fields, key: str) -> Outcomes:
    steps = fields["eval_steps"] or fields["logging_steps"]
    if fields["eval_strategy"] != "steps" or steps < 1:
        yield Missing(fields.name("eval_strategy"), f"evaluations are every number of steps: `{key}`, 20 by default")
        return
    loop = fields.steps_per_loop
    yield Setting(key, max(1, round(steps / loop)), "" if loop == 1 else f"{steps:g} optimizer steps")


DATA_RULES = {
    "train_data": _train_data,
    "order": _order,
    "max_length": _max_length,
    "packing": _packing,
    "text_field": _text_field,
    "rewards": _rewards,
    "environment": _environment,
    "sampling": _sampling,
    "vllm": _vllm,
    "evaluation": _evaluation,
}
"""The rules of this module by the names that purerl/config/aliases/trl_answers.toml has."""
