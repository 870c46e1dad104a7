"""Profiles of steps, and the stacks of steps that take too long."""

from __future__ import annotations

import gzip
import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.monitoring.debugging.settings import Debug
from purerl.monitoring.debugging.stacks import stacks_after

from .runs import records, without_times
from .small import fake

pytestmark = pytest.mark.slow


def _trace(path: Path) -> list[dict]:
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def test_steps_are_profiled_with_their_phases_and_allocations(tmp_path: Path) -> None:
    debug = Debug(profile_steps=(2, 4), profile_memory=True)
    train(fake(debug=debug), directory=tmp_path / "run")
    folder = tmp_path / "run" / "profile"
    files = [f"{step:06d}.{suffix}" for step in (2, 4) for suffix in ("json.gz", "txt")]
    assert sorted(path.name for path in folder.iterdir()) == files
    events = _trace(folder / "000002.json.gz")
    assert {"step", "rollout", "update"} <= {event["name"] for event in events}
    assert any(event["name"] == "[memory]" for event in events)
    assert "update" in (folder / "000004.txt").read_text()


def test_profiles_do_not_change_a_run(tmp_path: Path) -> None:
    train(fake(), directory=tmp_path / "plain")
    train(fake(debug=Debug(profile_steps=(1,), stack_dump_after=300.0)), directory=tmp_path / "profiled")
    plain, profiled = (without_times(records(tmp_path / name)) for name in ("plain", "profiled"))
    assert profiled == plain
    assert not (tmp_path / "profiled" / "stacks.txt").exists()


def test_stacks_of_a_block_that_takes_too_long_are_written_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "stacks.txt"
    deadline = time.monotonic() + 60
    with caplog.at_level(logging.WARNING), stacks_after(0.05, path, 7):
        while path.read_text().count("Timeout (") < 2 or not caplog.records:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert path.read_text().startswith("step 7, each 0.05 seconds:\nTimeout (")
    assert "test_stacks_of_a_block_that_takes_too_long" in path.read_text()
    assert re.match(r"step 7 has taken more than 0\.05 seconds", caplog.records[0].getMessage())


def test_stacks_of_a_run_that_is_working_can_be_written_all_the_time(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom purerl.monitoring.debugging.settings import Debug\nfrom purerl.loop.train import train\n"
        "from tests.loop.small import fake\n"
        "print(train(fake(max_steps=20, debug=Debug(stack_dump_after=0.001)), directory=sys.argv[1]).steps)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ["20"]), result.stderr[-500:]


def test_stacks_of_other_steps_stay_and_a_fast_step_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    with stacks_after(300.0, path, 1):
        assert path.exists()
    assert not path.exists()
    path.write_text("step 1\n")
    with stacks_after(300.0, path, 2):
        pass
    assert path.read_text() == "step 1\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile_memory": True}, "profile_memory has no effect"),
        ({"profile_steps": (0,)}, "numbers of steps, from 1"),
        ({"stack_dump_after": 0.0}, "a finite number above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Debug(**settings)


def test_profile_after_the_end_of_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)debug\.profile_steps has no effect.*which has 4"):
        check(fake(debug=Debug(profile_steps=(2, 5))))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a memory snapshot needs a GPU, and there is one")
def test_memory_snapshot_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)debug\.memory_snapshot has no effect.*an accelerator whose alloc"):
        check(fake(debug=Debug(profile_steps=(1,), memory_snapshot=True)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a memory snapshot needs a GPU")
@pytest.mark.gpu
def test_memory_snapshot_is_written(tmp_path: Path) -> None:
    train(fake(debug=Debug(profile_steps=(1,), memory_snapshot=True)), directory=tmp_path / "run")
    assert (tmp_path / "run" / "profile" / "000001.pickle").stat().st_size > 0
