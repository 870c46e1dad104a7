"""Checks of an environment: an episode depends on its example, its seed and the turns, and on nothing else."""

from __future__ import annotations

import copy
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from purerl.seeds import restored_generators, seed_everything
from purerl.testing.environment.case import Case, Playing

__all__ = [
    "episode_depends_only_on_its_seed",
    "episodes_do_not_influence_each_other",
    "examples_are_not_changed",
    "global_random_state_does_not_depend_on_what_was_before",
    "labels_are_equal_in_other_process",
]

_SECONDS = 120.0


def episode_depends_only_on_its_seed(case: Case) -> None:
    """The same example, seed and turns give the same observations, whatever the global random generators do."""
    for example, seed in case.episodes_to_play():
        with restored_generators():
            seed_everything(1)
            first = case.play(example, seed)
            seed_everything(2)
            second = case.play(example, seed)
        _assert_same(second, first, "played again")


def _assert_same(actual: Playing, expected: Playing, how: str) -> None:
    hint = "random numbers must come from random.Random(seed), not from global generators"
    for index, (got, want) in enumerate(zip(actual.observations, expected.observations, strict=False)):
        where = f"step {index - 1}" if index else "reset"
        assert got == want, f"{where}, {how}: got {got!r:.300}, expected {want!r:.300}; {hint}"
    counts = len(actual.observations), len(expected.observations)
    assert counts[0] == counts[1], f"{how}: got {counts[0]} observations, expected {counts[1]}; {hint}"


def episodes_do_not_influence_each_other(case: Case) -> None:
    """Episodes that are played at the same time, turn by turn, are the same as those that are played alone."""
    wanted = [*case.episodes_to_play()]
    alone = [case.play(example, seed) for example, seed in wanted]
    together = [case.playing(example, seed) for example, seed in wanted]
    case.run(_play_together(together))
    for actual, expected in zip(together, alone, strict=True):
        _assert_same(actual, expected, "played beside other episodes")


async def _play_together(episodes: Sequence[Playing]) -> None:
    try:
        for playing in episodes:
            await playing.reset()
        while not all(playing.is_over for playing in episodes):
            for playing in episodes:
                await playing.step()
    finally:
        for playing in episodes:
            await playing.close()


def examples_are_not_changed(case: Case) -> None:
    """An environment does not change the row of the data set, which other episodes share."""
    for example, seed in case.episodes_to_play():
        before = copy.deepcopy(dict(example))
        after = case.play(example, seed).example
        assert after == before, f"got {after!r:.300} after an episode, expected {before!r:.300}"


def global_random_state_does_not_depend_on_what_was_before(case: Case) -> None:
    """The global generators are not touched, or they are seeded: an unseeded number is not repeatable."""
    example, seed = next(case.episodes_to_play())
    with restored_generators():
        states = []
        for number in (1, 2):
            seed_everything(number)
            before = _global_state()
            case.play(example, seed)
            states.append((before, _global_state()))
    (before, after), (_, other) = states
    assert after in (before, other), "an episode has drawn from a global generator that it has not seeded"


def _global_state() -> list[Any]:
    """A value that depends on the states of the global generators; they are not changed."""
    with restored_generators():
        numpy = sys.modules.get("numpy")
        return [random.random(), float(numpy.random.random()) if numpy else None]


_SCRIPT = """
import pickle, sys
sys.path[:] = {path!r}
case, example, seed = pickle.loads(sys.stdin.buffer.read())
states = [observation.state for observation in case.play(example, seed).observations]
sys.stderr.write("\\n" + repr(states) + "\\n")
"""


def labels_are_equal_in_other_process(case: Case) -> None:
    """The label of a state is the same in another process: it is no hash of a string, and no address."""
    example, seed = next(case.episodes_to_play())
    expected = [observation.state for observation in case.play(example, seed).observations]
    if not any(state is not None for state in expected):
        return
    try:
        packed = pickle.dumps((case, example, seed))
    except Exception:  # noqa: BLE001 -- a local function, for example; objects raise what they want
        return
    # With another hash seed, the hash of a string differs.
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    command = [sys.executable, "-c", _SCRIPT.format(path=sys.path)]
    process = subprocess.run(  # noqa: S603 -- this interpreter
        command, input=packed, capture_output=True, env=environment, timeout=_SECONDS, check=False
    )
    answer = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
    assert process.returncode == 0, f"another process: got {''.join(answer)}, expected an episode"
    assert answer == [repr(expected)], f"states in another process: got {''.join(answer)}, expected {expected!r}"
