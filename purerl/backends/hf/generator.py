"""The embedded generator: any Hugging Face causal language model, in this process, with continuous batching.

`collect` decodes, one column of a `Table` at a time:

    enter    waiting rows take free slots; all but the last of their tokens go through the model at once
    step     every row's last token goes through the model, and its next one is drawn
    leave    rows that reached their length, a stop token or a stop text are read out; the last rows fill their slots

Every row in the table has exactly one token that the model has not seen. So a new row, one that goes on, and one that
is taken up again after the weights changed are all the same.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from attrs import define, field, frozen
from torch import Tensor

from purerl.backends.hf.device import device_of
from purerl.backends.hf.limits import check_layers, limits_of
from purerl.backends.hf.model import load_model
from purerl.backends.hf.stop_strings import Texts, span
from purerl.backends.hf.table import Table, moves
from purerl.backends.hf.weights import copy_into
from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.sampling import choose, signed, uniform
from purerl.errors import ConfigError
from purerl.protocols import Completion, Finish, Model, Request

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Config", "EmbeddedGenerator", "build"]

_AHEAD = 64
"""How many steps uniform numbers are made for at once."""


@frozen(kw_only=True)
class Config:
    """Settings of the embedded generator."""

    max_num_seqs: int = field(default=256, metadata={"help": "sequences that are decoded at once; others wait"})
    max_prefill_tokens: int = field(default=8192, metadata={"help": "prompt tokens in one forward pass, with padding"})
    device: str = field(default="auto", metadata={"help": "where the model is; auto: the accelerator if there is one"})

    def __attrs_post_init__(self) -> None:
        for name in ("max_num_seqs", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(name, got=getattr(self, name), need="at least 1")


def build(config: Config, *, model: Model, seed: int) -> EmbeddedGenerator:
    """Load `model` and make a generator of it. Requests bring their own seeds: `seed` has no effect here.

    Raises: ConfigError for a device that is not there, and for a model that cannot be loaded, or whose layers keep
    something else than keys and values.
    """
    device_of(config.device)
    return EmbeddedGenerator(config, load_model(model), Texts(model))


@define(eq=False)
class _Slot:
    """A row in the table. It entered at column `entered`, when `before` of its tokens had been sampled already."""

    row: PendingRequest
    entered: int
    before: int

    @property
    def first(self) -> int:
        """The column of its first token."""
        return self.entered + 1 - self.before - len(self.row.request.tokens)

    @property
    def last(self) -> int:
        """The column of the last token that it may have."""
        return self.entered + self.row.request.sampling.max_tokens - self.before


class _Facts(NamedTuple):
    """What steps from column `now` on have to know about the rows, until one enters or leaves; tensors [rows, ...].

    first         the column of a row's first token
    uniform       the numbers that its next tokens are drawn by, a column for each step
    stop_tokens   padded with -1, if any row has any
    with_texts    the slots of rows with stop texts
    next_last     the next column at which a row reaches its length
    padded        the rows do not all begin in the same column
    """

    now: int
    first: Tensor
    uniform: Tensor
    temperature: Tensor
    stop_tokens: Tensor | None
    with_texts: tuple[int, ...]
    next_last: int
    padded: bool


class EmbeddedGenerator:
    """A `Generator` around `model`, which it moves to `config.device` and keeps in evaluation mode."""

    def __init__(self, config: Config, model: PreTrainedModel, texts: Texts) -> None:
        from purerl.backends.hf.attention import decode_faster

        check_layers(model)
        self._limits = limits_of(model)
        self.longest = self._limits.longest
        self._config, self._texts, self._version = config, texts, 0
        self._device = device_of(config.device)
        self._model = model.eval().requires_grad_(requires_grad=False).to(self._device)
        decode_faster(self._model)
        self._keys: set[str] = set()
        self._waiting: deque[PendingRequest] = deque()
        self._done: list[Completion] = []
        self._slots: list[_Slot] = []
        self._facts: _Facts | None = None
        self._table = Table(config.max_num_seqs)
        self._table.add("ids", self._tensor([[[[0]]]]))
        self._table.add("logp", self._tensor([[[[0.0]]]], torch.float32))

    # --- the protocol ----------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self._keys, vocabulary=self._limits.vocabulary, longest=self.longest)
        self._keys.update(request.key for request in requests)
        self._waiting.extend(PendingRequest(request) for request in requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done and (self._waiting or self._slots):
            self._enter()
            self._step()
            if time.monotonic() >= deadline:
                break
        if not self._waiting and not self._slots:
            self._table.give_back()
        done, self._done = self._done, []
        self._keys.difference_update(completion.key for completion in done)
        return done

    def cancel(self, keys: Sequence[str]) -> None:
        unwanted = set(keys)
        self._leave({slot: "cancelled" for slot, one in enumerate(self._slots) if one.row.request.key in unwanted})
        self._done += [row.completion("cancelled") for row in self._waiting if row.request.key in unwanted]
        self._waiting = deque(row for row in self._waiting if row.request.key not in unwanted)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Copy `weights` into the model's own. Rows in the table go back to the head of the queue, with their tokens.

        Their keys and values are those of the old weights. They enter again, so every token's log-probability is that
        of a plain forward pass of the weights whose version it bears.

        Raises: EngineError for a name or a shape that is not the model's. Some weights may have been replaced then:
        nothing but `close` should follow.
        """
        self._waiting.extendleft([self._read(slot) for slot in reversed(range(len(self._slots)))])
        self._slots = []
        self._table.leave([], [], rows=0, start=self._table.now)
        copy_into(self._model, weights)
        self._version = version

    def close(self) -> None:
        del self._model, self._table

    # --- one column ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _step(self) -> None:
        """Put every row's last token through the model, and draw the next."""
        from purerl.backends.hf.cache import Going

        table, now = self._table, self._table.now
        if self._facts is None or now - self._facts.now == _AHEAD:
            self._facts = self._gather_facts()
        facts, rows = self._facts, slice(0, table.rows)
        logits = self._model(
            input_ids=table.view("ids", rows, now, now + 1)[:, 0, :, 0],
            position_ids=(now - facts.first)[:, None],
            attention_mask=self._there() if facts.padded else None,
            past_key_values=Going(table),
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        token, logp = choose(logits, facts.temperature, facts.uniform[:, now - facts.now])
        for name, value in (("ids", token), ("logp", logp)):
            table.view(name, rows, now + 1, now + 2).copy_(value[:, None, None, None])
        table.step()
        self._leave(self._ended(token))

    def _there(self) -> Tensor:
        """Where rows have tokens, among the columns in use."""
        return torch.arange(self._table.start, self._table.now + 1, device=self._device) >= self._facts.first[:, None]

    def _ended(self, token: Tensor) -> dict[int, Finish]:
        """The slots of rows that end with `token`, and how; a stop is one even where the length is reached too."""
        facts, now = self._facts, self._table.now
        ended: dict[int, Finish] = {}
        if now == facts.next_last:
            ended.update((slot, "length") for slot, one in enumerate(self._slots) if one.last == now)
        if facts.stop_tokens is not None:
            stopped = (token[:, None] == facts.stop_tokens).any(-1)
            ended.update((slot, "stop") for slot in stopped.nonzero()[:, 0].tolist())
        ended.update((slot, "stop") for slot in facts.with_texts if self._spells_stop(slot))
        return ended

    def _spells_stop(self, slot: int) -> bool:
        row = self._slots[slot].row
        stop, most = row.request.sampling.stop_strings, span(row.request.sampling.stop_strings)
        return self._texts.stopped([*row.tokens[-most:], *self._new(slot, "ids", most)][-most:], stop)

    # --- rows come and go ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _enter(self) -> None:
        """Take up waiting rows, once there is room for all of them or for an eighth of the table.

        One row takes nearly as long to enter as several do together.
        """
        free = self._config.max_num_seqs - len(self._slots)
        if not self._waiting or free < min(len(self._waiting), max(1, self._config.max_num_seqs // 8)):
            return
        while self._waiting and len(self._slots) < self._config.max_num_seqs:
            self._prefill(self._next_batch())
        self._facts = None

    def _next_batch(self) -> list[PendingRequest]:
        """The next waiting rows that fit into the table and into one prefill: at least one."""
        batch: list[PendingRequest] = []
        prompts: set[tuple[int, ...]] = set()
        width = 0
        while self._waiting and len(self._slots) + len(batch) < self._config.max_num_seqs:
            prompt = _seen(self._waiting[0])
            prompts.add(prompt)
            width = max(width, len(prompt))
            if batch and len(prompts) * width > self._config.max_prefill_tokens:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _prefill(self, batch: Sequence[PendingRequest]) -> None:
        """Put all but the last token of each row of `batch` through the model, each distinct prompt once."""
        from purerl.backends.hf.cache import Entering

        table, prompts = self._table, [_seen(row) for row in batch]
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        width = max(map(len, prompts))
        rows = table.enter(len(batch), before=width)
        if width:
            sources = self._tensor([numbers[prompt] for prompt in prompts])
            lengths = self._tensor([len(prompt) for prompt in prompts])
            cache = Entering(table, rows, sources, lengths, width)
            block = self._tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in numbers])
            self._model.base_model(input_ids=block, past_key_values=cache, use_cache=True)
        last = self._tensor([(*row.request.tokens, *row.tokens)[-1] for row in batch])
        table.view("ids", rows, table.now, table.now + 1).copy_(last[:, None, None, None])
        self._slots += [_Slot(row, table.now, len(row.tokens)) for row in batch]

    @torch.inference_mode()
    def _leave(self, ended: dict[int, Finish]) -> None:
        """Read out the rows in the slots `ended`, and fill their slots with the last rows."""
        if not ended:
            return
        self._done += [self._read(slot).completion(finish) for slot, finish in ended.items()]
        sources, holes = moves(list(ended), len(self._slots))
        for source, hole in zip(sources, holes, strict=True):
            self._slots[hole] = self._slots[source]
        self._slots = self._slots[: len(self._slots) - len(ended)]
        start = min((one.first for one in self._slots), default=self._table.now)
        self._table.leave(sources, holes, rows=len(self._slots), start=start)
        self._facts = None

    def _read(self, slot: int) -> PendingRequest:
        """The row in `slot`, with what was sampled since it entered."""
        row = self._slots[slot].row
        row.add(self._new(slot, "ids"), self._new(slot, "logp"), self._version)
        return row

    def _new(self, slot: int, name: str, most: int | None = None) -> list:
        """What plane `name` holds about the (`most` last) tokens sampled since the row in `slot` entered."""
        stop = self._table.now + 1
        start = max(self._slots[slot].entered + 1, -math.inf if most is None else stop - most)
        return self._table.view(name, slice(slot, slot + 1), start, stop).flatten().tolist()

    def _gather_facts(self) -> _Facts:
        slots, now = self._slots, self._table.now
        samplings = [one.row.request.sampling for one in slots]
        most = max(len(sampling.stop_tokens) for sampling in samplings)
        stop_tokens = [[*sampling.stop_tokens, *[-1] * (most - len(sampling.stop_tokens))] for sampling in samplings]
        first = [one.first for one in slots]
        seed = self._tensor([[signed(one.row.request.seed)] for one in slots])
        sampled = self._tensor([[one.before + now - one.entered] for one in slots])
        return _Facts(
            now=now,
            first=self._tensor(first),
            uniform=uniform(seed, sampled + torch.arange(_AHEAD, device=self._device)),
            temperature=self._tensor([sampling.temperature for sampling in samplings], torch.float32),
            stop_tokens=self._tensor(stop_tokens) if most else None,
            with_texts=tuple(slot for slot, sampling in enumerate(samplings) if sampling.stop_strings),
            next_last=min(one.last for one in slots),
            padded=len(set(first)) > 1,
        )

    def _tensor(self, values: list, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)


def _seen(row: PendingRequest) -> tuple[int, ...]:
    """The tokens of `row` that the model sees when it enters: all but the last."""
    return (*row.request.tokens, *row.tokens)[:-1]
