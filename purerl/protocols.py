"""Interfaces between the training loop and everything that computes: trainers and generators.

An engine is one class that satisfies `Trainer` or `Generator`. `purerl.testing.check_trainer` and `check_generator`
test whether it does. The loop knows nothing else about engines, and engines know nothing about algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from attrs import cmp_using, field, frozen

from purerl.algos.algebra import Counts, Objective, Weighted
from purerl.errors import EngineError
from purerl.images import ImageStore
from purerl.sampling import SAMPLING_PARAMETERS, Sampling
from purerl.types import TensorDict

__all__ = [
    "SAMPLING_PARAMETERS",
    "Capabilities",
    "Completion",
    "FinishReason",
    "Generator",
    "Metrics",
    "Request",
    "Sampling",
    "SupportsBase",
    "SupportsFlops",
    "SupportsGradients",
    "SupportsImages",
    "SupportsSleep",
    "SupportsVocabulary",
    "Trainer",
    "Weights",
    "collect_all",
    "generate",
]

Metrics = Mapping[str, Weighted]
FinishReason = Literal["stop", "length", "cancelled", "error"]


# --- engines and weights ------------------------------------------------------------------------------------------


@frozen
class Capabilities:
    """Capabilities of an engine. `purerl doctor` prints them.

    max_sequence_length   tokens of the longest sequence, prompt and completion together; None: unlimited or unknown
    outputs               trainers: the outputs that `score` and `step` can compute
    vocab_size            trainers: number of token ids that the model has, padding included; None: unknown
    attention             the implementation of attention; None: it has no name
    notes                 sentences about the model and its settings that a user has to know before the first step
    batch_invariant       generators: the tokens of a request do not depend on the requests beside it; see `Generator`
    seeded                generators: the seed of a request determines its tokens; see `Generator`
    in_process            generators: decoding happens inside `collect`
    adapters              generators: accept the weights of an adapter (LoRA), whether they merge them or not
    sleeps                generators: also have the method of `SupportsSleep`
    images                rows and requests may have images; also has the method of `SupportsImages`
    routes                generators: completions have `routes`
    sampling              generators: which of `SAMPLING_PARAMETERS` a request may have; others are refused
    max_temperature       generators: the highest temperature of a request; None: any
    """

    max_sequence_length: int | None = None
    outputs: frozenset[str] = frozenset()
    vocab_size: int | None = None
    attention: str | None = None
    notes: tuple[str, ...] = ()
    batch_invariant: bool = False
    seeded: bool = False
    in_process: bool = False
    adapters: bool = False
    sleeps: bool = False
    images: bool = False
    routes: bool = False
    sampling: frozenset[str] = frozenset()
    max_temperature: float | None = None


@runtime_checkable
class Weights(Protocol):
    """Named weights of a model, gathered from all ranks while they are iterated.

    The names are those in Hugging Face's files.
    """

    @property
    def adapter(self) -> Mapping[str, Any] | None:
        """None for the weights of the model itself. For an adapter, its settings as in peft's adapter_config.json."""
        ...

    @property
    def metadata(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each weight, by name. Nothing is gathered for it."""
        ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, full tensor). Collective: every rank iterates to the end.

        The tensors may share memory with the model: copy them to keep them.
        """
        ...


@runtime_checkable
class SupportsImages(Protocol):
    """An optional method of trainers and generators, which is called if their `capabilities.images`."""

    def use_images(self, images: ImageStore) -> None:
        """Look for the images of rows and requests in `images`. Called once, before there are any.

        An image is in the store before a request or a row has its content id.

        Raises: ConfigError if the engine cannot read images with its model or its settings.
        """
        ...


# --- generation --------------------------------------------------------------------------------------------------


@frozen
class Request:
    """Continue `tokens`.

    A first turn, a turn after a tool result and the rest of a partial rollout are all requests. The caller chooses
    `key`; it is returned with the completion. The completion depends on `tokens`, `sampling`, `seed` and the weights.

    `keep` says that a request that begins with `tokens` and the completion will probably follow, such as the next turn
    of an episode. A generator may then keep what it has computed, so that it reads only the new tokens of the next
    request. It keeps it until that request, until `cancel` is called with `key`, or until weights are loaded. `keep`
    changes no completion, except by rounding, and a generator may ignore it.

    `image` has for each token the content id of the image that it stands for, as the field `image` of a batch. It is
    empty if all tokens are text.
    """

    key: str
    tokens: Sequence[int]
    sampling: Sampling
    seed: int
    keep: bool = False
    image: Sequence[int] = ()

    @property
    def content(self) -> Sequence[int]:
        """`tokens`, with the content id of its image in the place of each token of an image."""
        if not self.image:
            return self.tokens
        return [image or token for token, image in zip(self.tokens, self.image, strict=True)]

    @property
    def max_length(self) -> int:
        """Tokens of the sequence with the longest completion."""
        return len(self.tokens) + self.sampling.max_tokens


@frozen
class Completion:
    """The answer to a request. Each token has its id, its log-probability in nats and the version of the weights.

    `routes` are the experts selected for each token, int16 [n, layers, k], if `capabilities.routes`: of the first n
    tokens of the request and the completion together, for each layer with a router. They are those that the engine has
    read, so usually all but the last one. If it has read a token several times, its first record counts: that of the
    pass from which the next token was sampled. A token without a record has `LIVE` (`purerl.expert_routes`).
    """

    key: str
    tokens: Sequence[int]
    logp: Sequence[float]
    version: Sequence[int]
    finish: FinishReason
    error: str | None = None
    routes: np.ndarray | None = field(default=None, eq=cmp_using(eq=np.array_equal), hash=False, repr=False)


@runtime_checkable
class Generator(Protocol):
    """Samples completions. One process calls it.

    Its `capabilities` state what a caller can rely on:

    seeded           a request that runs alone has the same tokens each time, at any temperature, and other tokens with
                     another seed. Otherwise only greedy decoding is repeatable, and `Request.seed` may have no effect
    batch_invariant  a request has the same tokens beside other requests as alone. The last bits of their
                     log-probabilities may differ. Without it, a token whose logits are nearly tied may change too
    in_process       decoding happens inside `collect`, and never while the caller does something else

    Tokens are repeated exactly only by a generator that is `seeded` and `batch_invariant`. Log-probabilities are
    repeated bit for bit if the same requests are decoded together too.
    """

    capabilities: Capabilities

    def submit(self, requests: Sequence[Request]) -> None:
        """Enqueue requests. Raises InputError for an invalid one: no tokens, too long, or a key that is in use."""
        ...

    def collect(self, timeout: float | None = None) -> list[Completion]:
        """Return finished completions, in any order.

        Waits until at least one is finished or `timeout` seconds have passed. Returns an empty list immediately if no
        request is in flight. A generator that is `in_process` decodes inside this call.
        """
        ...

    def cancel(self, keys: Sequence[str]) -> None:
        """Stop these requests; `collect` returns the tokens sampled so far. Unknown keys are ignored.

        What is kept of a finished request with `Request.keep` is dropped: no other request will continue it.
        """
        ...

    def load_weights(self, weights: Weights, *, version: int) -> None:
        """Replace the weights. Allowed while requests are in flight.

        All tokens sampled from now on are sampled with these weights and carry `version`. Weights that are not in
        `weights` keep their values.

        Raises: EngineError for a name or a shape that the model does not have, and for the weights of an adapter if
        `capabilities.adapters` is false.
        """
        ...

    def close(self) -> None:
        """Release all resources. No other method is called afterwards."""
        ...


@runtime_checkable
class SupportsSleep(Protocol):
    """An optional method of a generator, which is called if its `capabilities.sleeps`."""

    def sleep(self) -> None:
        """Release the memory of the devices until `load_weights` is called. No request is in flight meanwhile.

        Raises: EngineError.
        """
        ...


def generate(generator: Generator, requests: Sequence[Request]) -> list[Completion]:
    """Submit `requests`, wait for all of them, and return their completions in the same order.

    Completions of other requests that are collected meanwhile are discarded.

    Raises: EngineError if the generator returns nothing although completions are missing.
    """
    generator.submit(requests)
    return collect_all(generator, requests)


def collect_all(generator: Generator, requests: Sequence[Request]) -> list[Completion]:
    """As `generate`, for `requests` that have been submitted."""
    missing, completions = {request.key for request in requests}, dict[str, Completion]()
    while missing:
        finished = generator.collect()
        if not finished:
            got = f"no completion from collect(), with {len(missing)} missing: {min(missing)!r}, ..."
            need = "a completion of every request that was submitted"
            do = "test the generator with purerl.testing.check_generator"
            raise EngineError("a generator has lost requests", got=got, need=need, do=do)
        completions.update((completion.key, completion) for completion in finished)
        missing.difference_update(completions)
    return [completions[request.key] for request in requests]


# --- training ----------------------------------------------------------------------------------------------------


@runtime_checkable
class Trainer(Protocol):
    """One model with its optimizer, on one or more ranks.

    Every method is collective with identical arguments: all ranks make the same calls, in the same order, with the same
    whole batch, and get the same results. The trainer decides which rank computes which rows. Batches and scores are on
    the CPU.
    """

    capabilities: Capabilities

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """Compute `outputs` of the model for all rows, without gradient.

        Each output is [rows, time] (`topk_logp` and `topk_tokens`: [rows, time, k]), at the row's `temperature` (0
        counts as 1), and 0 where `action` is false. `topk_logp` has the log-probabilities of the tokens in the field
        `teacher_topk_tokens` if the batch has it, and otherwise of the model's k most likely tokens, whose ids are
        `topk_tokens`. Another output than those of `capabilities.outputs` raises InputError.

        A policy that has the output `routes` records the experts of each token, and `step` uses them. The output is
        [rows]: the number of the row's record, which only this trainer understands; 0: none.
        """
        ...

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """Take one optimizer step on `batch`: micro-batches, backward, gradient clipping, optimizer.

        The model predicts action tokens, and those of the field `observed`, if the batch has it.

        `counts` belong to the whole step. If no token is counted or the gradient is not finite, neither the weights nor
        the optimizer state change; in both cases the metric `skipped` is 1, otherwise it is 0. A trainer may also skip
        a step whose gradient is 0, in the same way, and all ranks decide alike. A learning-rate schedule advances with
        every call, also for a batch without rows.
        """
        ...

    def weights(self) -> Weights:
        """The weights that training changes. Heads that only this trainer has, such as a value head, are left out."""
        ...

    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        """Move this model toward `weights`: own = (1 - mix) * own + mix * weights. With 1.0 they are replaced.

        Used for a reference model that follows the policy. Afterwards `save` includes the weights.

        Raises: EngineError as `Generator.load_weights`.
        """
        ...

    def save(self, path: Path) -> Mapping[str, str] | None:
        """Write everything that `load` needs to resume bit for bit into the existing directory `path`.

        `path` is one directory that every rank sees. The caller makes sure that the files reach the disk. The result is
        the digest of each file that this rank has written, by its path in `path` with ``/``, computed from what was
        written (`purerl.system.digests`). A file without a digest is read again by the caller, so None is right too.

        Raises: OSError if a file cannot be written.
        """
        ...

    def load(self, path: Path) -> None:
        """Resume from what `save` wrote. Raises CheckpointError if it does not fit; nothing has changed then."""
        ...

    def export(self, path: Path) -> None:
        """Write the model into the directory `path`: in Hugging Face's format, if transformers has its architecture.

        Raises: OSError as `save`.
        """
        ...

    def close(self) -> None:
        """Release all resources. No other method is called afterwards."""
        ...


@runtime_checkable
class SupportsBase(Protocol):
    """An optional method of a trainer."""

    def base(self) -> Trainer | None:
        """The model as it was loaded, which shares the weights of this trainer and is not trained.

        None if this trainer does not have it any more, because it trains all weights, or has started from an adapter.
        """
        ...


@runtime_checkable
class SupportsVocabulary(Protocol):
    """An optional method of a trainer, for a teacher that has more token ids than the policy."""

    def limit_vocabulary(self, size: int) -> None:
        """Give the ids from `size` on no probability from now on; the probabilities of the others have the sum 1."""
        ...


@runtime_checkable
class SupportsFlops(Protocol):
    """Optional methods of a trainer, for the metric ``time/mfu``."""

    def flops(self, tokens: int, length: float) -> float:
        """FLOPs of forward and backward pass over `tokens` tokens of rows with `length` tokens on average."""
        ...

    def peak_flops(self) -> float | None:
        """The FLOP/s of the devices of all ranks, at most; None if it is not known."""
        ...


@runtime_checkable
class SupportsGradients(Protocol):
    """An optional method of a trainer, for ``debug.gradient_steps``."""

    def gradient(
        self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]
    ) -> Mapping[str, torch.Tensor]:
        """The gradient of the loss of `objective`, as `step` would compute it, by the name of the parameter.

        No weight and no state of the optimizer changes. Losses that the trainer adds itself are left out. Costs
        the forward and the backward pass of a step, and a copy of the gradient.
        """
        ...
