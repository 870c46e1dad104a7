"""Trainers on two ranks: processes with gloo, started by torchrun, or forked."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from purerl.testing.trainer import CHECKS
from tests.ranks import forked_ranks, torchrun

pytestmark = pytest.mark.parallel


SUITE = ("-m", "purerl.testing.trainer")


@pytest.mark.parametrize(
    ("run", "module"),
    [
        (torchrun, "purerl.backends.fake.trainer"),
        (forked_ranks, "tests.backends.hf_conformance"),
        (forked_ranks, "tests.backends.hf_sharded"),
        (forked_ranks, "tests.backends.hf_tensor"),
        (forked_ranks, "tests.backends.hf_sequence"),
    ],
)
def test_the_suite_passes_on_two_ranks(run: Callable[..., CompletedProcess[str]], module: str) -> None:
    done = run(*SUITE, module)
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
    done = forked_ranks(*SUITE, module, status=1)
    assert message in done.stderr, done.stderr[-4000:]
