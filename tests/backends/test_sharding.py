"""The HF trainer with a sharded model, on one rank; test_trainer_ranks.py and test_parallel.py have several ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from purerl.backends.hf.decoder.backbone import layers_of
from purerl.backends.hf.mesh import Mesh
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import equal, make_batch, train, weights_of


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def sharded(monkeypatch) -> None:
    """Models are sharded, although there is one rank."""
    monkeypatch.setattr(Mesh, "is_divided", True)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def test_gradients_are_summed_by_a_reduction_that_every_backend_has(path, monkeypatch):
    """Two ranks in float64 show the sum. In float32, FSDP2 would use reductions that gloo does not have."""
    calls = []
    for name in ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms"):
        monkeypatch.setattr(FSDPModule, name, lambda part, value, name=name: calls.append((part, name, value)))
    trainer = make_trainer(path)
    parts = (*layers_of(trainer.module), trainer.module)
    for name, value in (("set_gradient_divide_factor", 1.0), ("set_force_sum_reduction_for_comms", True)):
        assert all((part, name, value) in calls for part in parts)


@pytest.mark.parametrize("role", ["policy", "reference"])
def test_parameters_are_shards_after_a_score(path, role):
    trainer = make_trainer(path, role, updates=10 if role == "policy" else 0)
    trainer.score(make_batch(), ["logp"])
    assert all(isinstance(parameter, DTensor) for parameter in trainer.module.parameters())


def test_weights_that_were_requested_after_a_score_are_current_after_a_step(path):
    trainer = make_trainer(path, lr=1e-2)
    trainer.score(make_batch(), ["logp"])
    before, weights = weights_of(trainer), trainer.weights()
    train(trainer)
    assert equal({name: weight.clone() for name, weight in weights}, weights_of(trainer))
    assert not equal(before, weights_of(trainer))
