"""A reward that a language model behind an OpenAI-compatible server gives: an LLM as a judge.

The judge is asked about each completion, `judge.samples` times. A number is read from each of its answers, and the
reward is what `judge.combine` makes of them. If no number can be read from an answer, the judge is asked again, at most
`endpoint.max_retries` times. If at most half of the samples have a number, the completion has no reward: that is a
failure of the reward function, and never a reward of 0. Source: Zheng et al. 2023 (2306.05685).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, field, frozen

from purerl.rewards.endpoint.client import EndpointClient
from purerl.rewards.endpoint.errors import EndpointError, Meter, UnusableAnswerError
from purerl.rewards.endpoint.settings import OF_ENDPOINT, Endpoint, check_endpoint, check_served
from purerl.rewards.judges.answers import combine, parse_score
from purerl.rewards.judges.question import Question
from purerl.rewards.judges.settings import Judge
from purerl.rewards.outcomes import Measured
from purerl.settings import in_section, setting

__all__ = ["Config", "JudgeReward", "build", "check", "check_images", "check_running", "columns", "seconds"]

_PATH = "/chat/completions"


@frozen(kw_only=True)
class Config:
    """Settings of the kind `judge`."""

    endpoint: Endpoint = setting("the server of the judge")
    judge: Judge = setting("what it is asked, and how a number is read from its answers", factory=Judge)
    extra_body: Mapping[str, Any] = setting(
        "further fields of each request, such as {reasoning_effort = 'low'}", factory=dict, credential=OF_ENDPOINT
    )


def check(config: Config) -> None:
    """Refuse a template that cannot be used, and an endpoint without its key. Raises ConfigError."""
    with in_section("judge", Judge):
        Question(config.judge).check()
    check_endpoint(config.endpoint)


def check_running(config: Config) -> None:
    """Refuse an endpoint that nobody serves. Raises ConfigError."""
    check_served(config.endpoint)


def check_images(config: Config) -> None:
    """Refuse a template that shows prompts with images. Raises ConfigError."""
    with in_section("judge", Judge):
        Question(config.judge).check_images()


def columns(config: Config) -> list[str | tuple[str, ...]]:
    """The columns that the template reads."""
    return Question(config.judge).columns()


def seconds(config: Config) -> float:
    """The longest time of a call."""
    return config.endpoint.longest


def build(config: Config) -> JudgeReward:
    """The reward function with the settings `config`."""
    variable = config.endpoint.api_key_variable
    return JudgeReward(config, EndpointClient(config.endpoint, os.environ[variable] if variable else None))


@frozen
class JudgeReward:
    """The reward function of the kind `judge`."""

    config: Config
    client: EndpointClient
    question: Question = field(default=Factory(lambda self: Question(self.config.judge), takes_self=True), init=False)

    async def __call__(
        self, completion: str, example: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> Measured:
        asked, meter = self.question(completion, example, messages), Meter()
        samples = (self._score(asked, number, meter) for number in range(self.config.judge.samples))
        results = await asyncio.gather(*samples, return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, EndpointError):
                raise error
        scores = [score for score in results if isinstance(score, float)]
        endpoint = self.config.endpoint
        totals = meter.totals(input_price=endpoint.input_price, output_price=endpoint.output_price)
        score = combine(scores, self.config.judge)
        if score is None:
            first = next(error for error in results if isinstance(error, EndpointError))
            raise EndpointError(str(first), totals)
        return Measured(score, totals)

    async def _score(self, asked: Sequence[Mapping[str, str]], number: int, meter: Meter) -> float:
        body = {
            "model": self.config.endpoint.model,
            "messages": asked,
            "temperature": self.config.judge.temperature,
            "max_tokens": self.config.judge.max_tokens,
            **({"seed": number} if self.config.judge.samples > 1 else {}),
            **self.config.extra_body,
        }
        return await self.client.ask(_PATH, body, self._accept, meter=meter, variant=number)

    def _accept(self, answer: Any) -> float:
        text, is_cut = _content(answer)
        try:
            return parse_score(self.config.judge.answer, text)
        except UnusableAnswerError as error:
            cut = f" (the answer was cut at max_tokens, {self.config.judge.max_tokens})" if is_cut else ""
            raise UnusableAnswerError(f"{error}{cut}") from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def _content(answer: Any) -> tuple[str, bool]:
    """The text of a chat completion, and whether it was cut at the maximum length."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise UnusableAnswerError(f"an answer that is no chat completion: {answer!r:.300}") from error
    if not isinstance(text, str):
        raise UnusableAnswerError(f"an answer without text: {choice!r:.300}")
    return text, choice.get("finish_reason") == "length"
