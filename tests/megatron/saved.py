"""Checkpoints, exports and precision of the Megatron trainer, on the ranks that run this."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.weights import TensorWeights
from purerl.errors import CheckpointError
from purerl.protocols import Trainer
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close
from purerl.testing.trainer.resources import shared_directory
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_batch, make_step
from tests.megatron.models import OUTPUTS, meshes, open_trainer
from tests.megatron.models_table import MODELS
from tests.megatron.training import OBJECTIVES

SETTINGS = {"lr": 1e-2, "eps": 1e-2, "max_tokens_per_microbatch": 12}

BFLOAT16 = 5e-3
"""A little more than the distance of two bfloat16 numbers, and less than an update, which is up to 1e-2."""


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.weights()}


def check_resume(
    path: str,
    first: Mesh,
    second: Mesh,
    *,
    tolerance: float,
    changes: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> None:
    """A trainer `second` resumes from what `first` has saved: equal weights, and an equal step up to rounding.

    changes  settings of the trainer that resumes
    """
    with shared_directory() as directory:
        saved = open_trainer(path, first, **SETTINGS, **settings)
        saved.step(*make_step(0))
        saved.save(directory)
        weights = weights_of(saved)
        saved.step(*make_step(1))
        expected = weights_of(saved)
        saved.close()
        loaded = open_trainer(path, second, **SETTINGS, **{**settings, **changes})
        loaded.load(directory)
    assert_close(f"{first} as {second}", weights_of(loaded), weights, 0)
    loaded.step(*make_step(1))
    assert_close(f"{first} as {second}, one step later", weights_of(loaded), expected, tolerance)
    loaded.close()


def check_refused(path: str, other: str, mesh: Mesh) -> None:
    """A checkpoint of another model, or with a damaged file, is refused, and nothing changes."""
    with shared_directory() as directory:
        saved = open_trainer(path, mesh, **SETTINGS)
        saved.step(*make_step(0))
        saved.save(directory)
        for source in (other, path):
            trainer = open_trainer(source, mesh, **SETTINGS)
            weights = weights_of(trainer)
            if source == path:
                current_ranks().on_first(lambda: [_damage(file) for file in directory.glob("*.distcp")])
            try:
                trainer.load(directory)
            except CheckpointError:
                assert_close("weights", weights_of(trainer), weights, 0)
            else:
                raise AssertionError(f"a checkpoint that does not fit {source} was loaded")


def _damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def check_export(path: str, mesh: Mesh, role: str, dtype: str) -> None:
    """The hf trainer loads what was exported, with equal weights and scores, and its head."""
    objective, output = OBJECTIVES[role]
    trainer = open_trainer(path, mesh, role, dtype=dtype, **SETTINGS)
    trainer.step(*make_step(0, objective))
    with shared_directory() as directory:
        trainer.export(directory)
        with mock.patch("purerl.ranks.current_ranks", Ranks):
            exported = make_trainer(str(directory), role, outputs=OUTPUTS.get(role), dtype=dtype)
            weights = {f"model.{name}" if role == "critic" else name: value for name, value in exported.weights()}
            if role != "policy":
                # A critic without a vocabulary has no output head, and neither has its export.
                assert not any("lm_head" in name for name in weights)
            score = exported.score(make_batch(), (output,))[output]
    assert_close("exported weights", weights_of(trainer), weights, 0)
    assert_close("score", {output: trainer.score(make_batch(), (output,))[output]}, {output: score}, 1e-4)
    trainer.load_weights(TensorWeights({name: value + 1 for name, value in weights.items()}))
    assert_close("loaded weights", weights_of(trainer), {name: value + 1 for name, value in weights.items()}, 0)
    trainer.close()


def check_small_steps(path: str, mesh: Mesh, **settings: Any) -> None:
    """Updates that are smaller than the distance of two bfloat16 numbers add up."""
    options = {"dtype": "bfloat16", "lr": 2e-4, "betas": (0.0, 0.0), "max_grad_norm": float("inf")}
    trainer = open_trainer(path, mesh, **options, **settings)
    before = weights_of(trainer)["model.norm.weight"]
    changed = []
    for steps in (1, 25):
        for _ in range(steps):
            trainer.step(*make_step(0))
        changed.append((weights_of(trainer)["model.norm.weight"] != before).double().mean().item())
    assert changed[0] < 0.3, "one update is lost in the rounding of most weights"
    assert changed[1] > 0.6, "after more updates most weights have changed"
    trainer.close()


def check_reference(path: str, mesh: Mesh) -> None:
    """A model that is not trained saves its weights only after they were replaced."""
    trainer, source = (open_trainer(path, mesh, updates=0) for _ in range(2))
    with shared_directory() as directory:
        trainer.save(directory)
        size = current_ranks().on_first(lambda: sum(file.stat().st_size for file in directory.glob("*.distcp")))
        assert size < 1000, "weights of the files of the model were saved"
        trainer.load(directory)
    new = {name: value * 2 for name, value in weights_of(source).items()}
    trainer.load_weights(TensorWeights(new))
    with shared_directory() as directory:
        trainer.save(directory)
        source.load(directory)
    assert_close("weights of a reference", weights_of(source), new, 0)
    trainer.close()


def check_change(path: str, mesh: Mesh, dtype: str, *, divided: bool) -> None:
    """All weights change, and are restored bit for bit: the next step is that of a trainer whose weights stayed."""
    changed, other = (open_trainer(path, mesh, dtype=dtype, distributed_optimizer=divided) for _ in range(2))
    before = weights_of(changed)
    names = changed.change_weights(None, 3)
    assert names == [*before]
    assert not any(torch.equal(value, before[name]) for name, value in weights_of(changed).items())
    changed.change_weights(names[1:], 3)
    assert [n for n, value in weights_of(changed).items() if not torch.equal(value, before[n])] == names[:1]
    changed.change_weights(names[:1], 3)
    for trainer in (changed, other):
        trainer.step(*make_step(0))
    assert_close("weights after a step", weights_of(changed), weights_of(other), 0)
    assert not changed.replaced
    changed.close()


def resumes(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, path in _models(directory).items():
        of_model = list(meshes(current_ranks().size, name))
        tolerance = 1e-6 if name == "qwen3_moe" else 1e-9
        for first, second in zip(of_model, [*of_model[1:], of_model[0]], strict=True):
            what, run = f"{name}, {first} as {second}", functools.partial(check_resume, path, first, second)
            yield what, functools.partial(run, tolerance=tolerance)
            divided = functools.partial(run, distributed_optimizer=True)
            yield f"{what}, divided", functools.partial(divided, dtype="float32", tolerance=1e-4)
            if name == "qwen2":
                narrow = {"dtype": "bfloat16", "tolerance": BFLOAT16}
                yield f"{what}, bfloat16", functools.partial(run, **narrow)
                yield f"{what}, bfloat16, divided", functools.partial(divided, **narrow)


def files(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    paths = _models(directory)
    for name, path in paths.items():
        for mesh in meshes(current_ranks().size, name):
            for role in OBJECTIVES:
                yield (
                    f"{name}, {mesh}, export of a {role}",
                    functools.partial(check_export, path, mesh, role, "float32"),
                )
    for name, path in paths.items():
        for mesh in list(meshes(current_ranks().size, name))[-2:]:
            for dtype, divided in (("float32", False), ("bfloat16", True)):
                changed = functools.partial(check_change, path, mesh, dtype, divided=divided)
                yield f"{name}, {mesh}, {dtype}, changed and restored", changed
    qwen, tied = paths["qwen3"], paths["qwen2"]
    for mesh in meshes(current_ranks().size, "qwen3"):
        yield f"{mesh}, refused", functools.partial(check_refused, qwen, tied, mesh)
        yield f"{mesh}, reference", functools.partial(check_reference, qwen, mesh)
    for divided in (False, True):
        small = functools.partial(check_small_steps, qwen, Mesh(), distributed_optimizer=divided)
        yield f"small steps, divided {divided}", small


def _models(directory: Path) -> dict[str, str]:
    """The paths of models: of one, one with a tied head, and one with experts."""
    models = {name: MODELS[name] for name in ("qwen3", "qwen2", "qwen3_moe")}
    return current_ranks().on_first(
        lambda: {name: write_model(directory / name, family, **changes) for name, (family, changes) in models.items()}
    )
