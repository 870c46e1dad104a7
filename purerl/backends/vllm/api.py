"""vLLM's HTTP interface, of version 0.32: token ids both ways.

New weights in flight: the server pauses and keeps its requests, loads the files, drops all keys and values, and
computes them again with the new weights. Each token's log-probability is then that of its own version.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Literal

import numpy as np
from attrs import define, field

from purerl.backends.requests import PendingRequest
from purerl.backends.serving.api import Answer, Call, Command, checked_routes
from purerl.backends.serving.http import Http, RefusedError
from purerl.backends.serving.identity import identity_problem, version_problem
from purerl.backends.serving.settings import as_flags
from purerl.backends.serving.versions import warn_of_version
from purerl.backends.serving.weights import NO_RECEIVER, WeightFiles, WeightStream
from purerl.backends.vllm.request_images import content_parts, one_token_each
from purerl.backends.vllm.settings import VERSION
from purerl.images import ImageStore
from purerl.protocols import Request, Sampling
from purerl.settings import Model

__all__ = ["WORKER", "VLLMApi"]

WORKER = "purerl_vllm.Worker"
"""The class whose methods vLLM's workers get, to receive weights."""

_GENERATE = "/inference/v1/generate"
_PREFIX = "generate-tokens-"  # of the identity of a request, in calls about it
_FINISH = {"stop": "stop", "length": "length", "abort": "interrupted"}
_SAME = frozenset({"top_p", "top_k", "min_p", "repetition_penalty"})  # parameters that have the same name in vLLM
_LOGPROBS = "processed_logprobs"  # after temperature and sampling parameters
_ROUTES = "enable_return_routed_experts"
_ADAPTER = "purerl-"  # what the names of adapters begin with
_PROBE = Request("probe", [1, 0] * 8, Sampling(temperature=0.0, max_tokens=8), seed=0)  # of tokens that every model has


