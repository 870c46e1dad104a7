"""The Megatron trainer, in an environment with megatron-core (nox -s megatron), on real processes with gloo.

torch.cuda is replaced on the ranks, see `tests.megatron.cuda_stand_in`: nothing here has run on a GPU.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from purerl.testing.trainer import CHECKS
from tests.megatron.world import JOBS
from tests.ranks import MAX_ERROR

pytestmark = [
    pytest.mark.parallel,
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core: nox -s megatron"),
]


@functools.cache
def world() -> subprocess.CompletedProcess[str]:
    """All jobs on all numbers of ranks, except those after one that has failed on as many ranks."""
    command = [sys.executable, "-m", "tests.megatron.world"]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)


@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, jobs in JOBS.items() for name in jobs])
def test_a_job_passes(ranks: int, name: str) -> None:
    passed = re.search(rf"^{ranks} ranks, {name}: (\d+) passed$", world().stdout, re.MULTILINE)
    assert passed, world().stderr[-MAX_ERROR:]
    assert int(passed[1]) == len(CHECKS) if name.startswith("suite") else int(passed[1]) > 0


def test_the_ranks_end_without_an_error() -> None:
    assert world().returncode == 0, world().stderr[-MAX_ERROR:]
