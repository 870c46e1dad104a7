"""What a run is: one frozen class, `RunConfig`, and the sections of it.

A recipe is a Python function that returns a RunConfig; a TOML file with the same fields says the same. A field of an
engine or an algorithm holds the `Config` of its module, whose other fields are that module's business.

Paths may begin with ``{run}``, the run's directory: for files that `prepare` or `start` writes there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Attribute, field, frozen
from attrs.converters import optional

from purerl.errors import ConfigError
from purerl.protocols import Model

__all__ = ["Checkpoint", "Data", "Evaluate", "Overlong", "Reward", "RewardWorkers", "Rollout", "RunConfig", "StopWhen"]


def _within(least: int, most: float, need: str) -> Any:
    def validate(instance: Any, attribute: Attribute, value: Any) -> None:
        if value is not None and not least <= value <= most:
            raise ConfigError(attribute.name, got=value, need=need)

    return validate


def _check_texts(name: str, texts: Iterable[str]) -> None:
    if not all(texts):
        raise ConfigError(name, got="an empty text", need="texts of at least one character", do="leave it out")


def _setting(
    help: str,
    *,
    unit: str = "",
    least: int | None = None,
    most: float = math.inf,
    plugin: str = "",
    short: Any = False,
    read: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Any:
    """An attrs field that explains itself; `short`: a text in the place of its class is this field's value.

    With `list` for `short`, it is the only one of this field's values. `read` makes what the field's type needs of
    other ways to say it.
    """
    need = "" if least is None else f"at least {least}" if most == math.inf else f"from {least} to {most}"
    metadata = {"help": help, "unit": unit, "need": need, "short": short}
    metadata |= ({"plugin": plugin} if plugin else {}) | ({"read": read} if read else {})
    return field(metadata=metadata, validator=[] if least is None else [_within(least, most, need)], **kwargs)


@frozen(kw_only=True)
class Overlong:
    """A penalty for completions that are about to reach `max_tokens`, from DAPO (2503.14476, eq. 13).

    0 up to `buffer` tokens before the limit, then linearly down, to -factor at the limit.
    """

    buffer: int = _setting("tokens before max_tokens, over which the penalty grows", unit="tokens", least=1)
    factor: float = _setting("the largest penalty", unit="reward", default=1.0)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ConfigError("factor", got=self.factor, need="above 0, and finite", do="leave overlong out for none")


@frozen(kw_only=True)
class Data:
    """What a run learns from. A file's name alone, as a text, is that file with nothing else set.

    Files may be of different formats, but all have text prompts, or all have chat messages.
    """

    files: tuple[str, ...] = _setting("Parquet, JSON Lines, a pattern of such, or a data set's directory", short=list)
    weights: tuple[float, ...] = _setting(
        "share of each file among the draws, in proportion; if not given, every row is drawn as often", default=()
    )
    system_prompt: str | None = _setting("system prompt of every conversation that has none of its own", default=None)
    chat_template_kwargs: Mapping[str, Any] = _setting(
        "arguments of the chat template, such as enable_thinking", factory=dict
    )
    max_prompt_tokens: int | None = _setting(
        "rows whose prompt is longer are left out", unit="tokens", default=None, least=1
    )
    validation_fraction: float = _setting(
        "share of the prompts that is never trained on, chosen by their hash", default=0.0
    )

    def __attrs_post_init__(self) -> None:
        if not self.files:
            raise ConfigError("files", got="none", need="at least one file")
        if self.weights and len(self.files) == 1:
            do = "leave weights out, or name several files"
            raise ConfigError("weights has no effect", got=repr(self.weights), need="several files", do=do)
        if self.weights and len(self.weights) != len(self.files):
            need = f"one for each file, {len(self.files)}"
            raise ConfigError("weights", got=f"{len(self.weights)} of them", need=need)
        if not all(0 < weight < math.inf for weight in self.weights):
            raise ConfigError("weights", got=repr(self.weights), need="above 0, and finite", do="leave the file out")
        if None in self.chat_template_kwargs.values():
            raise ConfigError(
                "chat_template_kwargs", got=repr(self.chat_template_kwargs), need="values: TOML has no None"
            )
        if not 0 <= self.validation_fraction < 1:
            raise ConfigError("validation_fraction", got=self.validation_fraction, need="from 0 to 1, without 1")


def _data(given: str | Data) -> Data:
    return Data(files=(given,)) if isinstance(given, str) else given


def _model(given: str | Model) -> Model:
    return Model(given) if isinstance(given, str) else given


@frozen(kw_only=True)
class Rollout:
    """How completions are sampled for training."""

    samples_per_prompt: int = _setting("completions of one prompt", least=1)
    max_tokens: int = _setting("new tokens at most", unit="tokens", least=1)
    temperature: float = _setting("logits are divided by it; log-probabilities are at it too", default=1.0)
    stop_strings: tuple[str, ...] = _setting("texts that end a completion, beside the end tokens", default=())
    max_resample_rounds: int = _setting(
        "draws at most to replace groups that the algorithm did not keep", default=0, least=0
    )
    max_staleness: int = _setting(
        "updates that the sampler may be behind: 0, or 1 (one step off policy); after a step with a checkpoint or an "
        "evaluation it is behind by none",
        default=0,
        least=0,
    )
    overlong: Overlong | None = _setting("penalty for completions near max_tokens", default=None)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            need = "above 0, and finite"
            raise ConfigError("temperature", got=self.temperature, need=need, do="only evaluation is greedy")
        _check_texts("stop_strings", self.stop_strings)
        if self.max_staleness > 1:
            raise ConfigError("max_staleness", got=self.max_staleness, need="0 or 1")
        if self.overlong and self.overlong.buffer > self.max_tokens:
            need = f"at most max_tokens, {self.max_tokens}"
            raise ConfigError("overlong", got=f"buffer {self.overlong.buffer}", need=need)


@frozen
class Reward:
    """A function that has a part in the reward. The function's name alone, as a text, is one that weighs 1."""

    function: str = _setting("the function, as module:function or file.py:function", short=True)
    weight: float = _setting("what its value is multiplied by in the sum; 0: it is only logged", default=1.0)

    def __attrs_post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigError("weight", got=self.weight, need="a finite number")