@define(eq=False)
class VLLMApi:
    """vLLM with `model`; `arguments` are command-line options of ``vllm serve``.

    An adapter is loaded beside the model, under a name of its own for each version: vLLM keeps keys and values by the
    name. Requests name it. With `is_streamed`, its processes must be able to receive weights. One that `is_given` must
    be the version and have the model that purerl would start, and may lack the methods of purerl's receiver. With
    `has_seeds`, requests have their seeds.
    """

    model: Model
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    python: str | None
    stale_cache: bool
    is_streamed: bool
    is_given: bool = False
    has_seeds: bool = True
    has_receiver: bool = field(init=False, default=False)  # after `check`
    _images: ImageStore = field(init=False)  # only after `use_images`

    name = "vllm"

    @property
    def reader(self) -> str:
        """The method that loads files of weights."""
        return "purerl_read" if self.has_receiver else "reload_weights"

    def use_images(self, images: ImageStore) -> None:
        """Look for the images of requests in `images`."""
        self._images = images

    def keeps_requests(self, *, is_adapter: bool) -> bool:
        return not is_adapter

    def command(self, host: str, port: int) -> Command:
        engine = ("vllm.entrypoints.cli.main", "serve", self.model.path)
        program = (self.python or sys.executable, "-m", "purerl_server", *engine)
        arguments = {"host": host, "port": port, **self.arguments}
        environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", **self.environment}
        return Command((*program, *as_flags(arguments)), environment)

    def request(self, pending: PendingRequest, identity: str, adapter: str | None) -> Call:
        sampling = pending.request.sampling
        parameters = {
            "max_tokens": pending.remaining,
            "temperature": sampling.temperature,
            "seed": _mixed(pending.request.seed) if self.has_seeds else None,
            "logprobs": 0,
            "ignore_eos": True,
            "stop_token_ids": list(sampling.stop_tokens),
            "stop": list(sampling.stop_strings),
        }
        parameters |= {name: getattr(sampling, name) for name in _SAME & sampling.parameters}
        if pending.min_tokens:
            parameters["min_tokens"] = pending.min_tokens
        if sampling.is_structured:
            parameters["structured_outputs"] = _structure(sampling)
        body = {**self._prompt(pending), "sampling_params": parameters, "request_id": identity}
        return Call(_GENERATE, body | ({"model": _ADAPTER + adapter} if adapter is not None else {}))

    def _prompt(self, pending: PendingRequest) -> dict[str, Any]:
        if not any(pending.request.image):
            return {"token_ids": pending.all_tokens}
        tokens, ids = one_token_each(pending.request.tokens, pending.request.image)
        parts = content_parts(self._images, ids)
        return {"token_ids": [*tokens, *pending.tokens], "content_parts": parts, "return_token_ids": True}

    def answer(self, response: Any, pending: PendingRequest) -> Answer:
        if any(pending.request.image) and response["prompt_token_ids"] != pending.all_tokens:
            got, need = len(response["prompt_token_ids"]), len(pending.all_tokens)
            text = f"{got} other tokens than the {need} of the run"
            raise RefusedError(f"vLLM reads the prompt with its images as {text}")
        [choice] = response["choices"]
        tokens = choice["token_ids"]
        logp = [each["logprob"] for each in choice["logprobs"]["content"]] if tokens else []
        versions = [(each["version"], each["end"] - each["start"]) for each in choice["weight_versions"] or ()]
        if not len(tokens) == len(logp) == sum(count for _, count in versions):
            raise ValueError(f"{len(tokens)} tokens, {len(logp)} log-probabilities, versions {versions}")
        answer = Answer(tokens, logp, versions, _FINISH[choice["finish_reason"]])
        if not self.arguments.get(_ROUTES):
            return answer
        routes = choice["routed_experts"]
        return checked_routes(answer._replace(routes=None if routes is None else _experts(routes)), pending)

    async def check(self, http: Http, *, timeout: float) -> str | None:
        paths = (await http.get("/openapi.json", timeout=timeout))["paths"]
        missing = [path for path in (_GENERATE, "/pause", "/resume", "/collective_rpc") if path not in paths]
        if missing:
            return f"no {', '.join(missing)}: vllm 0.32, --enable-scale-out and VLLM_SERVER_DEV_MODE=1 are needed"
        version = (await http.get("/version", timeout=timeout))["version"]
        if self.is_given and (problem := version_problem(self.name, version, VERSION)) is not None:
            return problem
        warn_of_version(http.url, self.name, version, VERSION)
        info = await http.get("/server_info?config_format=json", timeout=timeout)
        self.has_receiver = info["vllm_config"]["parallel_config"]["worker_extension_cls"] == WORKER
        problem = self._problem(info["vllm_config"])
        return problem or (await identity_problem(http, self.model, None) if self.is_given else None)

    def _problem(self, info: Mapping[str, Any]) -> str | None:
        """The problem of a server of this configuration, which answers requests nevertheless."""
        config, need = info["model_config"], self.arguments["max_model_len"]
        mode, length = config["logprobs_mode"], config["max_model_len"]
        if self.is_streamed and info["parallel_config"]["worker_extension_cls"] != WORKER:
            return NO_RECEIVER
        if self.arguments.get(_ROUTES) and not info["aux_output_config"][_ROUTES]:
            return f"no experts of tokens: --{_ROUTES.replace('_', '-')} is needed"
        if mode != _LOGPROBS:
            got = "log-probabilities of another distribution than the one from which it samples"
            return f"{got} ({mode}): --logprobs-mode {_LOGPROBS} is needed"
        if need is not None and length < need:
            return f"sequences of at most {length:,} tokens: generator.max_sequence_length must not be above it"
        return None

    async def abort(self, http: Http, identity: str, *, timeout: float) -> None:
        await http.post("/inference/v1/abort_requests", {"request_ids": [_PREFIX + identity]}, timeout=timeout)

    async def processes(self, http: Http, *, timeout: float) -> int:
        return (await http.get("/get_world_size", timeout=timeout))["world_size"]

    async def update(self, http: Http, weights: WeightFiles | WeightStream, *, timeout: float) -> None:
        if isinstance(weights, WeightFiles) and weights.is_adapter:
            await self._load_adapter(http, weights, timeout)
            return
        clear = "false" if self.stale_cache else "true"
        if isinstance(weights, WeightStream):
            method, arguments = "purerl_receive", weights.address._asdict()
        else:
            method, arguments = self.reader, {"weights_path": str(weights.directory)}
        await http.post(f"/pause?mode=keep&clear_cache={clear}", timeout=timeout)
        call = {"method": method, "kwargs": arguments, "timeout": timeout}
        await http.post("/collective_rpc", call, timeout=timeout)
        await self._set_version(http, weights.version, timeout)
        await http.post("/resume", timeout=timeout)

    async def _set_version(self, http: Http, version: int, timeout: float) -> None:
        await http.post("/update_weight_version", {"new_version": str(version)}, timeout=timeout)

    async def sleep(self, http: Http, *, level: int, timeout: float) -> None:
        await http.post(f"/sleep?level={level}", timeout=timeout)

    async def wake(self, http: Http, part: Literal["weights", "kv_cache"], *, timeout: float) -> None:
        await http.post(f"/wake_up?tags={part}", timeout=timeout)

    async def _load_adapter(self, http: Http, files: WeightFiles, timeout: float) -> None:
        """Replace the adapter. No request is in flight, so nothing has to be paused."""
        for old in await self._adapters(http, timeout):
            await http.post("/v1/unload_lora_adapter", {"lora_name": old}, timeout=timeout)
        name = _ADAPTER + files.name
        await http.post(
            "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(files.directory)}, timeout=timeout
        )
        loaded = await self._adapters(http, timeout)
        if loaded != [name]:
            raise RefusedError(f"adapters that are loaded: {loaded}, expected only {name}")
        await self._set_version(http, files.version, timeout)
        probe = self.request(PendingRequest(_PROBE), f"probe-{name}", files.name)
        answer = await http.post(probe.path, probe.body, timeout=timeout)
        if answer["model"] != name:
            raise RefusedError(f"a request to the adapter {name} was answered by {answer['model']}")

    async def _adapters(self, http: Http, timeout: float) -> list[str]:
        """The names of the adapters of purerl that the server has."""
        listed = await http.get("/v1/models", timeout=timeout)
        return [model["id"] for model in listed["data"] if model["id"].startswith(_ADAPTER)]


def _experts(encoded: str) -> np.ndarray:
    """[tokens, layers, k] what vLLM has serialized: a file of numpy, in base64."""
    return np.load(BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False).astype(np.int16)


def _structure(sampling: Sampling) -> dict[str, Any]:
    """The constraint on the text of a completion."""
    if sampling.json_schema is not None:
        return {"json": json.loads(sampling.json_schema)}
    return {"regex": sampling.regex}


def _mixed(seed: int) -> int:
    """A number below 2**63 whose lower 32 bits depend on all bits of `seed`: on a CPU vLLM uses no other bits."""
    return int.from_bytes(hashlib.blake2b((seed % 2**64).to_bytes(8, "little"), digest_size=8).digest()) >> 1
