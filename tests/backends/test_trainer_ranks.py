"""Trainers on two ranks: real processes with gloo, started by torchrun."""

from __future__ import annotations

import pytest

from purerl.testing.trainer import CHECKS
from tests.ranks import torchrun

pytestmark = pytest.mark.parallel


SUITE = ("-m", "purerl.testing.trainer")


@pytest.mark.parametrize(
    "module",
    [
        "purerl.backends.fake.trainer",
        "tests.backends.hf_conformance",
        "tests.backends.hf_sharded",
        "tests.backends.hf_tensor",
        "tests.backends.hf_sequence",
    ],
)
def test_the_suite_passes_on_two_ranks(module: str) -> None:
    done = torchrun(*SUITE, module)
    assert done.stdout.splitlines()[-1] == f"{len(CHECKS)} checks passed"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("tests.backends.broken.not_summed", "AssertionError: steps_equal_the_reference: metrics"),
        ("tests.backends.broken.other_rows", "EngineError: a call of a trainer: ranks disagree"),
        ("tests.backends.tiny", "ConfigError: module 'tests.backends.tiny'"),
    ],
)
def test_a_broken_trainer_fails_on_two_ranks(module: str, message: str) -> None:
    done = torchrun(*SUITE, module, status=1)
    assert message in done.stderr, done.stderr[-4000:]
