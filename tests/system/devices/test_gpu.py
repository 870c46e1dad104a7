"""The engines in this process on a GPU: the conformance suites, a CPU's results, and a run that learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from purerl.algos import grpo
from purerl.backends.hf import generator, trainer
from purerl.loop.train import train
from purerl.testing.generator import check_generator
from purerl.testing.trainer import CHECKS, check_trainer
from tests.backends.generators import suite_arguments, tiny_model
from tests.backends.hf_conformance import conformance
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_step
from tests.recipes.copying import copying

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize(("family", "tolerance"), [("gpt2", 1e-9), ("qwen3", 1e-5)])
def test_the_trainer_conforms(tmp_path: Path, family: str, tolerance: float) -> None:
    """The reference is computed on the CPU. The norms of qwen3 round to float32, and a CPU rounds other numbers."""
    arguments = conformance(tmp_path, family, tolerance, settings={"device": "cuda"})
    assert check_trainer(arguments.pop("build"), **arguments) == len(CHECKS)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_the_generator_conforms(tmp_path: Path, family: str) -> None:
    first, second = (tiny_model(tmp_path / str(seed), family, seed=seed) for seed in (0, 1))
    config = generator.Config(device="cuda", max_num_seqs=16, max_prefill_tokens=40)
    check_generator(
        lambda: generator.build(config, model=first, seed=0),
        **suite_arguments(first, second),
    )


@pytest.mark.parametrize("settings", [{}, {"packing": True}, {"recompute": "layers"}], ids=str)
def test_steps_are_those_of_a_cpu(tmp_path: Path, settings: dict) -> None:
    """Parameters after three steps, in float64."""
    path = write_model(tmp_path, "qwen3")
    trainers = [make_trainer(path, device=device, lr=1e-2, **settings) for device in ("cpu", "cuda")]
    for each in trainers:
        for seed in range(3):
            each.step(*make_step(seed))
    of_cpu, of_gpu = ({name: p.detach().cpu() for name, p in each.parameters.items()} for each in trainers)
    torch.testing.assert_close(of_gpu, of_cpu, rtol=0, atol=1e-6)


def test_a_run_learns(tmp_path: Path) -> None:
    """Copying of two digits, with both engines on the GPU."""
    config = copying(
        algorithm=grpo.Config(),
        generator=generator.Config(max_num_seqs=256, device="cuda"),
        trainer=trainer.Config(lr=3e-3, betas=(0.9, 0.99), lr_scheduler="cosine", device="cuda"),
    )
    summary = train(config, directory=tmp_path / "run")
    assert summary.after["eval/reward"] > summary.before["eval/reward"] + 0.5
    assert summary.measured["peak_device_memory"] > 0