def _rewards(given: Iterable[str | Reward]) -> tuple[Reward, ...]:
    return tuple(Reward(one) if isinstance(one, str) else one for one in given)


@frozen(kw_only=True)
class RewardWorkers:
    """How reward functions are called, and how many of their failures a run lives with."""

    timeout: float = _setting("one call of a reward function may take so long", unit="s", default=10.0)
    num_workers: int | None = _setting(
        "processes that run reward functions; one for each core, 8 at most, if not given", default=None, least=1
    )
    max_failure_rate: float = _setting("share of completions that may fail each time; more stop the run", default=0.1)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ConfigError("timeout", got=self.timeout, need="above 0, and finite")
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigError("max_failure_rate", got=self.max_failure_rate, need="from 0 to 1")


def _problems(given: str | Sequence[str] | Mapping[str, str]) -> Mapping[str, str]:
    """Files by name. A text is a file, called as its stem is, or NAME=FILE."""
    if isinstance(given, Mapping):
        return given
    files = [given] if isinstance(given, str) else list(given)
    named = dict(map(_file, files))
    if len(named) < len(files):
        raise ConfigError("files of one name", got=", ".join(files), do="name them: NAME=FILE")
    return named


def _file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    return (name, file) if equals and "/" not in name else (re.sub(r"[^\w.-]", "_", Path(text).stem), text)


@frozen(kw_only=True)
class Evaluate:
    """How the policy is evaluated: completions of each problem, greedy ones by default, judged by the run's rewards."""

    data: Mapping[str, str] = _setting(
        "problems: a file as of data.files, a list of such, or a table of them by name; NAME=FILE names one. "
        "Those that data.validation_fraction sets aside if not given",
        factory=dict,
        converter=_problems,
        read=_problems,
    )
    every: int = _setting(
        "steps between evaluations; there is one before the first step and one after the last", default=20, least=1
    )
    max_tokens: int = _setting("new tokens at most", unit="tokens", least=1)
    samples_per_prompt: int = _setting("completions of each problem", default=1, least=1)
    temperature: float = _setting("logits are divided by it; 0 takes the likeliest token", default=0.0)
    pass_at_k: tuple[int, ...] = _setting(
        "each k that pass@k is told for; where there are several samples and nothing is given, their number", default=()
    )
    answer_extractor: str | None = _setting(
        "function (completion) -> text or None that finds the answer, as module:function; with it maj@k is told",
        default=None,
    )
    max_examples: int | None = _setting("only the first so many problems of each file", default=None, least=1)
    stop_strings: tuple[str, ...] = _setting("texts that end a completion, beside the end tokens", default=())

    def __attrs_post_init__(self) -> None:
        for name, file in self.data.items():
            if not isinstance(file, str):
                raise ConfigError("data", got=repr(file), need="a file, as a text")
            if not re.fullmatch(r"[\w.-]+", name):
                raise ConfigError("data", got=f"the name {name!r}", need="letters, digits, ., - and _")
        _check_texts("stop_strings", self.stop_strings)
        if not 0 <= self.temperature < math.inf:
            raise ConfigError("temperature", got=self.temperature, need="0 or above, and finite")
        if self.samples_per_prompt > 1 and self.temperature == 0:
            need = "a temperature above 0: greedy completions of a problem are all the same"
            raise ConfigError(
                "samples_per_prompt has no effect",
                got=self.samples_per_prompt,
                need=need,
                do="set temperature, to 1.0 say",
            )
        if not all(1 <= k <= self.samples_per_prompt for k in self.pass_at_k):
            raise ConfigError(
                "pass_at_k", got=self.pass_at_k, need=f"from 1 to samples_per_prompt, {self.samples_per_prompt}"
            )
        if len(set(self.pass_at_k)) < len(self.pass_at_k):
            raise ConfigError("pass_at_k", got=self.pass_at_k, do="name each k once")
        if self.answer_extractor is not None and self.samples_per_prompt == 1:
            need = "several samples, to find the most frequent answer"
            raise ConfigError(
                "answer_extractor has no effect",
                got=repr(self.answer_extractor),
                need=need,
                do="set samples_per_prompt",
            )

    @property
    def passes(self) -> tuple[int, ...]:
        """Each k that pass@k is told for."""
        return self.pass_at_k or ((self.samples_per_prompt,) if self.samples_per_prompt > 1 else ())


