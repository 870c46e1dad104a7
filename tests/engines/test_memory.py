"""A real engine that gets no more memory in the middle of a batch: it is started again, and no request is lost."""

from __future__ import annotations

import re
import resource
import time
from contextlib import suppress
from pathlib import Path

import pytest

from purerl.backends.weights import TensorWeights
from purerl.protocols import Request, Sampling
from purerl.settings import Model
from tests.backends.generators import weights_in_files
from tests.engines.conftest import build, processes

pytestmark = pytest.mark.soak


def test_engine_out_of_memory_in_a_batch_answers_every_request_once(
    models: tuple[Model, Model], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit is that of its processes; those of the next start have none."""
    generator = build(models[0], tmp_path, stall_timeout=60.0)
    generator.load_weights(TensorWeights(weights_in_files(models[1])), version=7)
    generator.submit([Request(str(k), [1, 2, 3], Sampling(max_tokens=400), k) for k in range(32)])
    time.sleep(0.5)
    for pid in processes(tmp_path):
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (2**20, resource.RLIM_INFINITY))
    completions = []
    while len(completions) < 32:
        collected = generator.collect(timeout=400.0)
        assert collected, "400 seconds without a completion"
        completions += collected
    assert {completion.finish for completion in completions} == {"length"}
    assert {version for completion in completions for version in completion.version} == {7}
    assert generator.servers[0].restarts == 1
    assert [text for text in caplog.messages if re.search("memory|bad_alloc", text, re.IGNORECASE)]
    generator.close()
    assert processes(tmp_path) == []
