"""Whole runs of `purerl train` whose trainer is Megatron-core, on two ranks, in an environment with megatron-core.

torch.cuda is replaced on the ranks, see `tests.megatron.cuda_stand_in`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.backends.hf import trainer as hf_trainer
from purerl.backends.megatron import trainer as megatron_trainer
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps
from purerl.loop.train import train
from purerl.settings import Model
from tests.forks import PROGRAMS
from tests.loop.runs import records, without_times
from tests.loop.small import small_real
from tests.ranks import forked_ranks

pytestmark = [
    pytest.mark.parallel,
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core: nox -s megatron"),
]

OPTIMIZER: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "max_grad_norm": 0.3, "max_tokens_per_microbatch": 256}


def config_of(model: str, dtype: str, mesh: Mesh | None) -> RunConfig:
    """Two steps of GRPO; without a `mesh` by the trainer hf."""
    own = hf_trainer.Config(device="cpu", **OPTIMIZER)
    trainer = own if mesh is None else megatron_trainer.Config(mesh=mesh, **OPTIMIZER)
    config = small_real(2, model=Model("{run}/prepared/model", dtype=dtype), trainer=trainer, evaluate=None)
    return evolve(
        config,
        prepare_data=f"tests.megatron.prepared:{model}",
        generator=evolve(config.generator, device="cpu"),
    )


def command_of(folder: Path, config: RunConfig) -> list[str]:
    (folder / "config.toml").write_text(dumps(config), encoding="utf-8")
    return ["train", str(folder / "config.toml"), "--directory", str(folder / "run")]


def on_two_ranks(folder: Path, config: RunConfig, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    """`purerl train`, as torchrun would start it."""
    return forked_ranks("-m", "tests.megatron.command", *command_of(folder, config), status=status)


COMPARED = ("policy", "reward", "rollout", "mismatch")
RUNS = {
    "dense, context": ("dense", "float64", Mesh(context=2), 1e-6),
    "experts, pipeline": ("experts", "float64", Mesh(pipeline=2), 1e-6),
    "experts, context": ("experts", "float32", Mesh(context=2), 2e-3),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_two_ranks_has_the_metrics_of_the_trainer_hf(tmp_path: Path, name: str) -> None:
    model, dtype, mesh, error = RUNS[name]
    on_two_ranks(tmp_path, config_of(model, dtype, mesh))
    train(config_of(model, dtype, None), directory=tmp_path / "hf")
    found, expected = (without_times(records(tmp_path / each)) for each in ("run", "hf"))
    assert len(found) == len(expected) == 3
    for got, need in zip(found, expected, strict=True):
        compared = {name for name in {*got, *need} if name.partition("/")[0] in COMPARED}
        pairs = {name: (got.get(name), need.get(name)) for name in compared}
        assert {n: pair for n, pair in pairs.items() if pair[0] != pytest.approx(pair[1], rel=error, abs=error)} == {}
    assert found[-1]["policy/grad_norm"] > 0
    assert (tmp_path / "run/final/model.safetensors").exists()


REFUSED = {
    "two dimensions": (
        "dense",
        Mesh(context=2, pipeline=2),
        "trainer.mesh\n  got:  tensor 1 x context 2 x pipeline 2 = 4, with 2 ranks\n  need: a product that divides",
    ),
    "experts of a dense model": (
        "dense",
        Mesh(expert=2),
        "trainer.mesh.expert\n  got:  2\n  need: 1 for a model without experts",
    ),
    "tensors of experts": (
        "experts",
        Mesh(tensor=2),
        "trainer.mesh.sequence_parallel\n  got:  False\n  need: true with mesh.tensor above 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mesh_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    model, mesh, message = REFUSED[name]
    done = on_two_ranks(tmp_path, config_of(model, "float32", mesh), status=1)
    assert f"error: {message}" in done.stderr
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_host_without_a_gpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    command = command_of(tmp_path, config_of("dense", "float32", Mesh()))
    done = PROGRAMS.run([sys.executable, "-m", "purerl_cli", *command], capture_output=True, text=True)
    assert done.returncode == 2
    message = r"error: trainer\.kind\n  got:  megatron: .*CUDA.*\n  need: a GPU for each rank: megatron-core has no"
    assert re.search(message, done.stderr), done.stderr
    assert "do:   set trainer.kind to hf" in done.stderr
    assert not (tmp_path / "run").exists()
