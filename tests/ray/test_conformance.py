"""Trainers and generators in actors pass the conformance suites of those in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from purerl.backends.checkpoint_staging import SupportsStaging
from purerl.backends.fake import trainer as fake_trainer
from purerl.placement.actors.engines import RayEngines
from purerl.protocols import SupportsBase, SupportsGradients, SupportsImages, Trainer
from purerl.testing import check_generator, check_trainer
from purerl.testing.trainer import CHECKS
from tests.backends.generators import (
    FAKE,
    fake_generator,
    make_generator,
    reference_score,
    tiny_model,
    weights_in_files,
)
from tests.backends.hf_conformance import conformance
from tests.backends.tiny import VOCAB_SIZE

pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")

OpenEngines = Callable[..., RayEngines]


def _in_actors(engines: RayEngines, arguments: dict[str, Any]) -> Callable[[], Trainer]:
    """A function that builds trainers in actors, for the build of `arguments`, which it removes."""
    build, numbers = arguments.pop("build"), itertools.count()
    arguments["variants"] = []
    return lambda: engines.trainer(f"policy {next(numbers)}", build)


@pytest.mark.parametrize("count", [1, 2])
def test_the_fake_trainer_conforms(open_engines: OpenEngines, tmp_path: Path, count: int) -> None:
    arguments = fake_trainer.conformance(tmp_path)
    assert check_trainer(_in_actors(open_engines(count), arguments), **arguments) == len(CHECKS)


@pytest.mark.parametrize("count", [1, 2])
def test_the_hf_trainer_conforms(open_engines: OpenEngines, tmp_path: Path, count: int) -> None:
    arguments = conformance(tmp_path, "qwen3", 1e-7)
    assert check_trainer(_in_actors(open_engines(count), arguments), **arguments) == len(CHECKS)


@pytest.mark.parametrize("count", [1, 2])
def test_the_fake_generator_conforms(open_engines: OpenEngines, count: int) -> None:
    engines, numbers = open_engines(count), itertools.count()
    check_generator(lambda: engines.generator(f"generator {next(numbers)}", fake_generator), **FAKE)


@pytest.mark.parametrize("count", [1, 2])
def test_the_hf_generator_conforms(open_engines: OpenEngines, tmp_path: Path, count: int) -> None:
    engines, numbers = open_engines(count), itertools.count()
    first, second = (tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    build = partial(make_generator, first, max_num_seqs=16, max_prefill_tokens=40)
    check_generator(
        lambda: engines.generator(f"generator {next(numbers)}", build),
        weights=[weights_in_files(first), weights_in_files(second)],
        score=reference_score(first),
        vocabulary=VOCAB_SIZE,
        samples=400,
    )


def test_a_proxy_has_the_optional_methods_of_its_engine(open_engines: OpenEngines, tmp_path: Path) -> None:
    build = fake_trainer.conformance(tmp_path)["build"]
    trainer = open_engines(1).trainer("policy", build)
    assert isinstance(trainer, SupportsStaging | SupportsGradients)
    assert not isinstance(trainer, SupportsBase | SupportsImages)
