"""Trainers on two ranks: real processes with gloo, started by torchrun."""

from __future__ import annotations

import subprocess
import sys

import pytest

from purerl.testing.trainer import CHECKS

pytestmark = pytest.mark.slow


def _torchrun(module: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "purerl.testing.trainer", module]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(
    "module", ["purerl.backends.fake.trainer", "tests.backends.hf_conformance", "tests.backends.hf_sharded"]
)
def test_the_suite_passes_on_two_ranks(module: str) -> None:
    done = _torchrun(module)
    assert done.returncode == 0, done.stderr[-4000:]
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
    done = _torchrun(module)
    assert done.returncode == 1
    assert message in done.stderr, done.stderr[-4000:]
