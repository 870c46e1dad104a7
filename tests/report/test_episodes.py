"""Episodes of several turns in the data of the report: rows of one episode, and conversations with their turns."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.report.completions import select_completions
from purerl.report.episodes import conversations, episode_reward
from tests.report.sample_runs import make_conversation, make_episodes, make_evaluation, make_run

# An episode that a row per turn was made of, and one with both turns in one row.
EPISODES = [[["look it up"], ["3"]], [["ask", "4"]]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "run", steps=1)
    make_episodes(run, 1, EPISODES)
    return run


def test_episode_is_counted_once_and_its_rows_are_together(run: Path) -> None:
    path = run / "rollouts" / "000001.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.take([1, 2, 0]), path)
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert (group["size"], group["num_episodes"], group["mean_reward"]) == (3, 2, 1)
    assert [row["episode"] for row in group["rows"]] == [0, 0, 1]
    assert [(row["row"], row["reward"], row.get("episode_reward")) for row in group["rows"]] == [
        (1, 1, 1),
        (0, 0, 1),
        (2, 1, None),
    ]


def test_reward_of_an_episode_is_the_sum_over_its_rows() -> None:
    rows = [{"reward": [0.5, 0.25]}, {"reward": [1.0]}, {"reward": [0.0], "mask": [False]}]
    assert (episode_reward(rows[:2]), episode_reward(rows)) == (1.75, None)


def test_conversation_is_stored_once_with_the_turns_of_the_policy(run: Path) -> None:
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert group["messages"] == [{"role": "user", "content": "How warm?"}]
    first, second, third = group["rows"]
    assert "messages" not in second
    assert first["messages"] == [
        {
            "role": "assistant",
            "content": "look it up",
            "calls": [{"name": "weather", "arguments": '{"city": "Oslo 0"}'}],
            "reward": 0,
            "turn": 0,
        },
        {"role": "tool", "content": "0 degrees", "name": "weather"},
        {"role": "assistant", "content": "3", "reward": 1, "turn": 1},
    ]
    assert [message.get("turn") for message in third["messages"]] == [0, None, 1]
    assert "messages" not in first["extra"]
    assert (third["per_token"]["turn"][0], third["per_token"]["anchor"][-1]) == (0, 1), "labels of states are short"


def test_prompt_is_what_all_rows_start_with(run: Path) -> None:
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert group["prompt_tokens"]["text"] == [], "the second row of the first episode starts with another text"
    assert "".join(group["rows"][1]["per_token"]["text"]) == "0 degrees3"
    make_episodes(run, 1, EPISODES[1:])
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert "".join(group["prompt_tokens"]["text"]) == "How warm?"


def test_turns_of_the_prompt_and_of_other_players_are_not_turns_of_the_row() -> None:
    def turns(messages: list[dict], **fields: object) -> list[int | None]:
        row = {"messages": json.dumps(messages), "action": [False, True, False, True], **fields}
        return [message.get("turn") for message in conversations([row])]

    few_shot = [{"role": "assistant", "content": "an example"}]
    shown = make_conversation("a", "b")
    assert turns([*few_shot, *shown], turn=[0, 0, 1, 1]) == [None, None, 0, None, 1]
    assert turns([*few_shot, *shown[:2]]) == [None, None, 0], "without the field there is one turn"
    game = [{"role": "assistant", "content": str(k), "player": k % 2} for k in range(4)]
    assert turns(game, turn=[1, 1, 3, 3], role=1) == [None, 1, None, 3]
    assert turns(shown, turn=[0, 0, 4, 4], role=1) == [None, 0, None, 4], "a conversation of this player alone"
    assert conversations([{"action": [True]}]) == []


def test_rows_of_a_group_that_does_not_fit_keep_the_conversation_of_their_episode(run: Path) -> None:
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    size = len(json.dumps(group).encode())
    (group,) = select_completions(run, max_bytes=size - 10)["groups"]
    assert (len(group["rows"]), group["size"]) == (2, 3)
    assert group["rows"][0]["messages"][-1]["content"] == "3"


def test_evaluation_has_the_conversations_of_its_attempts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    make_evaluation(run, 1, messages=json.dumps(make_conversation("ask", "2", rewards=False)))
    group = select_completions(run, max_bytes=10**6)["groups"][-1]
    assert len(group["messages"]) == 4
    assert [row.get("messages") for row in group["rows"]] == [[], None]
    assert set(group["rows"][0]["extra"]) == {"reward/exact", "reward/short"}


@pytest.mark.parametrize("text", ["no JSON", "{}", '[{"content": "without a role"}]', "[1]"])
def test_file_with_a_conversation_that_cannot_be_read_is_left_out(run: Path, text: str) -> None:
    path = run / "rollouts" / "000001.parquet"
    table = parquet.read_table(path)
    texts = pa.array([None, text, None])
    parquet.write_table(table.set_column(table.column_names.index("messages"), "messages", texts), path)
    selection = select_completions(run, max_bytes=10**6)
    assert selection["groups"] == []
    [message] = selection["skipped"]
    assert message.startswith(f"column 'messages' of {str(path)!r}\n  got:  no conversation in row 1: ")
