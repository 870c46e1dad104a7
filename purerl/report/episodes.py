"""Episodes of several turns and rows: their rewards, and their conversations as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from purerl.monitoring.console.messages import Message, parse_messages
from purerl.report.numbers import round_number
from purerl.store.rollouts import total_reward

__all__ = [
    "common_start",
    "conversations",
    "episode_reward",
    "split_episodes",
    "with_short_labels",
    "without_common_messages",
]

Row = Mapping[str, Any]


def split_episodes(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each episode, in the order of their first rows. A row without the field `episode` is one itself.

    >>> split_episodes([{"episode": 4, "row": 8}, {"episode": 2, "row": 4}, {"episode": 4, "row": 9}])
    [[{'episode': 4, 'row': 8}, {'episode': 4, 'row': 9}], [{'episode': 2, 'row': 4}]]
    """
    episodes: dict[Any, list[Row]] = {}
    for index, row in enumerate(rows):
        label = row.get("episode")
        episodes.setdefault(("row", index) if label is None else label, []).append(row)
    return list(episodes.values())


def episode_reward(rows: Sequence[Row]) -> float | None:
    """The sum of the rewards of an episode's rows; None if one of them has no reward."""
    rewards = [reward for row in rows if (reward := total_reward(row)) is not None]
    return sum(rewards) if len(rewards) == len(rows) else None


def with_short_labels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """`rows`, with the states in the field `anchor` numbered from 0: their labels have 64 bits, more than JavaScript's.

    >>> with_short_labels([{"anchor": [2**60, 2**60]}, {"anchor": [-7, 2**60]}, {}])
    [{'anchor': [0, 0]}, {'anchor': [1, 0]}, {}]
    """
    labels = dict.fromkeys(label for row in rows for label in row.get("anchor", ()))
    numbers = {label: number for number, label in enumerate(labels)}
    return [{**row, "anchor": [numbers[k] for k in row["anchor"]]} if "anchor" in row else dict(row) for row in rows]


def conversations(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The messages of the episode that `rows` belong to; empty if it has no conversation.

    A message that is a turn of these rows has its `turn`: the number that its tokens have in the field `turn`.
    """
    text = next((row["messages"] for row in rows if row.get("messages") is not None), None)
    if text is None:
        return []
    messages = parse_messages(text)
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    player = rows[0].get("role")
    own = [index for index in turns if player is not None and messages[index].player == player] or turns
    # The conversation may start with turns of the prompt, which have no sampled tokens.
    numbers = dict(zip(reversed(own), reversed(_sampled_turns(rows)), strict=False))
    return [_as_json(message, numbers.get(index)) for index, message in enumerate(messages)]


def _sampled_turns(rows: Sequence[Row]) -> list[int]:
    """The numbers of the turns in which the policy has sampled tokens, in order. Without `turn` there is one, 0."""
    numbers: set[int] = set()
    for row in rows:
        action = row.get("action") or ()
        turns = row.get("turn") or [0] * len(action)
        numbers |= {turn for turn, is_action in zip(turns, action, strict=True) if is_action}
    return sorted(numbers)


def _as_json(message: Message, turn: int | None) -> dict[str, Any]:
    values = {
        **message._asdict(),
        "calls": [_without_empty(call._asdict()) for call in message.calls],
        "reward": round_number(message.reward),
        "turn": turn,
    }
    return _without_empty(values)


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value not in ([], ())}


def without_common_messages(
    episodes: Sequence[list[dict[str, Any]]],
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The messages that all conversations start with, such as the prompt, and the other messages of each of them."""
    common = common_start(episodes)
    return common, [messages[len(common) :] for messages in episodes]


def common_start(sequences: Sequence[Sequence[Any]]) -> list[Any]:
    """The items that all `sequences` start with.

    >>> common_start([[1, 2, 3], [1, 2, 4], [1, 2]])
    [1, 2]
    """
    columns = zip(*sequences, strict=False)
    return [column[0] for column in takewhile(lambda column: all(item == column[0] for item in column), columns)]
