"""Settings of the section `evaluate`, and their checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from attrs import fields_dict, frozen

from purerl.errors import ConfigError
from purerl.plugins import locate
from purerl.sampling import MAX_SAMPLES, MAX_TEMPERATURE, MIN_TEMPERATURE
from purerl.settings import (
    above_zero,
    at_least,
    between,
    boolean,
    check_alternatives,
    check_strings,
    no_effect,
    setting,
)
from purerl.system.nesting import read_json

__all__ = ["Evaluate", "Validation", "check_answer_extractor", "check_evaluation", "check_validation"]


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(read_json(text), dict)
    except ValueError:
        return False


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
    """Evaluation of the policy: completions of each problem, greedy by default, scored with the run's rewards."""

    data: Mapping[str, str] = setting(
        "problems: a file as in data.files, a list of files, or a table of files by name; NAME=FILE names a file. "
        "If not given, the validation set of data.validation_fraction",
        factory=dict,
        converter=_to_files,
        read=_to_files,
    )
    every: int = setting(
        "steps between evaluations; there is also one after the last step", default=20, may_change=True, **at_least(1)
    )
    before_training: bool = setting("also evaluate the policy before the first step", default=True, **boolean())
    max_tokens: int | None = setting(
        "maximum number of new tokens; if not given, rollout.max_tokens", unit="tokens", default=None, **at_least(1)
    )
    samples_per_prompt: int = setting("completions of each problem", default=1, **at_least(1, MAX_SAMPLES))
    temperature: float = setting("divides the logits; 0: greedy decoding (argmax)", default=0.0)
    pass_at_k: tuple[int, ...] | None = setting(
        "values of k for pass@k; if not given and there are several samples, their number; []: none", default=None
    )
    answer_extractor: str | None = setting(
        "function (completion) -> str or None that extracts the answer, as module:function; it enables maj@k",
        default=None,
    )
    accuracy_reward: str | None = setting(
        "reward or gate that decides whether a completion is correct: its value is at least 1; of several components "
        "the one in brackets, as in grade[correct], or the first; if not given, the first reward that applies",
        default=None,
    )
    max_examples: int | None = setting("use only the first problems of each file", default=None, **at_least(1))
    stop_strings: tuple[str, ...] = setting("strings that end a completion, beside the stop tokens", default=())
    top_p: float = setting(
        "sample from the most likely tokens whose probabilities add up to it; 1: from all",
        default=1.0,
        need="a number above 0, at most 1",
        valid=lambda value: 0 < value <= 1,
    )
    top_k: int = setting("sample from this number of the most likely tokens; 0: from all", default=0, **at_least(0))
    min_p: float = setting(
        "sample from tokens that are at least this share as likely as the most likely one; 0: from all",
        default=0.0,
        **between(0, 1),
    )
    repetition_penalty: float = setting(
        "above 1, lowers the logits of tokens that are in the prompt or the completion", default=1.0, **above_zero()
    )
    min_tokens: int = setting(
        "new tokens before which a completion does not end", default=0, unit="tokens", **at_least(0)
    )
    regex: str | None = setting(
        "a regular expression that completions match; only some engines have it",
        default=None,
        need="a string of at least one character",
        valid=lambda value: isinstance(value, str) and bool(value),
    )
    json_schema: str | None = setting(
        "a JSON schema, as text, that completions satisfy; only some engines have it",
        default=None,
        need="a JSON object, as text",
        valid=lambda value: isinstance(value, str) and _is_json_object(value),
    )

    def __attrs_post_init__(self) -> None:
        for name, file in self.data.items():
            if not isinstance(file, str):
                raise ConfigError("data", got=repr(file), need="a file name")
            if not re.fullmatch(r"[\w.-]+", name):
                raise ConfigError("data", got=f"the name {name!r}", need="letters, digits, ., - and _")
        check_strings("stop_strings", self.stop_strings)
        if self.temperature != 0 and not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            need = f"0, or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            raise ConfigError("temperature", got=self.temperature, need=need)
        self._check_sampling()
        samples = self.samples_per_prompt
        if samples > 1 and self.temperature == 0:
            need = "a temperature above 0: all greedy completions of a problem are equal"
            do = "set temperature, for example to 1.0"
            raise no_effect("samples_per_prompt", samples, need, do)
        if not all(1 <= k <= samples for k in self.pass_at_k or ()):
            raise ConfigError("pass_at_k", got=self.pass_at_k, need=f"from 1 to samples_per_prompt, {samples}")
        if len(set(self.pass_at_k or ())) < len(self.pass_at_k or ()):
            raise ConfigError("pass_at_k", got=self.pass_at_k, need="each k once")
        if self.answer_extractor is not None and samples == 1:
            need = "several samples, to find the most frequent answer"
            raise no_effect("answer_extractor", self.answer_extractor, need, "set samples_per_prompt")

    def _check_sampling(self) -> None:
        unused = {name: getattr(self, name) for name in ("top_p", "top_k", "min_p") if self.temperature == 0}
        for name, value in unused.items():
            if value != fields_dict(Evaluate)[name].default:
                need = "a temperature above 0: greedy decoding always takes the most likely token"
                raise no_effect(name, value, need, f"set temperature, for example to 1.0, or leave {name} out")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError("min_tokens", got=self.min_tokens, need=f"at most max_tokens, {self.max_tokens}")
        check_alternatives(self, "regex", "json_schema")

    def is_due(self, step: int) -> bool:
        """Whether there is an evaluation after `step`, which is 0 before training, if it is not the last one."""
        return step % self.every == 0 and (step > 0 or self.before_training)

    @property
    def pass_ks(self) -> tuple[int, ...]:
        """Values of k for which pass@k is computed."""
        default = (self.samples_per_prompt,) if self.samples_per_prompt > 1 else ()
        return default if self.pass_at_k is None else self.pass_at_k


