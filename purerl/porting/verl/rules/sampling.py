"""The generator, the sampling of completions, and environments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from purerl.porting.outcomes import Missing, Setting
from purerl.porting.verl.values import Values

__all__ = ["environment", "generator", "rollout", "routes", "staleness"]

_ENGINES = {"vllm": "vllm", "vllm_omni": "vllm", "sglang": "sglang", "hf": "hf"}
_ENGINES |= {f"{name}_async": name for name in ("vllm", "sglang")}  # names of earlier versions
_DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "half": "float16", "float32": "float32"}
_ARGUMENTS = {
    "vllm": {
        "enforce_eager": "enforce_eager",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "enable_chunked_prefill": "enable_chunked_prefill",
        "pipeline_model_parallel_size": "pipeline_parallel_size",
        "scheduling_policy": "scheduling_policy",
        "quantization": "quantization",
    },
    "sglang": {
        "enforce_eager": "disable_cuda_graph",
        "max_num_batched_tokens": "chunked_prefill_size",
        "pipeline_model_parallel_size": "pp_size",
        "expert_parallel_size": "ep_size",
        "quantization": "quantization",
    },
}
"""Arguments of the engines, by the names of verl."""

_USUAL = {"enforce_eager": False, "max_num_batched_tokens": 8192, "enable_chunked_prefill": True}
_USUAL |= {"pipeline_model_parallel_size": 1, "expert_parallel_size": 1, "scheduling_policy": "fcfs"}
_DECIDED = {"vllm": ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "dtype", "logprobs_mode")}
_DECIDED |= {"sglang": ("context_length", "max_running_requests", "mem_fraction_static", "dtype")}
"""Arguments that other settings of purerl decide."""

_TURNS = "rollout.multi_turn."


def generator(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """The engine that samples completions, and its servers."""
    v = Values(values)
    if v.is_sft:
        return
    name = str(v.get("rollout.name"))
    kind = _ENGINES.get(name, "vllm")
    if name not in ("None", "???", *_ENGINES):
        yield Missing("actor_rollout_ref.rollout.name", f"the generators are vllm, sglang and hf; there is no {name}")
    yield Setting("generator.kind", kind)
    if (rows := v.integer("rollout.max_num_seqs")) > 0:
        yield Setting("generator.max_num_seqs", rows)
    if kind == "hf":
        return
    if kind == "vllm" and not v.is_megatron and (rank := v.integer("model.lora_rank") or v.integer("model.lora.rank")):
        yield Setting("generator.max_lora_rank", rank)
    yield from _server(v)
    longest = v.integer("rollout.max_model_len") or v.row_tokens
    if longest:
        comment = "" if v.integer("rollout.max_model_len") else "the longest prompt and the longest completion"
        yield Setting("generator.max_sequence_length", longest, comment)
    yield from _arguments(v, kind)


def _server(v: Values) -> Iterator[Setting | Missing]:
    part, tensor = "generator.server.", max(1, v.integer("rollout.tensor_model_parallel_size"))
    own = v.integer("rollout.nnodes") * v.integer("rollout.n_gpus_per_node")
    per_host = v.integer("rollout.n_gpus_per_node") if own else max(1, v.integer("trainer.n_gpus_per_node"))
    if tensor > per_host:
        why = f"a server is on one host, which has {per_host} {'GPU' if per_host == 1 else 'GPUs'}"
        yield Missing("actor_rollout_ref.rollout.tensor_model_parallel_size", why)
    tensor = min(tensor, per_host)
    yield Setting(f"{part}tensor_parallel_size", tensor)
    comment = "on devices of their own: generator.server.devices" if own else "one on each device, or group of them"
    yield Setting(f"{part}number", max(1, per_host // tensor), comment)
    if (share := v.number("rollout.gpu_memory_utilization")) is not None:
        yield Setting(f"{part}gpu_memory_utilization", float(share))
    if not own and v.is_on("rollout.free_cache_engine"):
        is_adapter = v.integer("model.lora_rank") > 0
        yield Setting(f"{part}sleep_level", 1 if is_adapter else 2, "while the trainer uses the same devices")
    dtype = str(v.get("rollout.dtype"))
    if dtype in _DTYPES:
        yield Setting(f"{part}dtype", _DTYPES[dtype])
    elif dtype not in ("None", "auto"):
        yield Missing("actor_rollout_ref.rollout.dtype", f"float32, bfloat16 or float16, not {dtype}")
    if v.get("rollout.enable_prefix_caching") is False:
        yield Setting(f"{part}enable_prefix_caching", False)  # noqa: FBT003 - the value


def _arguments(v: Values, kind: str) -> Iterator[Setting | Missing]:
    for name, usual in (*_USUAL.items(), ("quantization", None)):
        value, own = v.get(f"rollout.{name}"), _ARGUMENTS[kind].get(name)
        if value is None or value == usual:
            continue
        if own is None:
            yield Missing(f"actor_rollout_ref.rollout.{name}", f"there is no such argument of {kind}")
        else:
            yield Setting(f"generator.server.arguments.{own}", value)
    if kind == "vllm" and v.integer("rollout.expert_parallel_size") > 1:
        yield Setting("generator.server.arguments.enable_expert_parallel", True)  # noqa: FBT003 - the value
    for engine in ("vllm", "sglang", "trtllm", "hf"):
        for key, value in v.table(f"rollout.engine_kwargs.{engine}").items():
            name = f"actor_rollout_ref.rollout.engine_kwargs.{engine}.{key}"
            if engine != kind:
                yield Missing(name, f"an argument of {engine}, and the generator is {kind}")
            elif key in _DECIDED[kind]:
                yield Missing(name, "another setting of `generator` decides it")
            elif not isinstance(value, Mapping):
                quoted = f'"{key}"' if "." in key else key
                yield Setting(f"generator.server.arguments.{quoted}", value)


def rollout(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """Sampling for training."""
    v = Values(values)
    if v.is_sft:
        return
    yield Setting("rollout.samples_per_prompt", max(1, v.integer("rollout.n")))
    longest = v.integer("data.max_response_length") or v.integer("rollout.response_length")
    yield Setting("rollout.max_tokens", longest)
    temperature = v.number("rollout.temperature")
    if temperature is not None and temperature <= 0:
        yield Missing("actor_rollout_ref.rollout.temperature", "training is not greedy: a temperature above 0")
    elif temperature is not None:
        yield Setting("rollout.temperature", float(temperature))
    if v.has_environment:
        yield Setting("environment.max_episode_tokens", longest, "verl's limit holds for all turns of an episode")
    if rate := v.number("rollout.over_sample_rate"):
        comment = "verl cancels the rest when 1 - over_sample_rate of the requests are done"
        batch = v.integer("data.train_batch_size")
        yield Setting("rollout.num_extra_groups", max(1, math.ceil(rate * batch / (1 - min(rate, 0.9)))), comment)
        yield Setting("rollout.order", "finished")


def staleness(values: Mapping[str, Any]) -> Iterator[Setting]:
    """The largest age of the weights that sampled a completion."""
    v = Values(values)
    mode = str(v.get("trainer.v1.trainer_mode") or "sync")
    threshold = v.number("async_training.staleness_threshold")
    if threshold is not None:
        syncs = max(1, v.integer("async_training.trigger_parameter_sync_step"))
        steps = max(1, math.ceil(threshold * syncs))
        yield Setting("rollout.max_staleness", steps, "verl's number is a fraction of the samples between two syncs")
    elif mode != "sync":
        yield Setting("rollout.max_staleness", max(1, v.integer("trainer.v1.sampler.max_off_policy_threshold")))


def routes(values: Mapping[str, Any]) -> Iterator[Setting]:
    """The experts of each token, recorded and used again."""
    v = Values(values)
    mode = str(v.get("actor.megatron.router_replay.mode", "actor.router_replay.mode") or "disabled")
    mode = str(v.get("actor.router_replay.mode") or mode) if mode == "disabled" else mode
    if mode == "R3" or (mode == "disabled" and v.is_on("rollout.enable_rollout_routing_replay")):
        yield Setting("trainer.replay_routes", "generator")
        yield Setting("generator.return_routes", True)  # noqa: FBT003 - the value
    elif mode == "R2" and _has_several_steps(v):
        yield Setting("trainer.replay_routes", "old_logp")


def _has_several_steps(v: Values) -> bool:
    """Whether a step has several optimizer steps; with one, there is no other pass whose experts it could use."""
    return (
        v.integer("data.train_batch_size") > v.integer("actor.ppo_mini_batch_size") or v.integer("actor.ppo_epochs") > 1
    )


# --- environments --------------------------------------------------------------------------------------------------

_FORMATS = {
    "hermes": "hermes", "qwen3_coder": "qwen_xml", "llama": "llama", "llama3": "llama", "gpt-oss": "harmony",
    "glm": "glm", "kimi": "kimi",
}  # fmt: skip
_WITHOUT_LIMIT = 1000


def environment(values: Mapping[str, Any]) -> Iterator[Setting | Missing]:
    """Tools, or an environment, whose code has to be written for purerl."""
    v = Values(values)
    if not v.has_environment:
        return
    interaction, functions = v.get(f"{_TURNS}interaction_config_path"), v.get(f"{_TURNS}function_tool_path")
    if interaction and not v.get(f"{_TURNS}tool_config_path", f"{_TURNS}function_tool_path"):
        comment = f"write the interaction of {interaction} as an environment: docs/how-to/environments.md"
        yield Setting("environment.factory", "environment.py:Environment", comment)
    elif functions:
        yield Setting("environment.tools", [f"{functions}:FUNCTION"], "name each function of the file")
    else:
        source = v.get(f"{_TURNS}tool_config_path") or "the configuration of the tools"
        comment = f"write the tools of {source} as functions, or as a class: docs/how-to/tools.md"
        yield Setting("environment.tools", ["tools.py:FUNCTION"], comment)
    turns = [v.integer(f"{_TURNS}{name}") for name in ("max_assistant_turns", "max_user_turns", "max_turns")]
    limit = min(filter(None, turns), default=_WITHOUT_LIMIT)
    yield Setting("environment.max_turns", limit, "" if any(turns) else "verl has no limit but that of the tokens")
    name = str(v.get(f"{_TURNS}format") or "hermes")
    if name in _FORMATS:
        yield Setting("environment.tool_format", _FORMATS[name])
    else:
        yield Missing("actor_rollout_ref.rollout.multi_turn.format", f"there is no format {name}")
    if v.is_on(f"{_TURNS}use_inference_chat_template"):
        yield Setting("environment.history", "rerender")
    if (workers := v.integer("rollout.agent.num_workers")) > 0:
        yield Setting("environment.num_workers", workers)
