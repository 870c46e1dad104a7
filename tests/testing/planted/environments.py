"""Planted errors of environments: right except for one thing. `ERRORS` has the check that has to report each."""

from __future__ import annotations

import inspect
import math
import random
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from purerl.envs.protocol import Observation
from purerl.testing.environment import CHECKS
from tests.envs.environments import user


class PlantedEnvironment(NamedTuple):
    """`factory` makes environments with an error, which `check` has to report with `words`, a regular expression."""

    check: Callable
    factory: Callable[[], Any]
    words: str

    @property
    def description(self) -> str:
        words = "".join(f" {c.lower()}" if c.isupper() else c for c in self.factory.__name__).replace("_", " ").strip()
        own = self.factory.__doc__ if self.factory.__doc__ != Echo.__doc__ else None
        return f"{words}. {inspect.cleandoc(own or '')}".strip()


class Tools:
    tools = (
        {"type": "function", "function": {"name": "look", "parameters": {"properties": {"place": {"type": "string"}}}}},
    )

    async def reset(self, example, seed):
        return Observation(messages=[user(example["text"])])

    async def step(self, text, calls):
        answers = [{"role": "tool", "content": call.error or "nothing", "tool_call_id": call.id} for call in calls]
        return Observation(messages=answers, done=not calls, reward=float(not calls) and 0.0)

    async def close(self): ...


class Echo:
    """A good environment with one turn; the mutants replace something in it."""

    def __init__(self):
        self._turns = 0

    def reset(self, example, seed):
        self._random = random.Random(seed)
        return Observation(messages=[user(example["text"])])

    def step(self, text, calls):
        self._turns += 1
        return Observation(messages=[user(text)], reward=1.0 if self._turns == 2 else 0.0, done=self._turns >= 2)

    def close(self): ...


ONE = Echo()


def the_same():
    return ONE


class NoClose:
    reset, step = Echo.reset, Echo.step


class RaisesAtStart(Echo):
    def reset(self, example, seed):
        raise RuntimeError("no display")


class ReturnsText(Echo):
    def step(self, text, calls):
        return text


class NoReward(Echo):
    def step(self, text, calls):
        return Observation(reward=math.nan)


class WrongRole(Echo):
    def reset(self, example, seed):
        return Observation(messages=[{"role": "referee", "content": ""}])


class WrongPlayer(Echo):
    def reset(self, example, seed):
        return Observation(player=1)


class LockedObservation(Observation):
    def __reduce__(self):
        raise TypeError("a lock")


class NotPicklable(Echo):
    def reset(self, example, seed):
        return LockedObservation()


class NotSendable(Echo):
    def reset(self, example, seed):
        return Observation(messages=[user("") | {"at": threading.Lock()}])


class TooLarge(Echo):
    """An observation exceeds the limit of a message from a worker process, which tests set to 1 MiB."""

    def reset(self, example, seed):
        return Observation(messages=[user("x" * 2**20)])


class SameTools(Tools):
    tools = Tools.tools * 2


class UnknownToolIsAnError(Tools):
    async def step(self, text, calls):
        return Observation(messages=[user({"look": "nothing"}[call.name]) for call in calls], done=not calls)


class RefusesCharacters(Echo):
    """It raises an exception for a character that has no width."""

    def step(self, text, calls):
        if "\x00" in text:
            raise ValueError("a character that cannot be shown")
        return super().step(text, calls)


class GlobalRandom(Echo):
    def reset(self, example, seed):
        return Observation(messages=[user(str(random.random()))])


class SeedsGlobal(Echo):
    """Repeatable alone, but not beside other episodes."""

    def reset(self, example, seed):
        random.seed(seed)
        return Observation()

    def step(self, text, calls):
        return Observation(messages=[user(str(random.random()))], done=random.random() < 0.2)


class SharedList(Echo):
    lines: ClassVar[list] = []

    def reset(self, example, seed):
        SharedList.lines.clear()
        return super().reset(example, seed)

    def step(self, text, calls):
        SharedList.lines.append(text)
        self._turns += 1
        return Observation(messages=[user(f"{SharedList.lines}")], done=self._turns >= 2)


class ChangesExample(Echo):
    def reset(self, example, seed):
        return Observation(messages=[user(example.pop("text"))])


class WastesRandomNumbers(Echo):
    def reset(self, example, seed):
        random.random()
        return super().reset(example, seed)


