"""SIGTERM and SIGUSR1 stop a run between two steps, with a checkpoint; it resumes bit for bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.algos.modifiers import bypass
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.errors import RunStoppedError
from purerl.loop.callbacks import Callbacks
from purerl.loop.train import train
from purerl.rewards.settings import RewardWorkers
from purerl.store.checkpoint import newest, saved_steps
from purerl.store.rollouts import read_rollouts
from purerl_cli import stopping
from tests.loop.runs import records, without_times
from tests.loop.small import fake

DEADLINE = 60.0


def waiting_run() -> RunConfig:
    """A run without checkpoints but the last one, whose reward function waits for files of the test."""
    return fake(
        max_steps=6,
        rewards=("tests.cli.rewards:when_released",),
        reward_workers=RewardWorkers(num_workers=1, timeout=300.0),
        evaluate=None,
        checkpoint=evolve(fake().checkpoint, every=100),
    )


class _Run:
    """`purerl train` in another process, which waits for `release` before it scores the completions of each step."""

    def __init__(self, directory: Path, recipe: str = "tests.cli.test_stop:waiting_run") -> None:
        self.directory, self.gate = directory, directory.with_name("gate")
        self.gate.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "purerl_cli", "train", recipe, "--directory", str(directory)]
        environment = os.environ | {"PURERL_TEST_GATE": str(self.gate)}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, "nothing happened"
            time.sleep(0.02)

    def wait_for_step(self, step: int) -> None:
        """Let the run finish `step` steps, and wait until it scores the completions of the next one."""
        self.release(step)
        self.wait_until((self.gate / f"waiting-{step + 1}").exists)

    def release(self, step: int) -> None:
        """Let the run score the completions of all steps up to `step`."""
        for number in range(1, step + 1):
            (self.gate / f"release-{number}").touch()

    def next_error(self) -> str:
        """The next line of the error output that is not about what takes long, which a busy computer has."""
        assert self.process.stderr is not None
        return next(line for line in iter(self.process.stderr.readline, "") if not line.startswith("purerl: "))

    def end(self) -> tuple[int, str]:
        """The exit status and the error output, without lines about what takes long."""
        try:
            _, errors = self.process.communicate(timeout=DEADLINE)
        finally:
            self.process.kill()
        lines = errors.splitlines(keepends=True)
        return self.process.returncode, "".join(line for line in lines if not line.startswith("purerl: "))


def _children(process: int) -> list[int]:
    """The processes that the threads of `process` have started, and all that these have started."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    return children + [other for child in children for other in _children(child)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """The metrics of the run without an interruption."""
    directory = tmp_path_factory.mktemp("expected") / "run"
    return without_times(records(train(waiting_run(), directory=directory)))


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_ends_the_step_writes_a_checkpoint_and_the_run_resumes(
    sign: signal.Signals,
    tmp_path: Path,
    expected: list[dict[str, object]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _Run(tmp_path / "run")
    run.wait_for_step(2)
    workers = _children(run.process.pid)
    assert workers
    os.kill(run.process.pid, sign)
    line = run.next_error()
    assert line == f"{sign.name}: the run stops after this step; a second signal stops it at once\n"
    for worker in workers:  # Slurm sends a signal to all processes of a job
        os.kill(worker, sign)
    run.release(6)
    status, errors = run.end()
    assert status == 75, errors
    assert errors.endswith(f"'{tmp_path}/run': stopped after step 3\n  do:   the same command resumes the run\n")
    assert saved_steps(tmp_path / "run" / "checkpoints") == {3}
    capsys.readouterr()
    train(waiting_run(), directory=tmp_path / "run")
    assert capsys.readouterr().out.startswith("addition: resumed from step 3\n")
    assert without_times(records(tmp_path / "run")) == expected


@pytest.mark.slow
def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    run = _Run(tmp_path / "run")
    run.wait_for_step(1)
    os.kill(run.process.pid, signal.SIGUSR1)
    first = "SIGUSR1: the run stops after this step"
    assert run.next_error().startswith(first)
    time.sleep(stopping._MIN_SECONDS_BETWEEN)  # the first signal was handled before its message was printed
    os.kill(run.process.pid, signal.SIGTERM)
    status, errors = run.end()
    assert (status, errors) == (143, "terminated; the same command resumes from the last checkpoint, if there is one\n")
    assert newest(tmp_path / "run" / "checkpoints") is None


def test_signal_less_than_a_second_after_the_first_one_belongs_to_it() -> None:
    code = (
        "import signal; from types import SimpleNamespace; from purerl_cli import stopping\n"
        "now = 0.0\n"
        "stopping.time = SimpleNamespace(monotonic=lambda: now)\n"
        "with stopping.stop_signals() as should_stop:\n"
        "    signal.raise_signal(signal.SIGUSR1); print(should_stop())\n"
        "    now = 0.9; signal.raise_signal(signal.SIGTERM); print('running')\n"
        "    now = 1.0\n"
        "    try: signal.raise_signal(signal.SIGTERM)\n"
        "    except KeyboardInterrupt: print('stopped')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["True", "running", "stopped"]


def test_signal_that_the_parent_ignores_stays_ignored(tmp_path: Path) -> None:
    code = (
        "import signal; from purerl_cli.stopping import stop_signals\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "with stop_signals() as should_stop:\n"
        "    signal.raise_signal(signal.SIGUSR1); print(should_stop())\n"
        "    signal.raise_signal(signal.SIGTERM); print(should_stop())\n"
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "True", "True"]


# --- from Python -------------------------------------------------------------------------------------------------


def _stop_after(steps: Sequence[int]) -> Callable[[], bool]:
    """A `should_stop` that is called before every step, and is true in its calls with these numbers."""
    calls = iter(range(1, 1000))
    return lambda: next(calls) in steps


def _stopped_at(config: RunConfig, directory: Path, before: int) -> int:
    """Stop the run before the step number `before` of this process; return the step after which it stopped."""
    with pytest.raises(RunStoppedError) as caught:
        train(config, directory=directory, callbacks=Callbacks(should_stop=_stop_after([before])))
    return int(re.findall(r"after step (\d+)", str(caught.value))[0])


CADENCE = {"checkpoint": evolve(fake().checkpoint, every=5), "evaluate": evolve(fake().evaluate, every=4)}


@pytest.mark.slow
def test_run_that_is_stopped_again_and_again_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    config = fake(max_steps=12, **CADENCE)
    expected = train(config, directory=tmp_path / "expected")
    stops = [_stopped_at(config, tmp_path / "run", before=before) for before in (3, 1, 2, 2, 2)]
    assert stops == [2, 2, 3, 4, 5]
    run = train(config, directory=tmp_path / "run")
    assert without_times(records(run)) == without_times(records(expected))
    assert (run.model / "model.safetensors").read_bytes() == (expected.model / "model.safetensors").read_bytes()


def test_stale_run_that_is_stopped_again_and_again_trains_every_draw_once(tmp_path: Path) -> None:
    rollout, algorithm = evolve(fake().rollout, max_staleness=2), Composition(grpo.Config(), (bypass.Config(),))
    config = fake(max_steps=12, rollout=rollout, algorithm=algorithm, **CADENCE)
    for before in (3, 1, 2, 2, 2):
        _stopped_at(config, tmp_path / "run", before=before)
    run = train(config, directory=tmp_path / "run")
    rows = [read_rollouts(run.directory / "rollouts", step) for step in range(1, 13)]
    draws = [group for step in rows for group in dict.fromkeys(row["group"] for row in step)]
    assert draws == [*range(12 * config.batch_size)]
    assert max(record["rollout/staleness_max"] for record in records(run)[1:]) <= 2


def test_run_that_is_stopped_before_its_first_step_starts_again(tmp_path: Path) -> None:
    assert _stopped_at(fake(), tmp_path / "run", before=1) == 0
    assert newest(tmp_path / "run" / "checkpoints") is None
    assert train(fake(), directory=tmp_path / "run").steps == 4
