"""`python -m benchmarks.gpu` as far as it runs without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_refuses_without_a_gpu(tmp_path):
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--output", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=gpu.ROOT)
    message = "benchmarks.gpu needs a GPU, and torch finds none (torch.cuda.is_available() is False)\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert not file.exists()


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, "....\n12 passed, 3 skipped in 9.1s", (0, "12 passed, 3 skipped in 9.1s", [])),
        (0, "....\n===== 12 passed in 65s (0:01:05) =====\nmore", (0, "12 passed in 65s (0:01:05)", [])),
        (1, "F...\nFAILED a.py::b[c] - no\n1 failed in 9s", (1, "1 failed in 9s", ["a.py::b[c]"])),
        (5, "no tests ran in 1s", (5, "no tests ran in 1s", [])),
        (0, "ssss\n12 skipped in 1s", (1, "12 skipped in 1s", [])),
        (124, "....\nnot finished after 5 s", (124, "no summary", [])),
    ],
)
def test_tests_count_only_if_some_pass_and_none_fails(monkeypatch, status, output, expected):
    monkeypatch.setattr(gpu, "run", lambda command, seconds: (status, output))
    assert tuple(gpu.run_tests().values()) == expected


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended():
    command = [sys.executable, "-uc", "import time; print('started'); time.sleep(60)"]
    status, output = gpu.run(command, 5)
    assert status == 124
    assert output == "started\n\nnot finished after 5 s"


def test_results_of_logp_are_read(monkeypatch):
    def run(command: list[str], seconds: float) -> tuple[int, str]:
        file = Path(command[command.index("--json") + 1])
        file.write_text(json.dumps({"results": [command[command.index("--dtype") + 1]]}))
        return 0, ""

    monkeypatch.setattr(gpu, "run", run)
    assert gpu.run_logp("bfloat16") == {"status": 0, "results": ["bfloat16"]}


def test_at_most_ten_minutes():
    assert gpu.TESTS_SECONDS + 3 * gpu.BENCHMARK_SECONDS < 570  # the recurrence takes seconds
