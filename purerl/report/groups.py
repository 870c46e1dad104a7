"""The completions of one prompt as the page shows them: rollouts of a step, and attempts of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from purerl.data.pieces import Decode, decode_tokens
from purerl.report.episodes import (
    common_start,
    conversations,
    episode_reward,
    split_episodes,
    with_short_labels,
    without_common_messages,
)
from purerl.report.numbers import round_number
from purerl.report.stored import read_evaluation, read_rollouts
from purerl.report.thumbnails import parse_images
from purerl.store.rollouts import token_columns, total_reward

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Candidate", "evaluation_groups", "rollout_groups"]

_MIN_BYTES_PER_TOKEN = 8  # of the id and the text of a token in JSON
_GROUP_FIELDS = ("group", "example", "prompt", "ground_truth")
_ROW_FIELDS = ("row", "episode", "role", "completion", "finish", "truncated", "temperature")
_Shown = dict[str, Any]


class Candidate(NamedTuple):
    """A group that may be shown: a lower bound of its size in bytes, and a function that makes it."""

    min_bytes: int
    make: Callable[[], dict[str, Any]]


def rollout_groups(path: Path, decode: Decode) -> Iterator[Candidate]:
    """The groups of a step, in the order of their labels, so that runs on the same data show the same prompts.

    Raises: DataError as `read_rollouts`.
    """
    table = read_rollouts(path)
    for rows in _split(table, table["group"].to_pylist()):
        min_bytes = _MIN_BYTES_PER_TOKEN * len(rows["tokens"].combine_chunks().flatten())
        yield Candidate(min_bytes, partial(_rollout_group, int(path.stem), rows, decode))


def evaluation_groups(path: Path) -> Iterator[Candidate]:
    """The problems of an evaluation, those of all data sets in turn. Raises: DataError as `read_evaluation`."""
    table = read_evaluation(path)
    for rows in _split(table, zip(table["index"].to_pylist(), table["data_set"].to_pylist(), strict=True)):
        yield Candidate(0, partial(_evaluation_group, int(path.stem), rows))


def _split(table: pa.Table, labels: Any) -> Iterator[pa.Table]:
    """The rows with each label, in the order of the labels."""
    members: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    for label in sorted(members):
        yield table.take(members[label])


# --- rollouts ----------------------------------------------------------------------------------------------------


def _rollout_group(step: int, table: pa.Table, decode: Decode) -> dict[str, Any]:
    """The rows of one prompt, episode by episode; the tokens that all of them start with are stored once."""
    episodes = split_episodes(with_short_labels(table.to_pylist()))
    rows = [row for episode in episodes for row in episode]
    ids = common_start([row["tokens"][: [*row["action"], True].index(True)] for row in rows])
    shown = [[_rollout(row, len(ids), decode) for row in episode] for episode in episodes]
    for episode, own in zip(episodes, shown, strict=True):
        for row in own if len(own) > 1 else ():
            row["episode_reward"] = round_number(episode_reward(episode))
    text = _with_images(decode_tokens(decode, ids), rows[0].get("image", ()))
    return {
        "step": step,
        **{name: rows[0][name] for name in _GROUP_FIELDS if name in rows[0]},
        "size": len(rows),
        "num_episodes": len(episodes),
        "mean_reward": _mean(list(map(episode_reward, episodes))),
        "prompt_tokens": {"tokens": ids, "text": text},
        **_common_images(rows),
        **_add_messages([episode[0] for episode in shown], [conversations(episode) for episode in episodes]),
        "rows": [row for episode in shown for row in episode],
    }


def _with_images(texts: Sequence[str], image: Sequence[int]) -> list[str]:
    """`texts` of tokens; instead of all tokens of an image, whose content ids are in `image`, one text.

    >>> _with_images(["a", "<pad>", "<pad>", "b"], [0, 5, 5, 0])
    ['a', '[image]', '', 'b']
    """
    if not any(image):
        return list(texts)
    before = [0, *image]
    texts_of_images = ["[image]" if here != last else "" for here, last in zip(image, before, strict=False)]
    return [shown if here else text for text, here, shown in zip(texts, image, texts_of_images, strict=False)]


def _common_images(rows: Sequence[Mapping[str, Any]]) -> _Shown:
    """The content ids of the images that all `rows` start with, if there are any."""
    ids = common_start([parse_images(row.get("images") or "[]") for row in rows])
    return {"images": ids} if ids else {}


def _add_messages(rows: Sequence[_Shown], messages: Sequence[list[_Shown]]) -> _Shown:
    """Add its `messages` to each of `rows` that has any; return those that all of them start with."""
    pairs = [(row, own) for row, own in zip(rows, messages, strict=True) if own]
    if not pairs:
        return {}
    common, others = without_common_messages([own for _, own in pairs])
    for (row, _), own in zip(pairs, others, strict=True):
        row["messages"] = own
    return {"messages": common}


def _mean(rewards: Sequence[float | None]) -> Any:
    numbers = [reward for reward in rewards if reward is not None]
    return round_number(sum(numbers) / len(numbers)) if numbers else None


def _rollout(row: Mapping[str, Any], num_prompt_tokens: int, decode: Decode) -> dict[str, Any]:
    """The fields of a row, its fields per token after the prompt, and under `extra` all other stored values."""
    columns = [name for name in token_columns(list(row)) if name != "image"]
    fields = {name: _compress(row[name][num_prompt_tokens:]) for name in columns}
    # Decoding starts one token earlier, so that a space at the start of the completion is kept.
    context = min(num_prompt_tokens, 1)
    text = decode_tokens(decode, row["tokens"][num_prompt_tokens - context :])[context:]
    text = _with_images(text, row.get("image", ())[num_prompt_tokens:])
    images = parse_images(row.get("images") or "[]")
    return {
        **{name: round_number(row[name]) for name in _ROW_FIELDS if name in row},
        "reward": round_number(total_reward(row)),
        "per_token": {**fields, "text": text},
        **({"images": images} if images else {}),
        "extra": _extra(row, known={"step", "messages", "images", *_GROUP_FIELDS, *_ROW_FIELDS, *columns}),
    }


def _extra(row: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The values of `row` that are not in a `known` column, except for lists and structures."""
    values = {name: value for name, value in row.items() if name not in known and not isinstance(value, list | dict)}
    return {name: round_number(value) if _is_json(value) else str(value) for name, value in values.items()}


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float)


