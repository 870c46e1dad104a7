"""Episodes of environments: turns, budgets and rewards."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from purerl.batch import check_batch, collate
from purerl.envs.protocol import Observation
from purerl.protocols import Completion
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.seeds import derive_seed
from tests.rollouts.episodes import (
    SAMPLING,
    TWO_TURNS,
    Ending,
    Says,
    Scripted,
    draw,
    result,
    run,
    scores,
    texts_of,
    user,
    workflow,
)


def test_row_is_prompt_samples_and_additions() -> None:
    made, environments = workflow(lambda k: Scripted(TWO_TURNS), samples_per_prompt=1)
    [trajectory] = run(made, Says({"3/0": "kkb", "3/0.1": "mb"}))
    fields = trajectory.fields
    assert texts_of(fields) == "ccfaKKBggaMB", "the last answer of the environment is not part of the row"
    assert fields["reward"] == [0] * 6 + [0.5] + [0] * 4 + [2.0]
    assert fields["rollout_logp"] == [0] * 4 + [-0.5, -1.5, -2.5] + [0] * 3 + [-0.5, -1.5]
    assert fields["version"] == [0] * 4 + [7] * 3 + [0] * 3 + [7] * 2
    assert fields["turn"] == [0] * 7 + [1] * 5
    assert fields["mask"] == fields["action"]
    labels = {name: value for name, value in fields.items() if not isinstance(value, list)}
    expected = dict(row=3, group=3, example=5, temperature=0.7, truncated=False, episode=3)
    assert labels == expected
    assert environments[0].calls == [(draw().example, derive_seed(11, 3, 0)), ("kk", ()), ("m", ())]
    assert trajectory.result.reward == 2.5
    assert trajectory.result.components == {"environment": 2.5}
    check_batch(collate([fields]))


def test_requests_have_keys_seeds_and_the_rest_of_the_budgets() -> None:
    requests = []

    async def generate(batch: Any) -> list[Completion]:
        requests.extend(batch)
        return await Says({})(batch)

    made, _ = workflow(lambda k: Scripted(TWO_TURNS), samples_per_prompt=2, max_episode_tokens=8)
    run(made, generate)
    assert {request.key: request.seed for request in requests} == {
        "3/0": derive_seed(11, 3, 0),
        "3/1": derive_seed(11, 3, 1),
        "3/0.1": derive_seed(11, 3, 0, 1),
        "3/1.1": derive_seed(11, 3, 1, 1),
    }
    assert {request.key: request.sampling.max_tokens for request in requests} == {
        "3/0": 6,
        "3/1": 6,
        "3/0.1": 3,
        "3/1.1": 3,
    }
    assert {request.sampling.stop_tokens for request in requests} == {SAMPLING.stop_tokens}


def test_first_requests_of_a_group_are_made_in_the_same_turn_of_the_event_loop() -> None:
    turns: list[list[str]] = []

    async def generate(batch: Any) -> list[Completion]:
        if not turns:
            turns.append([])
            asyncio.get_running_loop().call_soon(turns.append, [])
        turns[-1].extend(request.key for request in batch)
        await asyncio.sleep(0)
        return await Says({})(batch)

    made, _ = workflow(lambda k: Scripted(TWO_TURNS), samples_per_prompt=8)
    run(made, generate)
    assert turns[0] == [f"3/{k}" for k in range(8)]


@pytest.mark.parametrize(
    ("changes", "texts", "row"),
    [
        ({}, {"3/0.1": "kkkkkkkkk"}, "ccfaCBggaKKKKKK"),  # cut at max_tokens of a turn
        ({"max_turns": 1}, {}, "ccfaCB"),
        ({"max_episode_tokens": 5}, {}, "ccfaCB"),  # "CBgga" are five tokens
        ({"max_episode_tokens": 6}, {}, "ccfaCBggaC"),
        ({"max_sequence_length": 9}, {}, "ccfaCB"),
        ({"max_sequence_length": 10}, {}, "ccfaCBggaC"),
    ],
)
def test_limits_truncate_an_episode(changes: Any, texts: Any, row: str) -> None:
    made, environments = workflow(lambda k: Scripted(TWO_TURNS), samples_per_prompt=1, **changes)
    [trajectory] = run(made, Says(texts))
    assert texts_of(trajectory.fields) == row
    assert trajectory.fields["truncated"]
    assert trajectory.texts["finish"] == "length"
    assert trajectory.result.reward == 0.5, "a turn that was cut is not answered"
    assert trajectory.metrics["environment/truncated"] == 1.0
    assert trajectory.metrics["environment/truncated_turn"] == float(row[-1] in "CK" and "max_turns" not in changes)
    assert environments[0].closed == 1


@pytest.mark.parametrize(
    ("changes", "texts", "told", "position"),
    [
        ({}, {"3/0.1": "kkkkkkkkk"}, ("length", "kkkkkk"), -1),  # the turn that was cut
        ({"max_turns": 1}, {}, ("turns", ""), -1),
        ({"max_episode_tokens": 5}, {}, ("tokens", ""), -1),
    ],
)
def test_environment_is_told_that_a_limit_ends_the_episode(changes: Any, texts: Any, told: Any, position: int) -> None:
    last = Observation(reward=4.0, components={"late": 1.0}, messages=[user("i")], done=True)
    made, environments = workflow(lambda k: Ending(TWO_TURNS, last=last), samples_per_prompt=1, **changes)
    [trajectory] = run(made, Says(texts))
    assert environments[0].ends == [told]
    assert trajectory.fields["truncated"]
    assert trajectory.fields["reward"][position] == 4.0 + (0.5 if len(environments[0].calls) == 2 and not texts else 0)
    assert trajectory.result.reward == 4.5
    assert trajectory.result.components == {"environment": 4.5, "late": 1.0}
    assert json.loads(trajectory.texts["messages"])[-1]["content"] != "i"
    assert environments[0].closed == 1


def test_environment_is_not_told_of_an_end_of_its_own_or_before_the_first_turn() -> None:
    for script, changes in ((TWO_TURNS, {}), (TWO_TURNS, {"max_sequence_length": 1})):
        made, environments = workflow(lambda k, script=script: Ending(script), samples_per_prompt=1, **changes)
        run(made, Says({}))
        assert environments[0].ends == []


def test_end_that_fails_is_a_missing_sample() -> None:
    made, _ = workflow(lambda k: Ending(TWO_TURNS, last=ValueError("no end")), samples_per_prompt=1, max_turns=1)
    [trajectory] = run(made, Says({}))
    assert "no end" in trajectory.result.failure.traceback
    assert not any(trajectory.fields["mask"])


def test_rewards_at_the_end_of_a_game_belong_to_the_players() -> None:
    turns = [Observation(messages=[user("f")], player=k % 2) for k in range(3)]
    for reward, expected in ((3.0, [0.0, 3.0]), ({0: 1.0, 1: -1.0}, [1.0, -1.0])):
        last = Observation(reward=reward)
        made, _ = workflow(lambda k, last=last: Ending(turns, last=last), samples_per_prompt=1, max_turns=2, players=2)
        assert [row.result.reward for row in run(made, Says({}))] == expected


def test_limit_of_the_environment_truncates_an_episode() -> None:
    script = (TWO_TURNS[0], Observation(reward=1.0, done=True, truncated=True))
    made, _ = workflow(lambda k: Scripted(script), samples_per_prompt=1)
    [trajectory] = run(made, Says({}))
    assert trajectory.fields["truncated"]
    assert trajectory.result.reward == 1.0


def test_truncated_episode_without_rewards_has_the_reward_zero() -> None:
    made, _ = workflow(lambda k: Scripted([Observation()]), samples_per_prompt=1)
    [trajectory] = run(made, Says({}))
    assert trajectory.result.reward == 0.0
    assert any(trajectory.fields["mask"])


def test_metrics_and_texts_describe_the_episode() -> None:
    made, _ = workflow(lambda k: Scripted(TWO_TURNS, tools=[{}]), samples_per_prompt=1)
    [trajectory] = run(made, Says({"3/0": "ddeb"}))
    assert trajectory.metrics == {
        "environment/turns": 2,
        "environment/tool_calls": 3,
        "environment/tool_errors": 1,
        "environment/observation_tokens": 3,
        "environment/rows": 1,
        "environment/truncated": 0,
        "environment/truncated_turn": 0,
    }
    texts = dict(trajectory.texts)
    assert json.loads(texts.pop("messages")) == [
        user("cc"),
        user("f"),
        {
            "role": "assistant",
            "content": "ddeb",
            "tool_calls": [
                {"name": "d", "arguments": {}, "id": "00"},
                {"name": "d", "arguments": {}, "id": "01"},
                {"name": "e", "arguments": {}, "id": "02", "error": "invalid JSON"},
            ],
            "reward": 0.5,
        },
        user("gg"),
        {"role": "assistant", "content": "cb", "reward": 2.0},
        user("iii"),
    ]
    assert texts == {"prompt": "ccfpa", "completion": "c", "finish": "stop", "ground_truth": "7"}


# --- rewards -----------------------------------------------------------------------------------------------------


def test_reward_functions_score_the_end_of_an_episode() -> None:
    score, inputs = scores(result(correct=1.0, environment=0.25), result(correct=0.0))
    made, _ = workflow(lambda k: Scripted(TWO_TURNS), score=score)
    first, second = run(made, Says({"3/0.1": "mb"}))
    assert [(item.row, item.completion, item.seed) for item in inputs] == [
        ("3/0", "m", derive_seed(11, "reward", "3/0")),
        ("3/1", "c", derive_seed(11, "reward", "3/1")),
    ]
    assert inputs[0].conversation == [
        user("f"),
        {"role": "assistant", "content": "cb"},
        user("gg"),
        {"role": "assistant", "content": "mb"},
        user("iii"),
    ]
    assert first.fields["reward"] == [0] * 5 + [0.5] + [0] * 4 + [2.0 + 1.25]
    assert first.result.weighted_components == {"environment": 2.75, "correct": 1.0}, "equal names are added up"
    assert second.result.components == {"environment": 2.5, "correct": 0.0}
    assert first.result.by_function == {"environment": {"environment": 2.5}, "f": {"correct": 1.0, "environment": 0.25}}


def test_environment_without_rewards_has_no_component() -> None:
    score, _ = scores(result(correct=1.0))
    script = (Observation(), Observation(done=True, components={"steps": 3}))
    made, _ = workflow(lambda k: Scripted(script), score=score, samples_per_prompt=1)
    [trajectory] = run(made, Says({}))
    assert trajectory.result.weighted_components == {"correct": 1.0}
    assert trajectory.result.components == {"correct": 1.0, "steps": 3.0}


def test_components_of_turns_are_added_up() -> None:
    last = Observation(reward=1, done=True, components={"steps": 2})
    script = (Observation(), Observation(components={"steps": 1}), last)
    made, _ = workflow(lambda k: Scripted(script), samples_per_prompt=1)
    [trajectory] = run(made, Says({}))
    assert trajectory.result.components == {"steps": 3.0, "environment": 1.0}
    assert trajectory.result.reward == 1.0


@pytest.mark.parametrize("scored", [RewardResult(), RewardResult(failure=Failure("f", "raised", "no"))])
def test_missing_reward_masks_the_row(scored: RewardResult) -> None:
    score, _ = scores(scored, result(correct=1.0))
    made, _ = workflow(lambda k: Scripted(TWO_TURNS), score=score)
    first, second = run(made, Says({}))
    assert first.result == scored
    assert not any(first.fields["mask"])
    assert not any(first.fields["reward"])
    assert any(first.fields["action"])
    assert second.result.reward == 3.5
    assert any(second.fields["mask"])
    check_batch(collate([first.fields, second.fields]))
