"""The trainer of Megatron-core on a real GPU, in place of the stand-in for one."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

PROGRAM = """
from purerl.backends.serving.process import free_port
from tests.megatron.world import run_jobs
run_jobs(0, 1, ["suite: qwen3", "round trip"], free_port())
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core")
def test_the_trainer_conforms() -> None:
    """In a process of its own, because megatron-core has settings of the whole process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "suite: qwen3: 22 passed" in done.stdout
