"""A sample that fails is one missing sample, however many rows it has."""

from __future__ import annotations

from purerl.envs.protocol import Observation
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.failures import missing_samples
from purerl.rollouts.types import Group
from tests.rollouts.episodes import Says, Scripted, run, scores, user, workflow

ENDS = (Observation(), Observation(reward=1.0, done=True))


def _names(group: Group, samples: int) -> list[str]:
    return [missing.name for missing in missing_samples(group, samples)]


def test_an_episode_with_several_rows_is_one_sample() -> None:
    fails = (Observation(), *[Observation(messages=[user("gg")])] * 3, RuntimeError("the game is broken"))
    made, _ = workflow(
        lambda k: Scripted(fails if k == 1 else ENDS), history="rerender", samples_per_prompt=3, max_turns=8
    )
    rows = run(made, Says({f"3/1{turn}": "khb" for turn in ("", ".1", ".2", ".3")}))
    assert len(rows) > 3
    assert _names(Group(3, tuple(rows)), 3) == ["3/1"]


def test_a_game_is_one_sample() -> None:
    fails = (Observation(), *[Observation(messages=[user("gg")], player=k) for k in (1, 2)], RuntimeError("broken"))
    made, _ = workflow(lambda k: Scripted(fails if k == 1 else ENDS), samples_per_prompt=2, players=3, max_turns=8)
    rows = run(made, Says({}))
    assert len(rows) == 4
    assert _names(Group(3, tuple(rows)), 2) == ["3/1"]


def test_each_failed_sample_has_its_name_and_its_own_failure() -> None:
    failures = [Failure("f", "raised", f"{k}\n") for k in range(2)]
    score, _ = scores(*[RewardResult(failure=failure) for failure in failures])
    made, _ = workflow(lambda k: Scripted(ENDS), score=score)
    group = Group(3, tuple(run(made, Says({}))))
    assert [(missing.name, missing.failure) for missing in missing_samples(group, 2)] == [
        ("3/0", failures[0]),
        ("3/1", failures[1]),
    ]
    assert _names(Group(3, (), failures[0]), 2) == ["3/0", "3/1"]
