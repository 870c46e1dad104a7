"""A reward model behind a server: the score that a classifier gives a completion, as vLLM, SGLang or OpenRLHF serve it.

What is asked, and where the score is in the answer:

    vllm      POST URL/classify {model, messages}, or {model, input} with a template     data[0].probs
    sglang    POST URL/classify {model, text}                                            embedding, or [0].embedding
    openrlhf  POST URL {query: [text], prompts: [prompt], labels: [ground truth]}        rewards[0]

Of one number it is the score, and of two it is the second one, which is the positive class. With `vllm` the server
renders the messages by the chat template of the model. A text is what `template` says: by default the prompt, and then
the completion. An answer without a score is asked for again, and is at the end a failure of the reward function.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from attrs import frozen

from purerl.errors import ConfigError
from purerl.rewards.endpoint.client import EndpointClient
from purerl.rewards.endpoint.errors import EndpointError, Meter, UnusableAnswerError
from purerl.rewards.endpoint.settings import OF_ENDPOINT, Endpoint, check_endpoint, check_served
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.judges.question import Question, prompt_of
from purerl.rewards.judges.settings import Judge
from purerl.rewards.outcomes import Measured
from purerl.settings import one_of, setting

__all__ = ["Config", "RemoteClassifier", "build", "check", "check_images", "check_running", "columns", "seconds"]

Api = Literal["vllm", "sglang", "openrlhf"]

_TEXT = "{{ prompt }}\n{{ completion }}"
_PATHS: Mapping[str, str] = {"vllm": "/classify", "sglang": "/classify", "openrlhf": ""}


@frozen(kw_only=True)
class Config:
    """Settings of the kind `remote_classifier`."""

    endpoint: Endpoint = setting("the server; its url is that of the host, such as http://localhost:8000")
    api: Api = setting("whose interface the server has", default="vllm", **one_of(*get_args(Api)))
    template: str | None = setting(
        "the text that is scored, as a Jinja template like that of a judge; if not given, the prompt and the "
        "completion, with api=vllm as messages",
        default=None,
    )
    extra_body: Mapping[str, Any] = setting(
        "further fields of each request, such as {use_activation = false}, with which vLLM gives the logit",
        factory=dict,
        credential=OF_ENDPOINT,
    )


def _question(config: Config) -> Question:
    return Question(Judge(template=config.template or _TEXT))


def check(config: Config) -> None:
    """Refuse a template that cannot be used, and an endpoint without its key. Raises ConfigError."""
    _question(config).check()
    check_endpoint(config.endpoint)
    if config.endpoint.output_price:
        need = "a model that writes text; a classifier has no tokens of answers"
        raise ConfigError("endpoint.output_price has no effect", got=config.endpoint.output_price, need=need)


def check_running(config: Config) -> None:
    """Refuse an endpoint that nobody serves. Raises ConfigError."""
    check_served(config.endpoint)


def check_images(config: Config) -> None:
    """Refuse a template that shows prompts with images. Raises ConfigError."""
    _question(config).check_images()


def columns(config: Config) -> list[str | tuple[str, ...]]:
    """The columns that the template reads."""
    return _question(config).columns()


def seconds(config: Config) -> float:
    """The longest time of a call."""
    return config.endpoint.longest


def build(config: Config) -> RemoteClassifier:
    """The reward function with the settings `config`."""
    variable = config.endpoint.api_key_variable
    client = EndpointClient(config.endpoint, os.environ[variable] if variable else None)
    return RemoteClassifier(config, client, _question(config))


@frozen
class RemoteClassifier:
    """The reward function of the kind `remote_classifier`."""

    config: Config
    client: EndpointClient
    question: Question

    async def __call__(
        self, completion: str, example: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> Measured:
        endpoint, meter = self.config.endpoint, Meter()
        body = {**self._body(completion, example, messages), **self.config.extra_body}
        try:
            score = await self.client.ask(_PATHS[self.config.api], body, _score, meter=meter)
        except EndpointError as error:
            error.totals = meter.totals(input_price=endpoint.input_price, output_price=0.0)
            raise
        return Measured(score, meter.totals(input_price=endpoint.input_price, output_price=0.0))

    def _body(
        self, completion: str, example: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        model, api = {"model": self.config.endpoint.model}, self.config.api
        if api == "vllm" and self.config.template is None:
            return {**model, "messages": [*_messages_of(example), *messages]}
        text = self.question(completion, example, messages)[-1]["content"]
        if api == "openrlhf":
            return {"query": [text], "prompts": [prompt_of(example)], "labels": [find_ground_truth(example)]}
        return {**model, ("input" if api == "vllm" else "text"): text}

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def _messages_of(example: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    prompt = example.get("prompt")
    return [*prompt] if isinstance(prompt, list) else [{"role": "user", "content": prompt_of(example)}]


def _score(answer: Any) -> float:
    """The score in an answer of any of the three servers."""
    for path in (("data", 0, "probs"), ("embedding",), (0, "embedding"), ("rewards",)):
        value = _at(answer, path)
        numbers = value if isinstance(value, list) else [value]
        is_valid = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
        if is_valid and len(numbers) in (1, 2):
            return float(numbers[-1])
    raise UnusableAnswerError(f"an answer without one or two numbers: {answer!r:.300}")


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
