"""Episodes of environments: turns, budgets, rewards, failures, closing, self-play, and their rows."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from purerl.algos import gigpo, rae
from purerl.batch import check_batch, collate
from purerl.envs.protocol import Observation
from purerl.errors import EngineError
from purerl.protocols import Completion
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult
from purerl.rollouts.rows import results_of_episodes
from purerl.rollouts.types import Trajectory
from purerl.seeds import derive_seed
from tests.rollouts.episodes import (
    SAMPLING,
    Ending,
    Says,
    Scripted,
    draw,
    result,
    scores,
    texts_of,
    tokens_of,
    user,
    workflow,
)

TWO_TURNS = (
    Observation(messages=[user("f")]),
    Observation(messages=[user("gg")], reward=0.5),
    Observation(reward=2.0, done=True, messages=[user("iii")]),
)


def run(made: Any, generate: Any, number: int = 3) -> list[Trajectory]:
    return asyncio.run(made(draw(number), generate))


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


# --- failures ----------------------------------------------------------------------------------------------------


class Broken(Scripted):
    """An environment that raises an exception in `reset`."""

    async def reset(self, example: Any, seed: int) -> Observation:
        raise ValueError("no such level")


FAILURES = [
    (lambda: Broken(TWO_TURNS), {}, "cc", "before the first turn", "raised", "ValueError: no such level"),
    (lambda: Scripted([TWO_TURNS[0], KeyError("x")]), {}, "ccfaCB", "turn 0", "raised", "KeyError: 'x'"),
    (lambda: Scripted([*TWO_TURNS[:2], TimeoutError()]), {}, "ccfaCBggaCB", "turn 1", "timed out", "TimeoutError"),
    (lambda: Scripted([TWO_TURNS[0], SystemExit(3)]), {}, "ccfaCB", "turn 0", "raised", "SystemExit: 3"),
    (lambda: Scripted([TWO_TURNS[0], asyncio.CancelledError()]), {}, "ccfaCB", "turn 0", "raised", "CancelledError"),
    (
        lambda: Scripted([TWO_TURNS[0], Observation(messages=[{"role": "user"}])]),
        {},
        "ccfaCB",
        "turn 0",
        "raised",
        "KeyError: 'content'",
    ),
    (lambda: Scripted(TWO_TURNS[2:]), {}, "cc", "before the first turn", "returned an invalid value", "over before"),
    (
        lambda: Scripted(TWO_TURNS),
        {"max_sequence_length": 4},
        "ccfa",
        "before the first turn",
        "returned an invalid value",
        "its prompt is too long",
    ),
    (
        lambda: Scripted([Observation(), Observation(done=True)]),
        {},
        "ccaCB",
        "turn 0",
        "returned an invalid value",
        "over without a reward",
    ),
]


@pytest.mark.parametrize(("build", "changes", "row", "turn", "kind", "message"), FAILURES)
def test_failed_episode_is_a_missing_sample(
    build: Any, changes: Any, row: str, turn: str, kind: str, message: str
) -> None:
    made, environments = workflow(lambda k: build() if k == 1 else Scripted(TWO_TURNS), **changes)
    good, bad = run(made, Says({}))[:2]
    assert texts_of(bad.fields) == row
    failure = bad.result.failure
    assert failure is not None
    assert failure.function == "environment"
    assert failure.kind == kind
    assert failure.traceback.startswith(f"draw 3, sample 1, {turn}:")
    assert message in failure.traceback
    assert bad.result.reward is None
    assert bad.texts["finish"] == "error"
    assert bad.metrics == {}
    assert not any(bad.fields["mask"])
    assert not any(bad.fields["reward"])
    assert changes or good.result.reward == 2.5
    assert [environment.closed for environment in environments.values()] == [1, 1]
    check_batch(collate([good.fields, bad.fields]))


def test_environment_that_cannot_be_opened_is_a_missing_sample() -> None:
    def build(sample: int) -> Any:
        if sample == 0:
            raise ConnectionError("no server")
        return Scripted(TWO_TURNS)

    made, _ = workflow(build)
    bad, good = run(made, Says({}))
    assert bad.result.failure is not None
    assert "ConnectionError: no server" in bad.result.failure.traceback
    assert bad.fields["tokens"] == tokens_of("cc")
    assert good.result.reward == 2.5


def test_failed_request_is_a_missing_sample() -> None:
    async def generate(batch: Any) -> list[Completion]:
        if batch[0].key == "3/1.1":
            return [Completion("3/1.1", [], [], [], "error", "out of memory")]
        return await Says({})(batch)

    made, environments = workflow(lambda k: Scripted(TWO_TURNS))
    good, bad = run(made, generate)
    failure = bad.result.failure
    assert failure is not None
    assert failure.function == "generator"
    assert failure.traceback.startswith("draw 3, sample 1, turn 1:")
    assert "out of memory" in failure.traceback
    assert texts_of(bad.fields) == "ccfaCB"
    assert good.result.reward == 2.5
    assert environments[1].closed == 1


def test_error_of_the_run_in_an_environment_is_raised() -> None:
    made, _ = workflow(lambda k: Scripted([TWO_TURNS[0], EngineError("no more processes")]))
    with pytest.raises(EngineError, match="no more processes"):
        run(made, Says({}))


def test_failure_that_an_exception_brings_is_kept() -> None:
    error = RuntimeError("x")
    error.failure = Failure("my_game.py:Game", "died", "signal 9\n")  # type: ignore[attr-defined]
    made, _ = workflow(lambda k: Scripted([TWO_TURNS[0], error]), samples_per_prompt=1)
    [row] = run(made, Says({}))
    assert row.result.failure == Failure("my_game.py:Game", "died", "draw 3, sample 0, turn 0:\nsignal 9\n")


def test_errors_of_the_run_are_raised_after_closing_all_environments() -> None:
    async def score(batch: Any) -> list[RewardResult]:
        raise MemoryError("the workers are gone")

    made, environments = workflow(lambda k: Scripted(TWO_TURNS, delays=9 * k), score=score)
    with pytest.raises(MemoryError, match="the workers are gone"):
        run(made, Says({}))
    assert [environment.closed for environment in environments.values()] == [1, 1]


# --- closing -----------------------------------------------------------------------------------------------------


def test_cancelled_workflow_closes_its_environments() -> None:
    async def main() -> bool:
        waiting = asyncio.Event()

        async def generate(batch: Any) -> list[Completion]:
            waiting.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(made(draw(), generate))  # type: ignore[arg-type]
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    made, environments = workflow(lambda k: Scripted(TWO_TURNS))
    assert asyncio.run(main())
    assert [environment.closed for environment in environments.values()] == [1, 1]


def test_cancellation_in_an_environment_is_not_a_failure() -> None:
    class Waiting(Scripted):
        async def step(self, text: str, calls: Any) -> Observation:
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        nonlocal task
        task = asyncio.create_task(made.play(made.start(draw(), 0), Says({})))
        with pytest.raises(asyncio.CancelledError):
            await task

    task: Any = None
    made, environments = workflow(lambda k: Waiting(TWO_TURNS))
    asyncio.run(main())
    assert environments[0].closed == 1


class Stuck(Scripted):
    async def close(self) -> None:
        await asyncio.Event().wait()


class Refusing(Scripted):
    async def close(self) -> None:
        raise OSError("already closed")


@pytest.mark.parametrize(
    ("build", "message"), [(Stuck, "was not closed within 0.01 seconds"), (Refusing, "raised an exception")]
)
def test_environment_that_cannot_be_closed_is_a_warning(build: Any, message: str, caplog: Any) -> None:
    made, _ = workflow(lambda k: build(TWO_TURNS), close_timeout=0.01, samples_per_prompt=1)
    with caplog.at_level(logging.WARNING):
        [trajectory] = run(made, Says({}))
    assert trajectory.result.reward == 2.5
    assert message in caplog.text
    assert "draw 3, sample 0" in caplog.text


# --- rerender ----------------------------------------------------------------------------------------------------

THREE_TURNS = (*TWO_TURNS[:2], Observation(messages=[user("jj")], reward=0.25, components={"x": 1}), TWO_TURNS[2])


def test_rerendered_conversation_forks_into_rows_if_it_changes() -> None:
    score, _ = scores(result(correct=1.0))
    made, _ = workflow(lambda k: Scripted(THREE_TURNS), history="rerender", samples_per_prompt=1, score=score)
    rows = run(made, Says({"3/0": "khb", "3/0.1": "kb", "3/0.2": "hhb"}))
    assert [texts_of(row.fields) for row in rows] == ["ccfaKHB", "ccfakbggaKBjjaHHB"]
    assert [row.fields["turn"] for row in rows] == [[0] * 7, [0] * 9 + [1] * 2 + [2] * 6]
    assert [row.fields["reward"] for row in rows] == [[0] * 6 + [0.5], [0] * 10 + [0.25] + [0] * 5 + [3.0]]
    assert [row.fields["row"] for row in rows] == [12, 13]
    assert {row.fields["episode"] for row in rows} == {3}
    assert [row.result.reward for row in rows] == [0.5, 3.25]
    assert [row.result.components for row in rows] == [
        {"environment": 0.5},
        {"environment": 2.25, "x": 1, "correct": 1},
    ]
    [episode] = results_of_episodes(rows)
    assert episode.weighted_components == {"environment": 2.75, "correct": 1.0}
    assert episode.components == {"environment": 2.75, "x": 1.0, "correct": 1.0}
    assert [row.metrics.get("environment/rows") for row in rows] == [None, 2]
    check_batch(collate([row.fields for row in rows]))


def test_row_whose_last_token_changes_is_forked() -> None:
    async def generate(batch: Any) -> list[Completion]:
        return [Completion(request.key, tokens_of("kh"), [0.0] * 2, [0] * 2, "stop") for request in batch]

    made, _ = workflow(lambda k: Scripted(TWO_TURNS), history="rerender", samples_per_prompt=1)
    assert [texts_of(row.fields) for row in run(made, generate)] == ["ccfaKH", "ccfakggaKH"]


def test_rows_of_an_episode_without_rewards_of_the_environment_have_a_reward() -> None:
    score, _ = scores(result(correct=1.0))
    script = (Observation(), Observation(), Observation(done=True))
    made, _ = workflow(lambda k: Scripted(script), history="rerender", samples_per_prompt=1, score=score)
    rows = run(made, Says({"3/0": "hb"}))
    assert [row.result.reward for row in rows] == [0.0, 1.0]
    assert [row.result.weighted_components for row in rows] == [{"correct": 0.0}, {"correct": 1.0}]
    assert all(any(row.fields["mask"]) for row in rows)
    assert results_of_episodes(rows)[0].components == {"correct": 1.0}


def test_failed_episode_masks_all_its_rows() -> None:
    script = (*THREE_TURNS[:2], ValueError("x"))
    made, _ = workflow(lambda k: Scripted(script), history="rerender", samples_per_prompt=1)
    rows = run(made, Says({"3/0": "hb"}))
    assert [texts_of(row.fields) for row in rows] == ["ccfaHB", "ccfabggaCB"]
    assert not any(any(row.fields["mask"]) for row in rows)
    [episode] = results_of_episodes(rows)
    assert episode.reward is None
    assert episode.failure is not None


# --- states, and several players ---------------------------------------------------------------------------------


def test_states_are_anchors_for_gigpo() -> None:
    script = (
        Observation(state="left"),
        Observation(messages=[user("g")], state=4),
        Observation(state="left", reward=1.0),
        Observation(done=True, reward=0.0),
    )

    made, _ = workflow(lambda k: Scripted(script) if k else Broken(script), has_states=True)
    bad, good = run(made, Says({}))
    left, four = (derive_seed(5, state) for state in ("'left'", "4"))
    assert texts_of(good.fields) == "ccaCBgaCBaCB"
    assert good.fields["anchor"] == [left] * 5 + [four] * 4 + [left] * 3
    assert bad.fields["anchor"] == [0, 0]
    check_batch(collate([good.fields, bad.fields]), gigpo.algorithm().reads)


class Nim:
    """Two players take one or two of five stones, as many as their turn has letters. Taking the last one wins."""

    def __init__(self) -> None:
        self.stones, self.player, self.closed = 5, 0, 0

    async def reset(self, example: Any, seed: int) -> Observation:
        return Observation(messages=[user("fffff")], player=0)

    async def step(self, text: str, calls: Any) -> Observation:
        self.stones, mover = max(0, self.stones - min(max(len(text), 1), 2)), self.player
        self.player = 1 - mover
        if self.stones == 0:
            return Observation(reward={mover: 1.0, 1 - mover: -1.0}, done=True, player=1 - mover)
        return Observation(messages=[user("f" * self.stones)], player=self.player)

    async def close(self) -> None:
        self.closed += 1


def test_players_have_conversations_rows_and_rewards_of_their_own() -> None:
    made, _ = workflow(lambda k: Nim(), players=2)
    rows = run(made, Says({"3/0": "kkb", "3/0.1": "kb", "3/0.2": "kkb", "3/1.1": "kkb"}))
    assert [texts_of(row.fields) for row in rows] == [
        "ccfffffaKKBffaKKB",  # wins with the third turn
        "ccfffaKB",
        "ccfffffaCBffaCB",
        "ccffffaKKBfaCB",
    ]
    assert [row.fields["reward"][-1] for row in rows] == [1.0, -1.0, -1.0, 1.0]
    assert [sum(row.fields["reward"]) for row in rows] == [row.result.reward for row in rows]
    assert [row.fields["role"] for row in rows] == [0, 1, 0, 1]
    assert [row.fields["episode"] for row in rows] == [12, 13, 14, 15]
    assert [row.fields["row"] for row in rows] == [12, 13, 14, 15]
    assert rows[1].fields["turn"] == [0] * 6 + [1] * 2, "turns of all players are counted together"
    assert rows[3].fields["turn"] == [0] * 7 + [1] * 3 + [3] * 4
    assert [row.metrics["environment/turns"] for row in rows] == [2, 1, 2, 2]
    messages = json.loads(rows[1].texts["messages"])
    assert messages == [user("cc"), user("fff"), dict(role="assistant", content="kb", reward=-1.0, player=1)]
    check_batch(collate([row.fields for row in rows]), rae.algorithm().reads)


def test_reward_functions_score_each_player() -> None:
    score, inputs = scores(*(result(short=float(k)) for k in range(2)))
    made, _ = workflow(lambda k: Nim(), players=2, samples_per_prompt=1, score=score)
    first, second = run(made, Says({"3/0.1": "kkb"}))
    assert [(item.row, item.completion) for item in inputs] == [("3/0/0", "c"), ("3/0/1", "c")]
    assert [first.result.reward, second.result.reward] == [-1.0, 2.0]


def test_reward_before_the_first_turn_of_a_player_belongs_to_this_turn() -> None:
    script = (Observation(), Observation(reward={0: 1.0, 1: 0.25}, player=1), Observation(reward=0.5, done=True))
    made, _ = workflow(lambda k: Scripted(script), players=2, samples_per_prompt=1)
    first, second = run(made, Says({}))
    assert [first.result.reward, second.result.reward] == [1.0, 0.75]
