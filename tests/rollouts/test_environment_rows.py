"""Episodes of several rows, with states, and of several players."""

from __future__ import annotations

import json
from typing import Any

from purerl.algos import gigpo, rae
from purerl.batch import check_batch, collate
from purerl.envs.protocol import Observation
from purerl.protocols import Completion
from purerl.rollouts.episode_rows import results_of_episodes
from purerl.seeds import derive_seed
from tests.rollouts.episodes import (
    TWO_TURNS,
    Broken,
    Says,
    Scripted,
    result,
    run,
    scores,
    texts_of,
    tokens_of,
    user,
    workflow,
)

# --- rerender ----------------------------------------------------------------------------------------------------

THREE_TURNS = (*TWO_TURNS[:2], Observation(messages=[user("jj")], reward=0.25, components={"x": 1}), TWO_TURNS[2])


def test_reward_functions_get_the_tokens_of_the_last_turn_if_there_is_no_room_for_the_next_row() -> None:
    score, inputs = scores(result(correct=1.0))
    made, _ = workflow(
        lambda k: Scripted(THREE_TURNS),
        history="rerender",
        samples_per_prompt=1,
        score=score,
        max_sequence_length=8,
    )
    rows = run(made, Says({"3/0": "khb"}))
    assert [texts_of(row.fields) for row in rows] == ["ccfaKHB"]
    assert rows[0].fields["truncated"]
    assert (inputs[0].completion, [*inputs[0].tokens]) == ("kh", tokens_of("khb"))


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
