"""The Megatron trainer, in an environment with megatron-core (nox -s megatron), on real processes with gloo.

torch.cuda is replaced on the ranks, see `tests.megatron.cuda_stand_in`: nothing here has run on a GPU.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from purerl.testing.trainer import CHECKS
from tests.ranks import check_cases, torchrun

pytestmark = [
    pytest.mark.parallel,
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core: nox -s megatron"),
]

SUITES: list[tuple[int, str, dict[str, Any]]] = [
    (1, "qwen3", {}),
    (2, "qwen3", {}),
    (2, "qwen3", {"tensor": 2}),
    (2, "qwen3", {"tensor": 2, "sequence_parallel": True}),
    (2, "qwen2", {"pipeline": 2}),
    (2, "qwen3_moe", {"expert": 2}),
    (2, "experts in one layer", {"pipeline": 2}),
    (4, "qwen3", {"tensor": 2, "pipeline": 2}),
]


@pytest.mark.parametrize(("ranks", "model", "mesh"), SUITES)
def test_the_suite_passes(ranks: int, model: str, mesh: dict[str, Any]) -> None:
    environment = {"PURERL_TEST": json.dumps({"model": model, "mesh": mesh})}
    done = torchrun("-m", "purerl.testing.trainer", "tests.megatron.conformance", ranks=ranks, environment=environment)
    assert done.stdout.splitlines()[-1] == f"{len(CHECKS)} checks passed"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_files_are_equal_bit_for_bit_after_a_round_trip(ranks: int) -> None:
    check_cases("-m", "tests.megatron.roundtrip", ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_equals_the_hf_trainer(ranks: int) -> None:
    check_cases("-m", "tests.megatron.training", ranks=ranks, timeout=1500)


@pytest.mark.parametrize("which", ["resumes", "files"])
def test_checkpoints_and_exports(which: str) -> None:
    check_cases("-m", "tests.megatron.saved", which, timeout=1500)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_planned_memory_is_that_of_trainers(ranks: int) -> None:
    check_cases("-m", "tests.megatron.planned", ranks=ranks, timeout=900)
