"""Recomputation of activations by the HF trainer: what is computed again, and what is not."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from purerl.backends.hf.model.parallel import _KEPT
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import train


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def test_recomputation_runs_layers_again(path):
    calls = []
    for recompute in ("none", "layers", "selective"):
        trainer = make_trainer(path, recompute=recompute)
        calls.append(0)
        for layer in trainer.module.decoder.layers:
            layer.mlp.register_forward_pre_hook(lambda *_: calls.append(calls.pop() + 1))
        train(trainer)
    assert calls == [2, 4, 4]


def test_selective_recomputation_computes_no_matrix_product_again(path):
    products = []
    for recompute in ("none", "layers", "selective"):
        trainer = make_trainer(path, recompute=recompute)
        with FlopCounterMode(display=False) as counter:
            train(trainer)
        products.append(counter.get_total_flops())
    assert products[0] == products[2] < products[1]


@pytest.mark.parametrize("name", sorted(_KEPT))
def test_operations_that_selective_recomputation_keeps_exist(name):
    """Also those of other devices: under another name they would be computed again."""
    importlib.import_module("torch.nn.attention.varlen")
    importlib.import_module("torch.distributed._functional_collectives")
    namespace, operation, overload = name.split(".")
    assert str(getattr(getattr(getattr(torch.ops, namespace), operation), overload)) == name
