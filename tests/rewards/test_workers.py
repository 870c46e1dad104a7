"""Reward functions in real worker processes: what hangs, crashes and raises fails alone, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardResult, RewardRunner

HERE = "tests.rewards.functions"
ROOT = Path(__file__).parents[2]


@contextmanager
def judge(*names: str, deadline: float = 1.0, workers: int = 2) -> Iterator[RewardRunner]:
    weights = {f"{HERE}:{name}": 1.0 for name in names}
    with RewardRunner(weights, given={}, deadline=deadline, workers=workers) as made:
        yield made


def cases(count: int, *bad: int) -> list[RewardInput]:
    return [RewardInput(str(k), "bad" if k in bad else "x" * k, {"prompt": "p"}) for k in range(count)]


def failed(verdicts: list[RewardResult]) -> dict[int, str]:
    return {k: one.failure.kind for k, one in enumerate(verdicts) if one.failure}


def test_verdicts_are_in_the_order_of_rows_and_come_from_other_processes() -> None:
    with judge("length", "process") as ask:
        found = ask(cases(600))
        assert [one.components["length"] for one in found] == list(range(600))
        pids = {one.components["process"] for one in found}
        assert os.getpid() not in pids
        again = {one.components["process"] for one in ask(cases(600))}
        assert len(pids | again) <= 2, "workers stay"


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("loops", "timed out", "took longer than 1 seconds; most recent call first:\n  File "),
        ("backtracks", "timed out", "in backtracks\n"),
        ("blocks", "timed out", "in blocks\n"),
        ("waits", "timed out", "was awaited for 1 seconds"),
        ("exits", "died", "the process that it ran in died with exit code 3"),
        ("crashes", "died", f"the process that it ran in died with exit code {-signal.SIGSEGV}"),
        ("fails", "raised", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_row_that_goes_wrong_goes_wrong_alone(name: str, kind: str, told: str) -> None:
    with judge(name) as ask:
        ask(cases(1))
        begin = time.monotonic()
        found = ask(cases(40, 3, 30))
        assert time.monotonic() - begin < 20.0
        assert failed(found) == {3: kind, 30: kind}
        assert told in found[3].failure.traceback
        assert [found[k].reward for k in (2, 4, 29, 31)] == [1.0] * 4
        assert failed(ask(cases(4))) == {}, "there are workers for what comes next"


def test_a_deadline_is_for_one_call_and_not_for_many() -> None:
    with judge("waits", deadline=1.0) as ask:
        assert failed(ask(cases(300))) == {}
    with judge("sleeps", deadline=1.0) as ask:
        assert failed(ask(cases(10))) == {}, "ten times a fifth of a second"


def _noted(log: Path, *texts: str) -> list[list[str]]:
    with judge("noted") as ask:
        ask([RewardInput(str(k), text, {"log": str(log)}) for k, text in enumerate(texts)])
    return [line.split() for line in log.read_text().splitlines()]


def test_a_row_that_hangs_is_not_tried_again(tmp_path: Path) -> None:
    calls = _noted(tmp_path / "log", *["good"] * 10, "bad", *["good"] * 10)
    assert [text for text, _ in calls].count("bad") == 1


def test_slow_rows_are_spread_over_the_workers(tmp_path: Path) -> None:
    calls = _noted(tmp_path / "log", *["slow"] * 4, *["good"] * 4)
    assert len(calls) == 8
    assert len({worker for text, worker in calls if text == "slow"}) == 2


def test_other_functions_judge_a_row_on_which_one_fails() -> None:
    with judge("loops", "length") as ask:
        found = ask(cases(5, 2))
        assert failed(found) == {2: "timed out"}
        assert [one.reward for one in found if not one.failure] == [1.0, 2.0, 4.0, 5.0]


def test_nothing_stays_when_the_block_is_left_while_a_row_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge("process", "loops", deadline=60) as ask:
        pids = {int(one.components["process"]) for one in ask(cases(600))}
        monkeypatch.setattr("purerl.rewards.workers.wait", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(cases(4, 2))
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in pids if _lives(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive == []


def test_what_a_row_that_hangs_has_started_is_ended_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with judge("starts") as ask:
        (found,) = ask([RewardInput("0", "bad", {"log": str(log)})])
        assert found.failure.kind == "timed out"
        _ended(int(log.read_text()))


def test_what_is_running_when_the_block_is_left_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    with judge("starts", deadline=60) as ask:
        ask([RewardInput("0", "good", {"log": str(log)})])
        log.unlink()
        monkeypatch.setattr("purerl.rewards.workers.wait", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask([RewardInput("0", "bad", {"log": str(log)})])
    _ended(int(log.read_text()))


def _ended(pid: int) -> None:
    deadline = time.monotonic() + 10
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(pid)


def _interrupted(*arguments: object, **options: object) -> None:
    time.sleep(0.3)
    raise KeyboardInterrupt


RUN = """
from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardRunner
with RewardRunner({{"{here}:process": 1.0, "{here}:{name}": 1.0}}, given={{}}, deadline=2.0, workers=1) as judge:
    print(int(judge([RewardInput("0", "", {{}})])[0].components["process"]), flush=True)
    judge([RewardInput("0", "bad", {{}})])
"""


@pytest.mark.parametrize("name", ["length", "backtracks"])
def test_a_killed_run_leaves_no_worker_not_even_one_that_hangs(name: str, tmp_path: Path) -> None:
    """The script is not guarded by ``if __name__ == "__main__"``: workers do not import it."""
    script = tmp_path / "script.py"
    script.write_text(RUN.format(here=HERE, name=name) + "import time\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as run:
        worker = int(run.stdout.readline())
        assert _lives(worker)
        time.sleep(0.3)
        run.kill()
    deadline = time.monotonic() + 15
    while _lives(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(worker)


def _lives(pid: int) -> bool:
    """Whether there is such a process, those aside that are dead and not yet buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_is_light() -> None:
    code = "import sys, purerl.rewards.workers; print({'torch', 'numpy', 'pyarrow', 'sympy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"