@frozen(kw_only=True)
class Checkpoint:
    """When the run is saved; it always is at its end."""

    every: int = _setting("steps between checkpoints", default=20, least=1)
    keep: int = _setting("how many stay on disk", default=2, least=1)


@frozen(kw_only=True)
class StopWhen:
    """End the run early, once a metric is high enough."""

    metric: str = _setting("name of the metric, such as eval/accuracy")
    at_least: float = _setting("the value that ends the run")

    def __attrs_post_init__(self) -> None:
        if not math.isfinite(self.at_least):
            raise ConfigError("at_least", got=self.at_least, need="a finite number")


@frozen(kw_only=True)
class RunConfig:
    """A run, from its data to its trained model."""

    name: str = _setting("names the run and its default directory")
    model: Model = _setting("where the policy starts from", converter=_model)
    data: Data = _setting("what it learns from: prompts, demonstrations or preference pairs", converter=_data)
    algorithm: Any = _setting("the algorithm", plugin="algorithm")
    max_steps: int = _setting("steps of the loop", unit="steps", least=1)
    batch_size: int = _setting("prompts, demonstrations or pairs of one step", least=1)
    num_minibatches: int = _setting("optimizer steps that one pass over a step's rows is cut into", default=1, least=1)
    ppo_epochs: int = _setting("passes over a step's rows", default=1, least=1)
    trainer: Any = _setting("the engine that trains the policy, and scores under the reference", plugin="trainer")
    critic: Any = _setting(
        "the engine that trains the critic; as the trainer if not given", default=None, plugin="trainer"
    )
    teacher: Model | None = _setting(
        "the model that the policy is to imitate; its token ids mean the same", default=None, converter=optional(_model)
    )
    generator: Any = _setting("the engine that samples", default=None, plugin="generator")
    rollout: Rollout | None = _setting("how completions are sampled for training", default=None)
    rewards: tuple[Reward, ...] = _setting("functions whose weighted sum is the reward", default=(), converter=_rewards)
    gates: tuple[str, ...] = _setting(
        "reward functions that must be at least 1, or the reward is 0, as module:function or file.py:function",
        default=(),
    )
    reward_workers: RewardWorkers = _setting("how reward functions are called", factory=RewardWorkers)
    evaluate: Evaluate | None = _setting("how the policy is evaluated", default=None)
    checkpoint: Checkpoint = _setting("when the run is saved", factory=Checkpoint)
    trackers: tuple[Any, ...] = _setting(
        "what is told of the run beside its own directory: wandb, tensorboard, ...", default=(), plugin="tracker"
    )
    stop_when: StopWhen | None = _setting("when to end the run early", default=None)
    initial_run: RunConfig | None = _setting(
        "a run that comes first, in {run}/initial_run; its model is {run}/initial_run/final", default=None
    )
    prepare_data: str | None = _setting(
        "module:function, called with (directory, seed) to write files into {run}/prepared", default=None
    )
    num_threads: int | None = _setting(
        "CPU threads of torch; its own choice if not given", default=None, least=1, most=1024
    )
    seed: int = _setting("of everything random", default=0, least=0, most=2**63 - 1)

    def __attrs_post_init__(self) -> None:
        if not re.fullmatch(r"[\w., -]{1,100}", self.name) or not self.name.strip(". "):
            need = "letters, digits, spaces and . , - _, 100 at most, not dots alone: it names a folder"
            raise ConfigError("name", got=repr(self.name), need=need, do="train --directory names any other")
