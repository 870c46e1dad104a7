"""The seam: what a trainer, a generator and a tracker are, and what passes between them and the loop.

An engine is one class that satisfies one of these protocols; `purerl.testing.check_trainer` and `check_generator` tell
whether it does. The loop knows nothing else about engines, and engines know nothing about algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from attrs import field, frozen
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, Weighted
from purerl.errors import ConfigError, nearest

__all__ = [
    "Completion",
    "Finish",
    "Generator",
    "Heard",
    "Metrics",
    "Model",
    "Request",
    "RunInfo",
    "Sampling",
    "Tracker",
    "Trainer",
    "generate",
    "unheard",
]

Metrics = Mapping[str, Weighted]
Finish = Literal["stop", "length", "cancelled", "error"]

_DTYPES = ("auto", "float32", "bfloat16", "float64", "float16")


@frozen
class Model:
    """Where a model's configuration, weights and tokenizer come from. Its path alone, as a text, is that model."""

    path: str = field(
        metadata={"help": "a local directory in Hugging Face's format, or a name on the hub", "short": True}
    )
    revision: str | None = field(default=None, metadata={"help": "of the hub's repository"})
    trust_remote_code: bool = field(default=False, metadata={"help": "run the code that comes with it"})
    dtype: str = field(
        default="float32",
        metadata={"help": "of the weights: float32, bfloat16, float64; float16 cannot train; auto: that of the files"},
    )
    attention: str = field(
        default="sdpa", metadata={"help": "transformers' attention implementation: sdpa, eager, flash_attention_2, ..."}
    )

    def __attrs_post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ConfigError("dtype", got=repr(self.dtype), do=nearest(str(self.dtype), _DTYPES))


@frozen
class Sampling:
    """How to continue a sequence.

    temperature   logits are divided by it; 0 takes the likeliest token, and log-probabilities are then at temperature 1
    max_tokens    at most so many new tokens
    stop_tokens   ids that end a completion; the one that ended it is part of it
    stop_strings  texts that end a completion, likewise
    """

    temperature: float = 1.0
    max_tokens: int = 16
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


@frozen
class Request:
    """Continue `tokens`. A turn, a tool's result and a partial rollout taken up again are the same call.

    `key` is the caller's and comes back with the completion. The completion depends on `tokens`, `sampling`, `seed` and
    the weights, never on which requests run beside it.
    """

    key: str
    tokens: Sequence[int]
    sampling: Sampling
    seed: int
    inputs: Mapping[str, Any] = field(factory=dict)


@frozen
class Completion:
    """What was sampled: per token its id, its log-probability (nats) when it was sampled, and the weights' version."""

    key: str
    tokens: Sequence[int]
    logp: Sequence[float]
    version: Sequence[int]
    finish: Finish
    error: str | None = None


@runtime_checkable
class Generator(Protocol):
    """Samples completions. One process calls it.

    It may have an attribute `longest`: how many tokens a sequence may have, prompt and completion together. So may a
    trainer. Prompts that are too long are then refused before the first step, instead of when they are drawn.
    """

    def submit(self, requests: Sequence[Request]) -> None:
        """Enqueue. Raises InputError for a request that can never be served (no tokens, too long, a key in use)."""
        ...

    def collect(self, timeout: float | None = None) -> list[Completion]:
        """Whatever has finished, in any order.

        Waits until something has, or until `timeout` seconds have passed. An embedded engine decodes inside this call.
        With nothing in flight the answer is empty, at once.
        """
        ...

    def cancel(self, keys: Sequence[str]) -> None:
        """Stop these; their tokens so far come back through `collect`. Unknown keys are ignored: they may be done."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace weights, named as Hugging Face names them. Legal with requests in flight.

        From the next token on, what is sampled is sampled by these weights and bears `version`.
        """
        ...

    def close(self) -> None:
        """Release what it holds. Nothing is called after it."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """One model and its optimizer. Collective: every rank calls every method, in the same order, with its rows."""

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """The model's `outputs` ("logp", "entropy", "value"), [rows, time] each, without gradient.

        They are at the row's `temperature`, and 0 where not `action`.
        """
        ...

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """One optimizer step on `batch`: micro-batches, backward, clip, optimize.

        `counts` are those of the whole step, over all ranks. Where nothing is counted, and where the gradient is not
        finite, neither weights nor optimizer change; of the latter the metric `skipped` tells: 1 then, 0 otherwise. In
        a schedule of the learning rate every call is a step, even one without rows.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What changes when it trains, named as Hugging Face names it."""
        ...

    def save(self, path: Path) -> None:
        """Write everything that `load` needs to go on bit for bit into the directory `path`, which exists.

        Whoever calls it sees to it that the files are on the disk. Raises OSError where the disk refuses them.
        """
        ...

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote. Raises CheckpointError where it does not fit."""
        ...

    def export(self, path: Path) -> None:
        """Write the model into the directory `path` in Hugging Face's format. Raises OSError as `save`."""
        ...


@frozen
class RunInfo:
    """The run that a tracker is told of.

    name       of the run
    identity   the same whenever the run goes on, another for every run that begins; letters and digits
    folder     where the tracker may keep files of its own
    settings   the configuration: value by dotted key
    first      the step of the first record that will be told. Records from there on stand in place of any told before
    """

    name: str
    identity: str
    folder: Path
    settings: Mapping[str, Any]
    first: int

    @property
    def label(self) -> str:
        """A name that no other run has."""
        return f"{self.name}-{self.identity}"


@runtime_checkable
class Tracker(Protocol):
    """Is told of a run while it goes on. What it raises is not the run's business: it is reported, and the run goes on.

    A run that died goes on from its last checkpoint, and so tells some steps again, with the same numbers (only those
    under ``time/`` differ). A tracker shows each step once.
    """

    def log(self, record: Mapping[str, Any]) -> None:
        """The metrics of one step, a number by name; ``record["step"]`` is the step, 0 before the first update."""
        ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Some completions of `step`, before its metrics: prompt, completion, finish and reward (None: not judged)."""
        ...

    def close(self, *, failed: bool) -> None:
        """The run is over, or, if `failed`, was stopped by an error. Nothing is called after it."""
        ...


Heard = Callable[[Sequence[Completion]], None]
"""Is told of completions as they come, in any order."""


def unheard(completions: Sequence[Completion]) -> None:
    """Nobody is told."""


def generate(generator: Generator, requests: Sequence[Request], heard: Heard = unheard) -> list[Completion]:
    """Submit `requests`, wait for all of them, and return their completions in the same order.

    `heard` is told of them as they come, and of none when they are submitted. Completions of other requests that come
    meanwhile are told to it alone.
    """
    generator.submit(requests)
    heard(())
    wanted, done = {request.key for request in requests}, dict[str, Completion]()
    while len(done) < len(wanted):
        come = generator.collect()
        done.update((completion.key, completion) for completion in come if completion.key in wanted)
        heard(come)
    return [done[request.key] for request in requests]