def _compress(values: Sequence[Any]) -> Any:
    """The rounded values of all tokens, or a single value if they are all equal."""
    rounded = [round_number(value) for value in values]
    return rounded[0] if rounded and all(value == rounded[0] for value in rounded) else rounded


# --- evaluations -------------------------------------------------------------------------------------------------

_ATTEMPT_FIELDS = ("finish", "answer", "correct")
_KNOWN = {"data_set", "index", "attempt", "prompt", "completion", "tokens", "reward", *_ATTEMPT_FIELDS}
_KNOWN |= {"ground_truth", "messages", "images"}


def _evaluation_group(step: int, table: pa.Table) -> dict[str, Any]:
    """The attempts at one problem. The text of a completion is stored as if it were one token."""
    rows = table.to_pylist()
    first, shown = rows[0], [_attempt(row) for row in rows]
    return {
        "step": step,
        "data_set": first["data_set"],
        "example": first["index"],
        "prompt": first["prompt"],
        "ground_truth": first.get("ground_truth"),
        "size": len(rows),
        "mean_reward": _mean([row.get("reward") for row in rows]),
        "prompt_tokens": {"tokens": [], "text": [first["prompt"]]},
        **_common_images(rows),
        **_add_messages(shown, [conversations([row]) for row in rows]),
        "rows": shown,
    }


def _attempt(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in _ATTEMPT_FIELDS if name in row},
        "row": row.get("attempt"),
        "num_tokens": row.get("tokens"),
        "reward": round_number(row.get("reward")),
        "per_token": {"text": [row["completion"]], "action": True},
        "extra": _extra(row, known=_KNOWN),
    }
