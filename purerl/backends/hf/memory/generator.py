"""The memory of the in-process generator, from its settings and the configuration of its model.

The prompts are read, and then one token is decoded in the widest table of keys and values that the rows need: by the
code of the generator itself, on fake weights (`simulation.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import evolve

from purerl.backends.hf.decoder.limits import limits_of
from purerl.backends.hf.memory.simulation import Simulation, fake_model, over_layers
from purerl.backends.hf.memory.trainer import adapted_size
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.backends.hf.sampling.logits import WideHead
from purerl.backends.hf.settings import GeneratorConfig, TrainerConfig, with_dtype
from purerl.protocols import Request, Sampling
from purerl.settings import Model
from purerl.system.memory_use import MemoryUse, Workload
from purerl.system.tensor_tracker import MemoryTracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = ["memory_of_generator"]

KEYS = "keys and values"


def memory_of_generator(
    config: GeneratorConfig,
    *,
    model: Model,
    workload: Workload,
    trainer: object = None,
    is_shared: bool = False,
) -> MemoryUse:
    """The memory of a generator of `model` on each rank, with the rows of `workload` that a rank samples.

    trainer    settings of the trainer of the policy; None: there is none
    is_shared  it samples with the weights of this trainer, or with their casts, which are counted here

    Raises: ConfigError if the configuration of the model cannot be read, or if the generator cannot run the model.
    """
    model = with_dtype(config, model)
    whole = fake_model(model)
    workload = workload.limited_to(limits_of(whole).max_sequence_length)
    rows = min(config.max_num_seqs, -(-workload.rows // workload.ranks))
    layers = whole.config.get_text_config(decoder=True).num_hidden_layers

    def measure(number: int) -> dict[str, dict[str, int]]:
        causal = fake_model(model, num_layers=number).requires_grad_(requires_grad=False)
        return {"sampling": _sampling(config, causal, model, rows, workload)}

    transient = over_layers(layers, measure)
    is_copy = not is_shared or (isinstance(trainer, TrainerConfig) and trainer.mixed_precision != "off")
    states = {"parameters": sum(tensor.nbytes for tensor in (*whole.parameters(), *whole.buffers()))} if is_copy else {}
    host = dict[str, int]()
    if isinstance(trainer, TrainerConfig) and trainer.lora is not None and not is_shared:
        host["weights without adapter"] = adapted_size(trainer, model)  # see `weights/merge.py`
    return MemoryUse(states=states, transient=transient, host=host)


def _sampling(
    config: GeneratorConfig, causal: PreTrainedModel, model: Model, rows: int, workload: Workload
) -> dict[str, int]:
    tracker = MemoryTracker()
    with tracker, Simulation():
        tracker.label("parameters", [*causal.parameters(), *causal.buffers()])
        generator = _SimulatedGenerator(evolve(config, device="cpu"), causal, model)
        generator.sample(_requests(rows, workload, causal), tracker)
    keys, cached = generator.table_size(), 0
    if workload.turns > 1:
        all_tokens = -(-workload.rows // workload.ranks) * workload.row_tokens
        cached = min(config.max_cached_tokens, all_tokens) * generator.token_size()
    return {KEYS: keys + cached, "activations and temporary tensors": tracker.peaks["sampling"]["other"] - keys}


def _requests(rows: int, workload: Workload, causal: PreTrainedModel) -> list[Request]:
    """Completions of the full length, of different prompts of the full length for each group."""
    vocab_size = causal.config.get_text_config(decoder=True).vocab_size
    sampling = Sampling(max_tokens=workload.completion_tokens)
    prompts = {
        group: [(group + time) % vocab_size for time in range(workload.prompt_tokens)]
        for group in range(-(-rows // workload.group_size))
    }
    return [Request(str(row), prompts[row // workload.group_size], sampling, seed=0) for row in range(rows)]


class _NarrowHead(WideHead):
    """The head as it is: its copy in float32 exists only on devices whose memory is that of the host."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._head = self._copy = None


class _SimulatedGenerator(HFGenerator):
    """A generator that decodes only the last token of its rows."""

    _head_type: ClassVar[type[WideHead]] = _NarrowHead

    def sample(self, requests: Sequence[Request], tracker: MemoryTracker) -> None:
        """Sample the completions of `requests`, all of which are decoded together, in the phase "sampling"."""
        self.submit(requests)
        with tracker.phase("sampling"):
            self._admit()
            for _ in range(requests[0].sampling.max_tokens - 2):
                self._table.add_column()
            self._inputs = None
            self._step()

    def table_size(self) -> int:
        """Bytes of the table."""
        return sum(plane.untyped_storage().nbytes() for plane in self._planes())

    def token_size(self) -> int:
        """Bytes of the keys and values of one token."""
        return sum(plane.shape[1] * plane.shape[3] * plane.element_size() for plane in self._planes())

    def _planes(self) -> list[Tensor]:
        start, now = self._table.start, self._table.now
        return [self._table.view(name, slice(0), start, now) for name in self._table.names]
