"""An episode that is played in the main thread, and an episode as text."""

from __future__ import annotations

import asyncio
import io
import pdb  # noqa: T100 -- a test uses the debugger
import subprocess
import sys
import threading
from typing import Any

import pytest

import purerl.rollouts
from purerl.backends.fake import generator as fake
from purerl.envs.protocol import Observation
from purerl.errors import EngineError, RewardError
from purerl.protocols import Completion
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts import format_episode
from purerl.rollouts.types import Trajectory
from purerl.settings import Model
from tests.backends.tiny import VOCAB_SIZE
from tests.rollouts.episodes import Recorded, Scripted, draw, result, scores, user, workflow

EXAMPLE = draw().example
SCRIPT = (Observation(messages=[user("f")]), Observation(reward=0.5), Observation(reward=1.0, done=True))


def generator() -> fake.FakeGenerator:
    return fake.build(fake.Config(vocab_size=VOCAB_SIZE), model=Model("nowhere"), seed=3)


class Threads(Scripted):
    """An environment that records in which thread it runs."""

    async def reset(self, example: Any, seed: int) -> Observation:
        self.calls.append((threading.current_thread(),))
        return await super().reset(example, seed)


def test_episode_of_a_run_is_repeated_in_the_main_thread() -> None:
    made, environments = workflow(lambda k: Threads(SCRIPT))
    rows = asyncio.run(made(draw(), Recorded(generator())))
    [row] = purerl.rollouts.play(made, EXAMPLE, generator=generator(), index=5, number=3, sample=1, seed=11)
    assert row == rows[1]
    assert environments[1].calls[0] == (threading.main_thread(),)
    assert environments[1].closed == 1


def test_episode_is_played_where_an_event_loop_runs() -> None:
    async def notebook_cell() -> list[Trajectory]:
        return purerl.rollouts.play(workflow(lambda k: Scripted(SCRIPT))[0], EXAMPLE, generator=generator())

    assert len(asyncio.run(notebook_cell())) == 1


def test_exception_of_the_environment_is_raised() -> None:
    made, environments = workflow(lambda k: Scripted([SCRIPT[0], ZeroDivisionError("no stones")]))
    with pytest.raises(ZeroDivisionError, match="no stones") as caught:
        purerl.rollouts.play(made, EXAMPLE, generator=generator())
    assert caught.traceback[-1].name == "_answer", "a debugger stops in the environment"
    assert environments[0].closed == 1


class Failing(fake.FakeGenerator):
    def collect(self, timeout: float | None = None) -> list[Completion]:
        return [Completion(c.key, [], [], [], "error", "out of memory") for c in super().collect(timeout)]


def test_failures_without_an_exception_are_raised() -> None:
    failing = generator()
    failing.__class__ = Failing
    with pytest.raises(EngineError, match="the generator failed on request '0/0'"):
        purerl.rollouts.play(workflow(lambda k: Scripted(SCRIPT))[0], EXAMPLE, generator=failing)
    score, _ = scores(RewardResult(failure=Failure("correct", "raised", "KeyError: 'answer'\n")))
    with pytest.raises(RewardError, match="reward function 'correct' raised\nKeyError: 'answer'"):
        purerl.rollouts.play(workflow(lambda k: Scripted(SCRIPT), score=score)[0], EXAMPLE, generator=generator())
    over, _ = workflow(lambda k: Scripted(SCRIPT[2:]))
    with pytest.raises(Exception, match="draw 0, sample 0, before the first turn: the episode is over before its"):
        purerl.rollouts.play(over, EXAMPLE, generator=generator())


def test_debugger_in_an_environment_works() -> None:
    shown = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p example['prompt']\nc\n"), stdout=shown, nosigint=True)

    class Stops(Scripted):
        async def reset(self, example: Any, seed: int) -> Observation:
            debugger.set_trace()
            return await super().reset(example, seed)

    made, _ = workflow(lambda k: Stops(SCRIPT))
    [row] = purerl.rollouts.play(made, EXAMPLE, generator=generator())
    assert "(Pdb) 'cc'\n" in shown.getvalue()
    assert row.result.reward is not None


def test_importing_the_package_does_not_load_torch() -> None:
    code = "import sys, purerl.rollouts; print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"


def test_episode_as_text() -> None:
    score, _ = scores(result(correct=1.0))
    answer = Observation(messages=[dict(role="tool", name="d", content="i")], reward=0.5)
    made, _ = workflow(lambda k: Scripted([SCRIPT[0], answer, SCRIPT[2]]), samples_per_prompt=1, score=score)

    async def generate(batch: Any) -> list[Completion]:
        return [Completion(request.key, [3, 1], [0.0, 0.0], [0, 0], "stop") for request in batch]

    [row] = asyncio.run(made(draw(), generate))
    assert format_episode(row).splitlines() == [
        "--- user",
        "cc",
        "--- user",
        "f",
        "--- assistant, reward 0.5",
        "db",
        "call d {}",
        "--- tool d",
        "i",
        "--- assistant, reward 1",
        "db",
        "call d {}",
        "--- stop, reward 2.5",
    ]
    single = Trajectory({}, {"prompt": "1+1=", "completion": "2", "finish": "length"})
    assert format_episode(single) == "--- prompt\n1+1=\n--- completion\n2\n--- length, no reward"