def _to_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@frozen(kw_only=True)
class Validation:
    """Validation of a policy that learns from data: its loss on held-out examples, without sampling.

    In settings a string stands for the file with that name.
    """

    data: tuple[str, ...] = setting(
        "held-out demonstrations or preference pairs: files as in data.files. "
        "If not given, the validation set of data.validation_fraction",
        default=(),
        converter=_to_tuple,
        read=_to_tuple,
        short=list,
    )
    every: int = setting(
        "steps between validations; there is also one before the first step and one after the last",
        default=20,
        may_change=True,
        **at_least(1),
    )
    max_examples: int | None = setting("use only the first examples", default=None, **at_least(1))

    def is_due(self, step: int) -> bool:
        """Whether there is a validation after `step`, which is 0 before training, if it is not the last one."""
        return step % self.every == 0


def check_evaluation(
    evaluate: Evaluate | None, validation_fraction: float | None, validation: Validation | None = None
) -> None:
    """Raise ConfigError unless the evaluation and the validation have one source of data each, and each is used."""
    key, do = "data.validation_fraction", "leave data.validation_fraction"
    sections = {"evaluate": evaluate, "validation": validation}
    used = {name: section for name, section in sections.items() if section is not None}
    needs = {"evaluate": "problems for the evaluation", "validation": "held-out examples"}
    for name, section in used.items():
        if not section.data and not validation_fraction:
            do = f"set it, or {key}; an empty value, {name}=, turns it off"
            raise ConfigError(f"{name}.data is missing", need=needs[name], do=do)
    if validation_fraction and not used:
        do = f"set evaluate.every or validation.every, or {do} out"
        raise no_effect(key, validation_fraction, "an evaluation", do)
    if validation_fraction and all(section.data for section in used.values()):
        names = " and ".join(f"{name}.data" for name in used)
        need = f"{'an evaluation' if evaluate else 'a validation'} without {names}"
        raise no_effect(key, validation_fraction, need, f"{do} or {names.replace(' and ', ' or ')} out")
    if evaluate is not None and evaluate.max_tokens is None:
        need = "the maximum number of new tokens: there is no rollout whose limit it could have"
        raise ConfigError("evaluate.max_tokens is missing", need=need, do="set it, as in evaluate.max_tokens = 256")
    if evaluate is not None:
        check_answer_extractor(evaluate)


def check_validation(settings: Validation | None, reads: Collection[str], kind: str, *, is_sampling: bool) -> None:
    """Refuse the validation of an algorithm, called `kind`, that has no loss on held-out data.

    `reads` are the fields that the algorithm reads; `is_sampling`: it learns from completions of the policy. Raises:
    ConfigError.
    """
    if settings is not None and is_sampling:
        need = "an algorithm that learns from data: completions of the policy have no held-out loss"
        raise no_effect("validation", settings, need, "leave it out, and set evaluate")
    if settings is not None and "old_logp" in reads:
        need = f"a loss that is relative to a fixed model; {kind} compares the policy with itself before an update"
        raise no_effect("validation", settings, need)


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
