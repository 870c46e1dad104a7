"""FLOPs of a model against those that torch counts, and utilization from known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from purerl.backends.hf import trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.training.flops import training_flops
from purerl.batch import collate
from purerl.loop.metrics.throughput import Throughput, measured_by
from purerl.loop.state import Clock
from tests.planning.models import write_model


def _built(folder: Path, **settings: object) -> HFTrainer:
    model, config = write_model(folder), trainer.Config(device="cpu", **settings)
    return trainer.build(config, model=model, role="policy", outputs=("logp",), updates=1, seed=0)


def _closed_form(length: int) -> int:
    """6 N + 12 L H Q T of the model that `write_model` writes."""
    attention, mlp, head = 96 * (96 + 32 + 32 + 96), 3 * 96 * 256, 96 * 1024
    return 6 * (2 * (attention + mlp) + head) + 12 * 2 * 6 * 16 * length


def test_flops_are_those_of_the_formula(tmp_path: Path) -> None:
    module = _built(tmp_path).module
    assert training_flops(module, 10, 20.0) == 10 * _closed_form(20)


def test_flops_are_those_that_torch_counts(tmp_path: Path) -> None:
    module = _built(tmp_path).module
    tokens = torch.arange(4 * 32).reshape(4, 32)
    with FlopCounterMode(display=False) as counter:
        module.model(input_ids=tokens, use_cache=False).logits.sum().backward()
    # torch counts the products of attention in the backward pass five times instead of four, or not at all on a CPU.
    assert counter.get_total_flops() == pytest.approx(training_flops(module, 4 * 32, 32.0), rel=0.05)


def test_frozen_weights_have_no_gradients(tmp_path: Path) -> None:
    module = _built(tmp_path / "lora", lora=Lora(rank=1)).module
    whole = _built(tmp_path / "full").module
    adapter = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert training_flops(module, 1, 0.0) == pytest.approx(training_flops(whole, 1, 0.0) * 4 / 6 + 6 * adapter)


class _Engine:
    """A trainer of 10 FLOPs per token, on devices with 1,000 FLOP/s."""

    def __init__(self, peak: float | None) -> None:
        self.peak = peak

    def flops(self, tokens: int, length: float) -> float:
        return 10.0 * tokens

    def peak_flops(self) -> float | None:
        return self.peak


def test_rates_and_utilization_of_a_step() -> None:
    batch = collate([{"tokens": [1] * n, "action": [0] + [1] * (n - 1), "row": n, "group": n} for n in (4, 6)])
    clock = Clock({"generate": 2.0, "score": 0.5, "update": 4.0, "step": 7.0})
    rates = Throughput((_Engine(1000.0),), passes=(2,), scores=True).metrics(batch, 8, clock)
    assert rates == {
        "time/sampled_tokens_per_second": 8 / 2.0,
        "time/scored_tokens_per_second": 10 / 0.5,
        "time/trained_tokens_per_second": 2 * 10 / 4.0,
        "time/mfu": 2 * 10 * 10 / (4.0 * 1000),
    }
    unknown = Throughput((_Engine(None),), passes=(2,)).metrics(batch, 0, clock)
    assert list(unknown) == ["time/trained_tokens_per_second"]
    both = Throughput((_Engine(1000.0), _Engine(1000.0)), passes=(3, 1)).metrics(batch, 0, clock)
    assert both == {"time/trained_tokens_per_second": 3 * 10 / 4.0, "time/mfu": (3 + 1) * 10 * 10 / (4.0 * 1000)}
    assert Throughput().metrics(None, 0, Clock()) == {}


def test_a_summary_has_the_rates_of_all_steps_and_the_largest_peak() -> None:
    records = [
        {"step": 0},
        {"step": 1, "time/update": 1.0, "time/trained_tokens_per_second": 100.0},
        {"step": 2, "time/update": 3.0, "time/trained_tokens_per_second": 200.0},
    ]
    memory = [{"peak_process_memory": 5}, {"peak_process_memory": 7, "peak_device_memory": 3}]
    expected = {"trained_tokens_per_second": 175.0, "peak_process_memory": 7, "peak_device_memory": 3}
    assert measured_by(records, memory) == expected
