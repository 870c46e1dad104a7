"""Settings of the section `evaluate`, and their checks."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from purerl.errors import ConfigError
from purerl.plugins import locate
from purerl.settings import at_least, check_strings, no_effect, setting

__all__ = ["Evaluate", "check_answer_extractor", "check_evaluation"]


def _to_files(value: str | Sequence[str] | Mapping[str, str]) -> Mapping[str, str]:
    """Files by name. A string is a file, which is named after its stem, or NAME=FILE."""
    if isinstance(value, Mapping):
        return value
    files = [value] if isinstance(value, str) else list(value)
    named = dict(map(_named_file, files))
    if len(named) < len(files):
        raise ConfigError("two files with the same name", got=", ".join(files), do="name them: NAME=FILE")
    return named


def _named_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    return (name, file) if equals and "/" not in name else (re.sub(r"[^\w.-]", "_", Path(text).stem), text)


@frozen(kw_only=True)
class Evaluate:
    """How the policy is evaluated: completions of each problem, greedy by default, scored with the run's rewards."""

    data: Mapping[str, str] = setting(
        "problems: a file as in data.files, a list of files, or a table of files by name; NAME=FILE names a file. "
        "If not given, the validation set of data.validation_fraction",
        factory=dict,
        converter=_to_files,
        read=_to_files,
    )
    every: int = setting(
        "steps between evaluations; there is also one before the first step and one after the last",
        default=20,
        may_change="cadence",
        **at_least(1),
    )
    max_tokens: int = setting("maximum number of new tokens", unit="tokens", **at_least(1))
    samples_per_prompt: int = setting("completions of each problem", default=1, **at_least(1))
    temperature: float = setting("divides the logits; 0: greedy decoding (argmax)", default=0.0)
    pass_at_k: tuple[int, ...] = setting(
        "values of k for pass@k; if not given and there are several samples, their number", default=()
    )
    answer_extractor: str | None = setting(
        "function (completion) -> str or None that extracts the answer, as module:function; it enables maj@k",
        default=None,
    )
    max_examples: int | None = setting("use only the first problems of each file", default=None, **at_least(1))
    stop_strings: tuple[str, ...] = setting("strings that end a completion, beside the stop tokens", default=())

    def __attrs_post_init__(self) -> None:
        for name, file in self.data.items():
            if not isinstance(file, str):
                raise ConfigError("data", got=repr(file), need="a file name")
            if not re.fullmatch(r"[\w.-]+", name):
                raise ConfigError("data", got=f"the name {name!r}", need="letters, digits, ., - and _")
        check_strings("stop_strings", self.stop_strings)
        if not 0 <= self.temperature < math.inf:
            raise ConfigError("temperature", got=self.temperature, need="0 or above, and finite")
        samples = self.samples_per_prompt
        if samples > 1 and self.temperature == 0:
            need = "a temperature above 0: all greedy completions of a problem are equal"
            do = "set temperature, for example to 1.0"
            raise ConfigError("samples_per_prompt has no effect", got=samples, need=need, do=do)
        if not all(1 <= k <= samples for k in self.pass_at_k):
            raise ConfigError("pass_at_k", got=self.pass_at_k, need=f"from 1 to samples_per_prompt, {samples}")
        if len(set(self.pass_at_k)) < len(self.pass_at_k):
            raise ConfigError("pass_at_k", got=self.pass_at_k, need="each k once")
        if self.answer_extractor is not None and samples == 1:
            got, need = repr(self.answer_extractor), "several samples, to find the most frequent answer"
            raise ConfigError("answer_extractor has no effect", got=got, need=need, do="set samples_per_prompt")

    @property
    def pass_ks(self) -> tuple[int, ...]:
        """Values of k for which pass@k is computed."""
        return self.pass_at_k or ((self.samples_per_prompt,) if self.samples_per_prompt > 1 else ())


def check_evaluation(settings: Evaluate | None, validation_fraction: float) -> None:
    """Raise ConfigError unless an evaluation has exactly one source of problems, and no evaluation has none."""
    key, do = "data.validation_fraction", "leave data.validation_fraction"
    if settings is None:
        if validation_fraction:
            raise no_effect(key, validation_fraction, "an evaluation", f"set evaluate.max_tokens, or {do} out")
        return
    if not settings.data and not validation_fraction:
        raise ConfigError("evaluate.data is missing", need="problems for the evaluation", do=f"set it, or {key}")
    if settings.data and validation_fraction:
        need = "an evaluation without evaluate.data"
        raise no_effect(key, validation_fraction, need, f"{do} or evaluate.data out")
    check_answer_extractor(settings)


def check_answer_extractor(settings: Evaluate) -> None:
    """Raise ConfigError if `answer_extractor` is not a function of one completion."""
    if settings.answer_extractor is None:
        return
    function = locate(settings.answer_extractor)
    if not callable(function) or not _takes_one_argument(function):
        got = f"a function {inspect.signature(function)}" if callable(function) else type(function).__name__
        raise ConfigError("evaluate.answer_extractor", got=got, need="a function (completion) -> str or None")


def _takes_one_argument(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind("")
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True
