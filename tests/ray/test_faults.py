"""Faults of a run with actors: an actor fails, is killed or hangs, or the run itself is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.config.structure import dumps
from purerl.errors import EngineError
from purerl.loop.train import train
from purerl.placement.settings import Actors, Placement
from purerl.settings import Model
from purerl.store.checkpoint import saved_steps
from tests.loop import failing_trainer
from tests.loop.hanging import HANGS, stacks_of_hanging_run
from tests.loop.runs import records, without_times
from tests.loop.small import fake

pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")

STEPS = 8
DEADLINE = 120.0  # seconds: for a hang; nothing else takes so long on a busy machine


def _config(**changes: Any) -> RunConfig:
    placement = Placement(kind="ray", trainers=Actors(count=2), timeout=600.0)
    model, rewards = Model("{run}/prepared/model", dtype="float64"), ("tests.loop.rewards:slow_digits",)
    return fake(max_steps=STEPS, model=model, rewards=rewards, placement=placement, **changes)


def _failing(action: str) -> RunConfig:
    config = _config(trainer=failing_trainer.Config(vocab_size=14, action=action))
    timeout = 60.0 if action == "hang" else 600.0  # also for the start of an actor on a busy machine
    return evolve(config, placement=evolve(config.placement, timeout=timeout))


MESSAGES = {
    "kill": (EngineError, r"trainers-1, an actor of Ray, has ended[\s\S]*the end of its log:\n  \| .*begins, process"),
    "raise": (ZeroDivisionError, "a bug in a trainer"),
    "hang": (EngineError, r"policy\.step: no result of trainers-0, trainers-1"),
}


@pytest.mark.parametrize("action", MESSAGES)
def test_failure_of_an_actor_ends_the_run_and_names_it(action: str, tmp_path: Path) -> None:
    kind, message = MESSAGES[action]
    with pytest.raises(kind, match=message) as raised:
        train(_failing(action), directory=tmp_path)
    if action == "raise":
        assert "in trainers-1, whose log is" in "".join(raised.value.__notes__)
        assert "policy.step has failed" in (tmp_path / "ranks/trainers-1.log").read_text()
    if action == "hang":
        for rank, function in enumerate(("_wait", "step")):
            assert re.search(
                f"takes longer.*[\\s\\S]*in {function}", (tmp_path / f"ranks/trainers-{rank}.log").read_text()
            )


def test_the_stacks_of_a_hanging_actor_can_be_asked_for(tmp_path: Path) -> None:
    placement = Placement(kind="ray", trainers=Actors(count=2), generators=Actors(), timeout=600.0)
    stacks = {answer.name: answer.text or "" for answer in stacks_of_hanging_run(tmp_path, placement, rank=1)}
    assert stacks.keys() == {"run", "trainers-0", "trainers-1", "generator-0"}
    assert HANGS.search(stacks["trainers-1"])
    assert "actors/group.py" in stacks["run"]
    assert not [*(tmp_path / "run/ranks").glob("*.stacks")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted."""
    return train(_config(), directory=tmp_path_factory.mktemp("expected") / "run").directory


@pytest.mark.parametrize("name", ["trainers-1", "generator-0"])
def test_run_resumes_after_an_actor_was_killed(name: str, expected: Path, tmp_path: Path) -> None:
    run = _start(_config(), tmp_path / "run")
    _wait_for(lambda: saved_steps(tmp_path / "run/checkpoints"))
    os.kill(_process_of(tmp_path / "run", name), signal.SIGKILL)
    output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 1, output
    assert f"{name}, an actor of Ray, has ended" in output
    train(_config(), directory=tmp_path / "run")
    assert without_times(records(tmp_path / "run")) == without_times(records(expected))


LOST = {
    # A local Ray ends its raylet then, which may be seen before.
    "gcs_server": r"error: the (control store of Ray \(GCS\), at \S+,|raylet of this host) has ended",
    "raylet": "error: the raylet of this host has ended, and Ray with it\n",
}
LONGEST = 20.0  # seconds until the run has ended; Ray itself waits for 60


@pytest.mark.parametrize("name", LOST)
def test_the_end_of_ray_itself_is_said_with_the_way_to_resume(name: str, tmp_path: Path) -> None:
    run = _start(_config(), tmp_path / "run")
    _wait_for(lambda: saved_steps(tmp_path / "run/checkpoints"))
    folder = re.search(r"--temp-dir=(\S+)", (tmp_path / "run/ranks/ray.log").read_text())
    assert folder is not None
    [process] = [
        path for path in _processes(folder[1]) if path.read_bytes().partition(b"\0")[0].endswith(name.encode())
    ]
    begin = time.monotonic()
    os.kill(int(process.parent.name), signal.SIGKILL)
    output, _ = run.communicate(timeout=DEADLINE)
    assert time.monotonic() - begin < LONGEST
    assert run.returncode == 1, output
    assert re.search(LOST[name], output), output
    assert f"see {tmp_path}/run/ranks/ray.log; the same command resumes the run from its last checkpoint\n" in output
    _wait_for(lambda: not _processes(folder[1]))


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path: Path) -> None:
    run = _start(_config(), tmp_path / "run")
    _wait_for(lambda: saved_steps(tmp_path / "run/checkpoints"))
    folder = re.search(r"--temp-dir=(\S+)", (tmp_path / "run/ranks/ray.log").read_text())
    assert folder is not None
    assert Path(folder[1]).is_dir()
    assert _processes(folder[1])
    # Ray lets every user of the host write into its own directory, with its sockets and its address.
    [private] = [path for path in (Path(folder[1]), *Path(folder[1]).parents) if path.name.startswith("purerl-ray-")]
    assert private.stat().st_mode & 0o777 == 0o700
    run.kill()
    run.wait()
    _wait_for(lambda: not _processes(folder[1]) and not private.exists())
    train(_config(), directory=tmp_path / "run")
    assert len(records(tmp_path / "run")) == STEPS + 1


def test_a_run_stops_with_a_checkpoint_on_sigterm(tmp_path: Path) -> None:
    run = _start(_config(), tmp_path / "run")
    _wait_for(lambda: _text(tmp_path / "run/metrics.jsonl").count("\n") > 1)  # there is a step to save
    run.terminate()
    output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 75, output
    assert saved_steps(tmp_path / "run/checkpoints")


def _start(config: RunConfig, directory: Path) -> subprocess.Popen[str]:
    file = directory.with_suffix(".toml")
    file.write_text(dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "purerl_cli", "train", str(file), "--directory", str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _process_of(directory: Path, name: str) -> int:
    return int(re.findall(r"begins, process (\d+)", (directory / f"ranks/{name}.log").read_text())[-1])


def _processes(text: str) -> list[Path]:
    """The processes that have `text` in their commands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in command and "rm -rf" not in command:
            found.append(path)
    return found
