"""A local HTTP server with vLLM's endpoint for tokens, ``/inference/v1/generate``, whose engine is `Generate`.

Programs that sample from such an endpoint, such as the training client of verifiers, run against an engine of purerl,
token in, token out. A header of a request says which sample it belongs to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import Factory, define, evolve

from purerl.adapters.packages import load
from purerl.protocols import Completion, Request, Sampling
from purerl.rollouts.types import Generate
from purerl.seeds import derive_seed

__all__ = ["MODEL", "Sample", "serve_tokens"]

MODEL = "policy"
"""The name of the model that is served."""

_READ = ("temperature", "max_tokens", "stop_token_ids")
_WITHOUT_EFFECT = ("logprobs", "skip_special_tokens", "routed_experts_prompt_start")


@define(eq=False)
class Sample:
    """The requests of one sample of a draw so far.

    key, seeds  of its first request; those of later ones also have the number of the request
    sampling    used for all requests, except for `max_tokens` and more stop tokens, which a request may set
    requests    tokens of each request that was answered, with its completion
    failure     the first exception or error of the engine, or None
    """

    key: str
    seeds: tuple[Any, ...]
    sampling: Sampling
    generate: Generate
    requests: list[tuple[Sequence[int], Completion]] = Factory(list)
    failure: BaseException | None = None
    number: int = 0

    def make_request(self, body: Mapping[str, Any]) -> Request:
        """The request in the JSON object `body`. Raises ValueError for a sampling parameter that has no effect here."""
        given = {name: value for name, value in body["sampling_params"].items() if value is not None}
        temperature = given.get("temperature", self.sampling.temperature)
        if temperature != self.sampling.temperature:
            raise ValueError(f"temperature {temperature:g}, but the run samples at {self.sampling.temperature:g}")
        unknown = sorted(given.keys() - {*_READ, *_WITHOUT_EFFECT})
        if unknown:
            raise ValueError(f"sampling parameters that purerl does not support: {', '.join(unknown)}")
        stop_tokens = tuple(dict.fromkeys([*self.sampling.stop_tokens, *given.get("stop_token_ids", ())]))
        max_tokens = min(given.get("max_tokens", self.sampling.max_tokens), self.sampling.max_tokens)
        number, self.number = self.number, self.number + 1
        turn = (number,) if number else ()
        return Request(
            "/".join([self.key, *map(str, turn)]),
            body["token_ids"],
            evolve(self.sampling, stop_tokens=stop_tokens, max_tokens=max_tokens),
            derive_seed(*self.seeds, *turn),
        )


@asynccontextmanager
async def serve_tokens(samples: Mapping[str, Sample], header: str) -> AsyncIterator[str]:
    """Serve requests of `samples`, by the value of `header`, on a free local port; yield the base URL.

    A request that is given up by its client is canceled. The mapping is read at each request.
    """
    web = load("aiohttp.web", "verifiers")

    async def answer(http_request: Any) -> Any:
        body = await http_request.json()
        sample = samples.get(http_request.headers.get(header, ""))
        if sample is None or body["model"] != MODEL:
            return _error(web, 404, f"model {body['model']!r} is not served to this client; use {MODEL!r}")
        try:
            request = sample.make_request(body)
        except ValueError as error:
            return _error(web, 400, str(error))
        try:
            [completion] = await sample.generate([request])
        except Exception as error:  # noqa: BLE001 -- the workflow raises it
            sample.failure = sample.failure or error
            return _error(web, 500, f"{type(error).__name__}: {error}")
        if completion.finish in ("error", "cancelled"):
            return _error(web, 500, completion.error or completion.finish)
        sample.requests.append((request.tokens, completion))
        pairs = zip(completion.tokens, completion.logp, strict=True)
        choice = {
            "token_ids": [*map(int, completion.tokens)],
            "logprobs": {"content": [{"token": f"token_id:{token}", "logprob": float(logp)} for token, logp in pairs]},
            "finish_reason": completion.finish,
        }
        return web.json_response({"request_id": completion.key, "choices": [choice]})

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/inference/v1/generate", answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def _error(web: Any, status: int, message: str) -> Any:
    return web.json_response({"error": {"message": message}}, status=status)
