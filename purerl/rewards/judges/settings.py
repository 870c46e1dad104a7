"""The settings of a judge: what it is asked, how often, and how a number is read from its answers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import at_least, boolean, check_alternatives, no_effect, one_of, setting

__all__ = ["Answer", "Combine", "Judge"]

Combine = Literal["mean", "majority", "median", "min", "max"]

_FINITE = {"need": "a finite number", "valid": math.isfinite}


@frozen(kw_only=True)
class Answer:
    """Reading a number from the answer of a judge. An answer without a valid one cannot be used."""

    pattern: str | None = setting(
        "regular expression of Python; the score is its group `score`, or its first group, in the last match. If "
        "neither this nor json_field is given, a line `Score: N` in its usual spellings",
        default=None,
    )
    json_field: str | None = setting(
        "the answer contains a JSON object, and the score is this field of it; dots separate the names of fields",
        default=None,
    )
    labels: Mapping[str, float] = setting(
        "the numbers that words stand for, such as {yes = 1, no = 0}; the score must be one of these words, in upper "
        "or lower case",
        factory=dict,
    )
    minimum: float = setting("smallest valid score", default=1.0, **_FINITE)
    maximum: float = setting("largest valid score", default=10.0, **_FINITE)
    normalize: bool = setting("scale scores so that minimum is 0 and maximum is 1", default=True, **boolean())

    def __attrs_post_init__(self) -> None:
        check_alternatives(self, "pattern", "json_field")
        if not self.minimum < self.maximum:
            raise ConfigError("minimum", got=self.minimum, need=f"less than maximum, {self.maximum:g}")
        for word, value in self.labels.items():
            if type(value) not in (int, float):
                raise ConfigError(f"labels.{word}", got=repr(value), need="a number, without quotes")
        outside = {word: value for word, value in self.labels.items() if not self.minimum <= value <= self.maximum}
        for word, value in outside.items():
            need = f"from minimum, {self.minimum:g}, to maximum, {self.maximum:g}"
            raise ConfigError(f"labels.{word}", got=value, need=need, do="set minimum and maximum")
        try:
            has_group = self.pattern is None or re.compile(self.pattern).groups
        except re.error as error:
            raise ConfigError("pattern", got=repr(self.pattern), need=f"a regular expression: {error}") from error
        if not has_group:
            raise ConfigError("pattern", got=repr(self.pattern), need="a group, in parentheses, that is the score")


@frozen(kw_only=True)
class Judge:
    """The question to a judge about a completion, and the reward computed from its answers."""

    template: str | None = setting(
        "the message of the user, as a Jinja template. It may use completion, prompt, conversation, example, and the "
        "columns of the example by their names. If neither this nor template_file is given, a question for a score",
        default=None,
    )
    template_file: str | None = setting("a file with the template", default=None)
    system_prompt: str | None = setting("the message of the system before it", default=None)
    answer: Answer = setting("how a number is read from an answer", factory=Answer)
    samples: int = setting("number of answers about each completion", default=1, **at_least(1))
    combine: Combine = setting(
        "what becomes of the scores of several samples; majority: the most frequent one, or the mean of several",
        default="mean",
        **one_of(*get_args(Combine)),
    )
    temperature: float = setting(
        "of the answers; with several samples it should be above 0",
        default=0.0,
        need="a finite number, at least 0",
        valid=lambda value: 0 <= value < math.inf,
    )
    max_tokens: int = setting("maximum number of tokens of an answer", default=1024, **at_least(1))

    def __attrs_post_init__(self) -> None:
        check_alternatives(self, "template", "template_file")
        if self.samples == 1 and self.combine != "mean":
            raise no_effect("combine", self.combine, "several samples", "set samples, or leave combine out")
        if self.samples > 1 and self.temperature == 0:
            need = "a temperature above 0: otherwise all answers are the same"
            raise no_effect("samples", self.samples, need, "set temperature")
