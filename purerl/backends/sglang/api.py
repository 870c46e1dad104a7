"""SGLang's HTTP interface, of version 0.5.20: token ids both ways.

New weights in flight: requests are aborted, the server drops all keys and values and loads the files, and it gets what
is left of the requests again. Each token's log-probability is then that of its own version. With
`stale_cache` requests stay in the server instead, with the keys and values of the old weights.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from attrs import frozen

from purerl.backends.requests import PendingRequest
from purerl.backends.serving.api import Answer, Call, Command, checked_routes
from purerl.backends.serving.http import Http, RefusedError
from purerl.backends.serving.identity import identity_problem, version_problem
from purerl.backends.serving.settings import as_flags
from purerl.backends.serving.versions import warn_of_version
from purerl.backends.serving.weights import NO_RECEIVER, WeightFiles, WeightStream
from purerl.backends.sglang.settings import VERSION
from purerl.protocols import Sampling
from purerl.settings import Model

__all__ = ["LOADER", "SGLangApi"]

LOADER = "purerl_receiver.load_into_sglang"
"""The function that receives weights, in a process of SGLang."""

_POLL = 0.01  # seconds
_FINISH = {"stop": "stop", "length": "length", "abort": "interrupted"}


@frozen(eq=False)
class SGLangApi:
    """SGLang with `model`, which has `vocab_size` token ids; `arguments` are command-line options of its server.

    With `is_streamed`, its processes must be able to receive weights. One that `is_given` must be the version and have
    the model that purerl would start. With `routes`, the number of layers and of experts of a token, it returns the
    experts.
    """

    model: Model
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    python: str | None
    stale_cache: bool
    is_streamed: bool
    vocab_size: int
    is_given: bool = False
    routes: tuple[int, int] | None = None

    name = "sglang"

    def keeps_requests(self, *, is_adapter: bool) -> bool:
        return self.stale_cache

    def command(self, host: str, port: int) -> Command:
        program = (self.python or sys.executable, "-m", "purerl_sglang", "--model-path", self.model.path)
        arguments = {"host": host, "port": port, **self.arguments}
        # On a CPU the names of its shared memory depend on these variables, which a process group would set.
        environment = {"MASTER_ADDR": host, "MASTER_PORT": str(port), **self.environment}
        return Command((*program, *as_flags(arguments)), environment)

    def request(self, pending: PendingRequest, identity: str, adapter: str | None) -> Call:
        sampling = pending.request.sampling
        parameters = {
            "max_new_tokens": pending.remaining,
            "temperature": sampling.temperature,
            "ignore_eos": not sampling.stop_tokens,  # otherwise it would ignore stop_token_ids too
            "stop_token_ids": list(sampling.stop_tokens),
            "stop": list(sampling.stop_strings),
            "no_stop_trim": True,  # the tokens of a stop string belong to the completion
        }
        is_filtered = _is_filtered(sampling)
        if is_filtered:  # for log-probabilities among the tokens that are kept, SGLang needs a finite top_k
            filters = {"top_p": sampling.top_p, "min_p": sampling.min_p, "top_k": sampling.top_k or self.vocab_size}
            parameters |= filters | {"top_k": min(filters["top_k"], self.vocab_size)}
        if pending.min_tokens:
            parameters["min_new_tokens"] = pending.min_tokens
        if sampling.is_structured:
            parameters |= {"regex": sampling.regex, "json_schema": sampling.json_schema}
        body = {"input_ids": pending.all_tokens, "sampling_params": parameters, "return_logprob": True, "rid": identity}
        body |= {"return_routed_experts": True} if self.routes is not None else {}
        return Call("/generate", {**body, "return_sampling_mask": True} if is_filtered else body)

    def answer(self, response: Any, pending: PendingRequest) -> Answer:
        info, sampling = response["meta_info"], pending.request.sampling
        end = info["finish_reason"]
        is_foreign = isinstance(end.get("matched"), int) and end["matched"] not in sampling.stop_tokens
        if is_foreign and not sampling.is_structured:
            end = {"type": "abort"}  # the model's own end, which the request does not have: it is continued
        tokens, logp = response["output_ids"], [each[0] for each in info["output_token_logprobs"]]
        if _is_filtered(sampling):
            logp = info["output_token_sampling_logprobs"]
        versions = [(each["version"], each["end"] - each["start"]) for each in info["weight_versions"] or ()]
        if not len(tokens) == len(logp) == sum(count for _, count in versions):
            raise ValueError(f"{len(tokens)} tokens, {len(logp)} log-probabilities, versions {versions}")
        answer = Answer(tokens, logp, versions, _FINISH[end["type"]])
        if self.routes is None:
            return answer
        encoded = info.get("routed_experts")
        routes = None if encoded is None else _experts(encoded, self.routes)
        return checked_routes(answer._replace(routes=routes), pending)

    async def check(self, http: Http, *, timeout: float) -> str | None:
        info = await http.get("/server_info", timeout=timeout)
        if "version" not in info:
            return f"no version in /server_info: SGLang {VERSION} is needed"
        if self.is_given and (problem := version_problem(self.name, info["version"], VERSION)) is not None:
            return problem
        if self.routes is not None and not info.get("enable_return_routed_experts"):
            return "no experts of tokens: --enable-return-routed-experts is needed"
        if self.is_streamed and LOADER not in (info.get("custom_weight_loader") or ()):
            return NO_RECEIVER  # it would end with the first weights
        warn_of_version(http.url, self.name, info["version"], VERSION)
        if not self.is_given:
            return None
        shown = await http.get("/model_info", timeout=timeout)
        return await identity_problem(http, self.model, shown.get("model_type"))

    async def abort(self, http: Http, identity: str, *, timeout: float) -> None:
        await http.post("/abort_request", {"rid": identity}, timeout=timeout)

    async def processes(self, http: Http, *, timeout: float) -> int:
        return (await http.get("/server_info", timeout=timeout))["tp_size"]

    async def update(self, http: Http, weights: WeightFiles | WeightStream, *, timeout: float) -> None:
        if self.stale_cache:
            await http.post("/pause_generation", {"mode": "in_place"}, timeout=timeout)
            await self._load(http, weights, timeout)
            await http.post("/continue_generation", {}, timeout=timeout)
        else:
            await self._flush(http, timeout)
            await self._load(http, weights, timeout)

    async def sleep(self, http: Http, *, level: int, timeout: float) -> None:
        await self._flush(http, timeout)  # the server would end if it had not forgotten its last request
        await http.post("/release_memory_occupation", {"tags": ["kv_cache", "weights"]}, timeout=timeout)

    async def wake(self, http: Http, part: Literal["weights", "kv_cache"], *, timeout: float) -> None:
        await http.post("/resume_memory_occupation", {"tags": [part]}, timeout=timeout)

    async def _load(self, http: Http, weights: WeightFiles | WeightStream, timeout: float) -> None:
        # With flush_cache=true the server would end if the last request has just been answered.
        body: dict[str, Any] = {"weight_version": str(weights.version), "flush_cache": False}
        if isinstance(weights, WeightStream):
            # One for each process; purerl_sglang reads it. SGLang decodes base64 twice, and would else unpickle it.
            message = base64.b64encode(json.dumps(weights.address._asdict()).encode())
            copies = [base64.b64encode(message).decode()] * (weights.address.size - 1)
            body |= {"serialized_named_tensors": copies, "load_format": LOADER}
            await http.post("/update_weights_from_tensor", body, timeout=timeout)
        else:
            body |= {"model_path": str(weights.directory)}
            await http.post("/update_weights_from_disk", body, timeout=timeout)

    async def _flush(self, http: Http, timeout: float) -> None:
        """Drop all keys and values. The server refuses until it has forgotten its last request."""
        while True:
            try:
                return await http.post("/flush_cache", timeout=timeout)
            except RefusedError:
                await asyncio.sleep(_POLL)


def _experts(encoded: str, shape: tuple[int, int]) -> np.ndarray:
    """[tokens, layers, k] what SGLang has serialized: int32 in base64, without a shape."""
    flat = np.frombuffer(base64.b64decode(encoded, validate=True), np.int32)
    return flat.reshape(-1, *shape).astype(np.int16)


def _is_filtered(sampling: Sampling) -> bool:
    """Whether tokens are sampled from a part of the distribution."""
    return sampling.temperature > 0 and not sampling.parameters.isdisjoint({"top_p", "top_k", "min_p"})
