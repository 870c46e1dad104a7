"""Continuous batching of requests, on a model of transformers in this process.

`collect` decodes one column of a `Table` after the other:

    admit    waiting requests take free slots; the model reads all of their tokens except the last one (prefill)
    step     the model reads the last token of every row, and the next token is sampled
    finish   rows that reached their maximum length, a stop token or a stop string end; the last rows fill their slots.
             Keys and values of requests with `keep` are copied to a `PrefixCache`, from which prefill continues

In every row of the table, the model has read all tokens except the last one. This holds for a new row, for a row
between two steps, and for a row that is admitted again after the weights changed, so all are processed in the same way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from attrs import evolve
from torch import Tensor

from purerl.backends.hf.decoder.backbone import decoder_of
from purerl.backends.hf.decoder.images import ImageReader, reads_images
from purerl.backends.hf.decoder.limits import check_layers, limits_of
from purerl.backends.hf.sampling.capabilities import CAPABILITIES
from purerl.backends.hf.sampling.decode_inputs import STEPS_PER_DRAW, Slot, StepInputs
from purerl.backends.hf.sampling.expert_recorder import RouteRecorder
from purerl.backends.hf.sampling.logits import WideHead
from purerl.backends.hf.sampling.prefix_cache import FinishedRow, PrefixCache
from purerl.backends.hf.sampling.stop_strings import StopStrings, window
from purerl.backends.hf.sampling.table import Table, compaction_moves
from purerl.backends.hf.sampling.waiting import WaitingRequests
from purerl.backends.hf.settings import GeneratorConfig
from purerl.backends.hf.weights.merge import AdapterMerger
from purerl.backends.logits import Filters, filter_logits
from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.sampling import choose
from purerl.images import ImageStore
from purerl.protocols import Completion, FinishReason, Request, Weights
from purerl.settings import Model
from purerl.system.allocator import release_freed
from purerl.system.devices.accelerator import device_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


__all__ = ["HFGenerator", "WeightLoader"]

_MAX_DELAY = 8
"""Decoding steps that a request waits for others, so that several are read in one forward pass."""

_OWN_PLANES = ("ids", "logp")
"""Planes of the table that do not belong to the model."""


class WeightLoader(Protocol):
    """The way in which a generator gets new weights."""

    def load(self, weights: Weights) -> None:
        """Let the model have `weights`. Raises: EngineError for others than it can have; nothing has changed then."""
        ...


class HFGenerator:
    """A `Generator` of `causal`, which is moved to `config.device` and used in evaluation mode.

    `model` says where it was loaded from. `loader` gives `causal` new weights; by default they are copied into it.
    """

    _head_type: ClassVar[type[WideHead]] = WideHead

    def __init__(
        self, config: GeneratorConfig, causal: PreTrainedModel, model: Model, loader: WeightLoader | None = None
    ) -> None:
        from purerl.backends.hf.sampling.attention import decode_faster

        check_layers(causal)
        self._limits = limits_of(causal)
        limit = self._limits.max_sequence_length
        self.capabilities = evolve(
            CAPABILITIES, max_sequence_length=limit, images=reads_images(causal), routes=config.return_routes
        )
        self._config, self._source, self._stop_strings, self._version = config, model, StopStrings(model), 0
        self._images: ImageReader | None = None
        self._device = device_of(config.device)
        self._model = causal.eval().to(self._device)
        decode_faster(decoder_of(self._model))
        self._routes = RouteRecorder(self._model) if config.return_routes else None
        self._loader = AdapterMerger(self._model) if loader is None else loader
        self._head = self._head_type(self._model)
        self._keys: set[str] = set()
        self._waiting = WaitingRequests()
        self._finished: list[Completion] = []
        self._slots: list[Slot] = []
        self._inputs: StepInputs | None = None
        self._delay = 0
        self._prefixes = PrefixCache(config.max_cached_tokens, self._device)
        self._table = Table(config.max_num_seqs)
        self._table.add_plane("ids", self._tensor([[[[0]]]]))
        self._table.add_plane("logp", self._tensor([[[[0.0]]]], torch.float32))

    def probe(self) -> None:
        """Test on a few tokens that the experts of the model can be recorded. Raises ConfigError as `probe_routes`."""
        if self._routes is not None:
            self._routes.probe()

    # --- the interface Generator -----------------------------------------------------------------------------------

    def use_images(self, images: ImageStore) -> None:
        from purerl.backends.hf.model.self_test import probe_images

        self._images = ImageReader(self._source, self._model, images)
        probe_images(self._model, self._images)

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self._keys, self.capabilities, vocab_size=self._limits.vocab_size)
        self._keys.update(request.key for request in requests)
        continuing = [request.key for request in requests if self._prefixes.find(request.content)]
        self._waiting.add(map(PendingRequest, requests), continuing)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._finished and (self._waiting or self._slots):
            self._admit()
            self._step()
            if time.monotonic() >= deadline:
                break
        if not self._waiting and not self._slots:
            self._table.release()
            if self._device.type == "cpu":
                release_freed()
        collected, self._finished = self._finished, []
        self._keys.difference_update(completion.key for completion in collected)
        return collected

    def cancel(self, keys: Sequence[str]) -> None:
        cancelled = set(keys)
        self._finish({k: "cancelled" for k, slot in enumerate(self._slots) if slot.pending.request.key in cancelled})
        self._finished += [pending.completion("cancelled") for pending in self._waiting.cancel(cancelled)]
        self._prefixes.drop_requests(cancelled)

    def sampled(self, key: str) -> list[int]:
        for k, slot in enumerate(self._slots):
            if slot.pending.request.key == key:
                return [*slot.pending.tokens, *self._sampled([k], "ids")[0]]
        return []

    def load_weights(self, weights: Weights, *, version: int) -> None:
        """Let the model have `weights`: copy them into it, or merge them if they are those of an adapter.

        Rows in the table return to the front of the queue, with their tokens. Their keys and values were computed with
        the old weights, so they are computed again, as those of finished sequences. The log-probability of each token
        equals a plain forward pass with the weights of its version.

        Raises: EngineError as the `load` of `AdapterMerger` or `SharedWeights`.
        """
        self._waiting.add_first(self._read(range(len(self._slots))))
        self._slots = []
        self._table.remove_rows([], [], rows=0, start=self._table.now)
        self._prefixes.clear()
        self._loader.load(weights)
        self._head.follow_weights()
        self._version = version

    def close(self) -> None:
        del self._model, self._loader, self._head, self._table, self._prefixes

    # --- a decoding step -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _step(self) -> None:
        """Sample the next token of every row."""
        from purerl.backends.hf.model.past_cache import cache_argument
        from purerl.backends.hf.sampling.cache import DecodeCache

        table, now = self._table, self._table.now
        if self._inputs is None or now - self._inputs.now == STEPS_PER_DRAW:
            self._inputs = StepInputs.of(self._slots, now, self._gather_filters(), self._device)
        inputs, rows = self._inputs, slice(0, table.rows)
        logits = self._model(
            input_ids=table.view("ids", rows, now, now + 1)[:, 0, :, 0],
            position_ids=(now - inputs.origin)[:, None],
            attention_mask=self._attention_mask() if inputs.is_padded else None,
            **cache_argument(self._model, DecodeCache(table)),
            **({} if self._routes is None else self._routes.argument()),
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if self._routes is not None:
            self._routes.store(DecodeCache(table), rows=table.rows)
        if inputs.filters is not None:
            logits = filter_logits(logits.float(), inputs.filters)
        token, logp = choose(logits, inputs.temperature, inputs.uniform[:, now - inputs.now])
        if inputs.filters is not None:
            inputs.filters.add(token)
        for name, value in (("ids", token), ("logp", logp)):
            table.view(name, rows, now + 1, now + 2).copy_(value[:, None, None, None])
        table.add_column()
        self._finish(self._ended(token))

    def _attention_mask(self) -> Tensor:
        """Whether each column in use contains a token of each row."""
        return torch.arange(self._table.start, self._table.now + 1, device=self._device) >= self._inputs.first[:, None]

    def _ended(self, token: Tensor) -> dict[int, FinishReason]:
        """The slots of rows that end with `token`, and why; "stop" has precedence over "length"."""
        inputs, now = self._inputs, self._table.now
        ended: dict[int, FinishReason] = {}
        ended.update((slot, "length") for slot, last in enumerate(inputs.last) if last == now)
        if inputs.stop_tokens is not None:
            stopped = (token[:, None] == inputs.stop_tokens).any(-1)
            ended.update((slot, "stop") for slot in stopped.nonzero()[:, 0].tolist())
        if any(inputs.has_stop_strings):
            slots = [*compress(range(len(self._slots)), inputs.has_stop_strings)]
            ended.update((slot, "stop") for slot in self._with_stop_string(slots))
        return ended

    def _with_stop_string(self, slots: Sequence[int]) -> Iterator[int]:
        """The slots of `slots` whose completion ends with one of its stop strings."""
        all_strings = [self._slots[slot].pending.request.sampling.stop_strings for slot in slots]
        sizes = [window(strings) for strings in all_strings]
        sampled = self._sampled(slots, "ids", max(sizes))
        for slot, strings, size, tokens in zip(slots, all_strings, sizes, sampled, strict=True):
            earlier = self._slots[slot].pending.tokens[-size:]
            if self._stop_strings.contains([*earlier, *tokens][-size:], strings):
                yield slot

    # --- admitting and finishing rows ------------------------------------------------------------------------------

    @torch.inference_mode()
    def _admit(self) -> None:
        """Admit waiting requests, and read their prompts."""
        from purerl.backends.hf.sampling.prefill import batches, prompt_of, read

        count = min(len(self._waiting), self._config.max_num_seqs - len(self._slots))
        if not self._is_worthwhile(count):
            self._delay += count > 0
            return
        kept = sum(slot.pending.request.max_length for slot in self._slots if slot.pending.request.keep)
        admitted = self._waiting.take(count, self._prefixes.room - kept)
        prompts = [prompt_of(pending, self._prefixes) for pending in admitted]
        for batch in batches(prompts, self._config.max_prefill_tokens):
            chosen, options = [prompts[k] for k in batch], {"images": self._images, "routes": self._routes}
            rows, shifts = read(self._model, self._table, self._prefixes, chosen, **options)
            self._slots += [
                Slot(admitted[k], self._table.now, len(admitted[k].tokens), shift)
                for k, shift in zip(batch, shifts, strict=True)
            ]
            last = self._tensor([(*admitted[k].request.tokens, *admitted[k].tokens)[-1] for k in batch])
            self._table.view("ids", rows, self._table.now, self._table.now + 1).copy_(last[:, None, None, None])
        self._prefixes.drop({prompt.cached for prompt in prompts if prompt.cached})
        self._inputs, self._delay = None, 0

    def _is_worthwhile(self, count: int) -> bool:
        """Whether to admit `count` requests now. Reading several prompts takes hardly longer than reading one.

        If more are waiting, an eighth of all slots has to be free. Otherwise they are at least an eighth of the rows
        that would wait meanwhile, or have waited for some steps.
        """
        if count < len(self._waiting):
            return count >= max(1, self._config.max_num_seqs // 8)
        return count > 0 and (count >= len(self._slots) // 8 or self._delay >= _MAX_DELAY)

    @torch.inference_mode()
    def _finish(self, ended: dict[int, FinishReason]) -> None:
        """Complete the requests in the slots `ended`, and move the last rows into these slots."""
        if not ended:
            return
        finished = self._read(list(ended))
        completions = [pending.completion(why) for pending, why in zip(finished, ended.values(), strict=True)]
        self._finished += completions
        rows = [
            FinishedRow(slot, pending.request.key, pending.content)
            for slot, pending, completion in zip(ended, finished, completions, strict=True)
            if pending.request.keep and completion.finish in ("stop", "length")
        ]
        self._prefixes.store(self._table, [name for name in self._table.names if name not in _OWN_PLANES], rows)
        sources, holes = compaction_moves(list(ended), len(self._slots))
        order = [*range(len(self._slots) - len(ended))]
        for source, hole in zip(sources, holes, strict=True):
            order[hole] = source
        self._slots = [self._slots[row] for row in order]
        start = min((slot.first for slot in self._slots), default=self._table.now)
        self._table.remove_rows(sources, holes, rows=len(self._slots), start=start)
        self._inputs = self._inputs.of_rows(order) if self._inputs and order else None

    def _read(self, slots: Sequence[int]) -> list[PendingRequest]:
        """The requests in `slots`, with the tokens sampled since they were admitted."""
        requests = [self._slots[slot].pending for slot in slots]
        for pending, tokens, logp in zip(
            requests, self._sampled(slots, "ids"), self._sampled(slots, "logp"), strict=True
        ):
            pending.add(tokens, logp, self._version)
        for slot, pending in zip(slots, requests, strict=True) if self._routes is not None else ():
            pending.add_routes(self._routes.read(self._table, slot, self._slots[slot].first))
        return requests

    def _sampled(self, slots: Sequence[int], name: str, last: int | None = None) -> list[list]:
        """The plane `name` at the tokens sampled since each of `slots` was admitted, or at the last `last` of them."""
        stop = self._table.now + 1
        starts = [self._slots[slot].admitted + 1 for slot in slots]
        first = max(min(starts, default=stop), -math.inf if last is None else stop - last)
        values = self._table.view(name, slice(0, self._table.rows), first, stop)[list(slots), 0, :, 0].tolist()
        return [row[max(0, start - first) :] for row, start in zip(values, starts, strict=True)]

    def _gather_filters(self) -> Filters | None:
        if not any(slot.pending.request.sampling.parameters for slot in self._slots):
            return None
        sampled = self._sampled(range(len(self._slots)), "ids")
        completions = [[*slot.pending.tokens, *tokens] for slot, tokens in zip(self._slots, sampled, strict=True)]
        requests = [slot.pending.request for slot in self._slots]
        return Filters.of(requests, completions, self._limits.vocab_size, self._device)

    def _tensor(self, values: list, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
