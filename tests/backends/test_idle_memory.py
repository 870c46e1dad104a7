"""Main memory that a trainer does not need between its calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from purerl.backends.hf.training import idle_memory
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.weights import TensorWeights
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_batch, train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages were written")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(idle_memory, "MIN_SIZE", 0)
    return write_model(tmp_path)


def resident_size_of(path: str) -> int:
    """Bytes of the files in the directory `path` that are in the memory of this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = [line for head in lines if head.split()[-1].startswith(f"{path}/") for line in _next(lines, "Rss:")]
    return sum(int(line.split()[1]) * 1024 for line in found)


def _next(lines: Iterator[str], prefix: str) -> list[str]:
    return [next(line for line in lines if line.startswith(prefix))]


def logp(trainer: HFTrainer) -> torch.Tensor:
    return trainer.score(make_batch(), ["logp"])["logp"]


def test_a_model_that_only_scores_is_in_memory_only_while_it_scores(path: str) -> None:
    trainer = make_trainer(path, updates=0)
    assert resident_size_of(path) > 0, "building a trainer reads its weights, or this test has no meaning"
    first = logp(trainer)
    assert resident_size_of(path) == 0
    torch.testing.assert_close(logp(trainer), first, rtol=0, atol=0)


def test_a_model_that_is_trained_stays_in_memory(path: str) -> None:
    trainer = make_trainer(path)
    first = logp(trainer)
    assert resident_size_of(path) > 0
    train(trainer)
    trained = logp(trainer)
    assert not torch.equal(trained, first)
    torch.testing.assert_close(logp(trainer), trained, rtol=0, atol=0)


def test_weights_that_were_replaced_stay_in_memory(path: str) -> None:
    trainer = make_trainer(path, updates=0)
    first = logp(trainer)
    trainer.load_weights(TensorWeights({name: 2 * value for name, value in make_trainer(path).weights()}))
    replaced = logp(trainer)
    assert not torch.equal(replaced, first)
    torch.testing.assert_close(logp(trainer), replaced, rtol=0, atol=0)