class HashOfState(Echo):
    def reset(self, example, seed):
        return Observation(state=hash(example["text"]))

    def step(self, text, calls):
        return Observation(done=True)


class RewardsForever(Echo):
    def step(self, text, calls):
        return Observation(reward=1.0, done=True)


class ComesBack(Echo):
    def step(self, text, calls):
        self._turns += 1
        return Observation(done=self._turns == 1)


class Ends(Echo):
    """A good environment with a reward at the end."""

    async def end(self, reason, text):
        return Observation(reward=float(len(text)), components={"turns": self._turns}) if reason != "tokens" else None


class EndsWithNumber(Echo):
    def end(self, reason, text):
        return 1.0


class RaisesAtEnd(Echo):
    def end(self, reason, text):
        return Observation(reward=float({"turns": 1}[reason]))


class EndsAtRandom(Echo):
    def end(self, reason, text):
        return Observation(reward=random.random())


class ClosesOnlyAfterReset(Echo):
    def close(self):
        self._random.random()


class KeepsFile(Echo):
    files: ClassVar[list] = []

    def reset(self, example, seed):
        KeepsFile.files.append(Path(__file__).open())  # noqa: SIM115
        return super().reset(example, seed)


class KeepsThread(Echo):
    def reset(self, example, seed):
        threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
        return super().reset(example, seed)


class KeepsProcess(Echo):
    def reset(self, example, seed):
        self._child = subprocess.Popen(["sleep", "600"])
        children.append(self._child)
        return super().reset(example, seed)


children: list[subprocess.Popen] = []


def close_all() -> None:
    """End the processes and close the files of `KeepsProcess` and `KeepsFile`."""
    for child in children:
        child.kill()
        child.wait()
    children.clear()
    for file in KeepsFile.files:
        file.close()
    KeepsFile.files.clear()


_BY_NAME = {check.__name__: check for check in CHECKS}
_TABLE = (
    (the_same, "has_all_methods", "the same object"),
    (RaisesAtStart, "observations_are_valid", "reset\\(.*no display"),
    (NoClose, "has_all_methods", "reset, step and close"),
    (ReturnsText, "observations_are_valid", "need a purerl.envs.protocol.Observation"),
    (NoReward, "observations_are_valid", "reward is nan"),
    (WrongRole, "observations_are_valid", "referee"),
    (WrongPlayer, "observations_are_valid", "player is 1"),
    (NotSendable, "observations_are_valid", "not JSON serializable"),
    (TooLarge, "observations_can_be_sent", "too large to be sent"),
    (SameTools, "tools_are_valid", "different names"),
    (UnknownToolIsAnError, "unusual_turns_are_answered", "no such tool"),
    (RefusesCharacters, "unusual_turns_are_answered", "ValueError"),
    (GlobalRandom, "episode_depends_only_on_its_seed", "reset, played again"),
    (SeedsGlobal, "episodes_do_not_influence_each_other", "random.Random"),
    (SharedList, "episodes_do_not_influence_each_other", "beside other episodes"),
    (ChangesExample, "examples_are_not_changed", "'text': 'first'"),
    (WastesRandomNumbers, "global_random_state_does_not_depend_on_what_was_before", "not seeded"),
    (HashOfState, "labels_are_equal_in_other_process", "states in another process"),
    (RewardsForever, "step_after_end_changes_nothing", "the reward 1.0"),
    (ComesBack, "step_after_end_changes_nothing", "expected done"),
    (EndsWithNumber, "end_by_a_limit_is_answered", "end\\('turns'\\): returned 1.0; need"),
    (RaisesAtEnd, "end_by_a_limit_is_answered", "end\\('tokens'\\): got KeyError"),
    (EndsAtRandom, "end_by_a_limit_is_answered", "played again"),
    (ClosesOnlyAfterReset, "environment_closes_at_any_time", "close after 0 calls"),
    (KeepsFile, "close_releases_resources", "open files: got 5 more"),
    (KeepsThread, "close_releases_resources", "threads: got 5 more"),
    (KeepsProcess, "close_releases_resources", "child processes: got 5 more"),
)
ERRORS: Mapping[str, PlantedEnvironment] = {
    factory.__name__: PlantedEnvironment(_BY_NAME[check], factory, words) for factory, check, words in _TABLE
}
