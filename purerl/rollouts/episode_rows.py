"""The rows of the batch that an episode becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from purerl.data.row_images import as_json, images_of
from purerl.envs.protocol import ToolCall
from purerl.images import hex_id
from purerl.rewards.components import added
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.results import RewardResult, added_metrics
from purerl.rollouts.episode import Episode, Player, Row
from purerl.rollouts.fields import RowTurn, token_fields
from purerl.rollouts.types import Trajectory
from purerl.seeds import derive_seed
from purerl.system.strict_json import to_json

__all__ = ["ENVIRONMENT", "RowLayout", "episodes_of", "make_trajectories", "results_of_episodes", "samples_of"]

ENVIRONMENT = "environment"
"""The reward component that consists of the rewards of the environment."""


@frozen
class RowLayout:
    """The settings that all rows of a workflow share.

    samples      samples of each draw
    players      players of each episode
    rows         greatest number of rows that one sample can make
    temperature  of sampling
    has_states   each turn has a state
    has_scores   observations may have a score of the state
    gives_rewards  the environment gives rewards, though perhaps not in each episode
    """

    samples: int
    players: int
    rows: int
    temperature: float
    has_states: bool
    has_scores: bool = False
    gives_rewards: bool = True


def make_trajectories(
    episode: Episode, results: Mapping[int, RewardResult], layout: RowLayout, fields: Mapping[str, Any]
) -> list[Trajectory]:
    """The rows of all players that have taken a turn, player by player; if there are none, one that is a prompt.

    `results` are those of the reward functions, by player; without reward functions it is empty. `fields` are added to
    each row.
    """
    players = [player for _, player in sorted(episode.players.items()) if player.turns]
    trajectories = [
        trajectory
        for player in players or [episode.player(0)]
        for trajectory in _rows_of(episode, player, results.get(player.number), layout)
    ]
    first = (episode.draw.number * layout.samples + episode.sample) * layout.rows
    return [
        evolve(trajectory, fields={**trajectory.fields, **fields, "row": row})
        for row, trajectory in enumerate(trajectories, start=first)
    ]


def _rows_of(episode: Episode, player: Player, scored: RewardResult | None, layout: RowLayout) -> list[Trajectory]:
    prompt = player.rows[0] if player.rows else Row(episode.draw.prompt.tokens, prompt_image=episode.image)
    rows = [row for row in player.rows if row.turns] or [prompt]
    scores = [*([_without_values(scored)] * (len(rows) - 1)), scored]
    results = [_result(episode, row, score, layout) for row, score in zip(rows, scores, strict=True)]
    fields = _row_fields(episode, player, layout)
    texts = _texts(episode, player, layout)
    outcomes = [0.0] * (len(rows) - 1) + [scored.reward or 0.0 if scored else 0.0]
    metrics: list[dict[str, float]] = [{} for _ in rows]
    if episode.failure is None:
        metrics[-1] = _metrics(episode, player, rows)
    return [
        Trajectory({**fields, **_token_fields(episode, row, result, outcome, layout)}, texts, result, numbers)
        for row, result, outcome, numbers in zip(rows, results, outcomes, metrics, strict=True)
    ]


def _row_fields(episode: Episode, player: Player, layout: RowLayout) -> dict[str, Any]:
    draw = episode.draw
    sample = draw.number * layout.samples + episode.sample
    return {
        "group": draw.number,
        "example": draw.index,
        "temperature": layout.temperature,
        "truncated": episode.truncated,
        "episode": sample * layout.players + player.number,
        **({"role": player.number} if layout.players > 1 else {}),
    }


def _token_fields(
    episode: Episode, row: Row, result: RewardResult, outcome: float, layout: RowLayout
) -> dict[str, Any]:
    """The fields with one value for each token. `outcome` is added to the reward of the last turn."""
    outcomes = [0.0] * (len(row.turns) - 1) + [outcome]
    turns = [
        RowTurn(turn.number, turn.added, turn.completion, (turn.reward or 0.0) + extra, image=turn.image)
        for turn, extra in zip(row.turns, outcomes, strict=False)
    ]
    anchor = {"anchor": _anchors(episode, row)} if layout.has_states else {}
    progress = {"progress": _progress(row)} if layout.has_scores else {}
    fields = token_fields(row.prompt, turns, has_reward=result.reward is not None, image=row.prompt_image)
    return fields | anchor | progress


def _progress(row: Row) -> list[float]:
    """The change of the score of the state in each turn, at its last token, and 0 at all others."""
    numbers = [0.0] * len(row.prompt)
    for turn in row.turns:
        numbers += [0.0] * (len(turn.added) + len(turn.completion.tokens) - 1) + [turn.progress]
    return numbers


def _anchors(episode: Episode, row: Row) -> list[int]:
    """The label of the state in which its turn started, for each token. The prompt has that of the first turn."""
    labels = [derive_seed(episode.draw.index, repr(turn.state)) for turn in row.turns]
    turns = zip(labels, row.turns, strict=True)
    anchors = [label for label, turn in turns for _ in (*turn.added, *turn.completion.tokens)]
    return (labels or [0])[:1] * len(row.prompt) + anchors


def _result(episode: Episode, row: Row, scored: RewardResult | None, layout: RowLayout) -> RewardResult:
    """The reward of one row: what the environment gave for its turns, and the reward functions' result `scored`."""
    if episode.failure:
        return RewardResult(failure=episode.failure)
    if scored and scored.reward is None and not scored.is_inapplicable:
        return scored
    gives_rewards = scored is None or any(turn.reward is not None for turn in episode.turns)
    gives_rewards = gives_rewards or (layout.gives_rewards and scored.is_inapplicable)
    total = {ENVIRONMENT: sum(turn.reward or 0.0 for turn in row.turns)} if gives_rewards else {}
    components = added(*(turn.components for turn in row.turns), total)
    scored = scored or RewardResult()
    return RewardResult(
        components=added(components, scored.components),
        weighted_components=added(total, scored.weighted_components),
        by_function={**({ENVIRONMENT: components} if components else {}), **scored.by_function},
        totals=scored.totals,
        metrics=scored.metrics,
        columns=scored.columns,
    )


def _without_values(scored: RewardResult | None) -> RewardResult | None:
    """The part of `scored` in a row that is not the last one of its episode: every weighted component is 0."""
    if scored is None or scored.reward is None:
        return scored
    return RewardResult(weighted_components=dict.fromkeys(scored.weighted_components, 0.0))


def episodes_of(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The rows of each episode, in their order. A row without the field `episode` is one."""
    by_episode: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_episode.setdefault(trajectory.fields.get("episode", trajectory.fields["row"]), []).append(trajectory)
    return [*by_episode.values()]


def samples_of(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The rows of each sample, in their order. A sample of a game has an episode for each player."""
    by_sample: dict[int, list[Trajectory]] = {}
    for episode in episodes_of(trajectories):
        first = episode[0].fields
        by_sample.setdefault(first.get("episode", first["row"]) - first.get("role", 0), []).extend(episode)
    return [*by_sample.values()]


def results_of_episodes(trajectories: Sequence[Trajectory]) -> list[RewardResult]:
    """One result for each episode: the components of all its rows added up."""
    return [_sum([row.result for row in rows]) for rows in episodes_of(trajectories)]


def _sum(results: Sequence[RewardResult]) -> RewardResult:
    if len(results) == 1:
        return results[0]
    totals = added(*(result.totals for result in results))
    without_reward = [result for result in results if result.reward is None]
    if without_reward:
        return evolve(without_reward[0], totals=totals)
    functions = dict.fromkeys(name for result in results for name in result.by_function)
    return RewardResult(
        components=added(*(result.components for result in results)),
        weighted_components=added(*(result.weighted_components for result in results)),
        by_function={name: added(*(result.by_function.get(name, {}) for result in results)) for name in functions},
        totals=totals,
        metrics=added_metrics(result.metrics for result in results),
        columns={name: text for result in results for name, text in result.columns.items()},
    )


def _metrics(episode: Episode, player: Player, rows: Sequence[Row]) -> dict[str, float]:
    calls = [call for turn in player.turns for call in turn.calls]
    return {
        "environment/turns": float(len(player.turns)),
        "environment/tool_calls": float(len(calls)),
        "environment/tool_errors": float(sum(call.error is not None for call in calls)),
        "environment/observation_tokens": float(sum(len(turn.added) for turn in player.turns)),
        "environment/rows": float(len(rows)),
        "environment/truncated": float(episode.truncated),
        "environment/truncated_turn": float(episode.last_player.turns[-1].completion.finish == "length"),
    }


def _texts(episode: Episode, player: Player, layout: RowLayout) -> dict[str, Any]:
    finish = "error" if episode.failure else "length" if episode.truncated else "stop"
    spoken = [turn for _, turn in player.conversation if turn]
    return {
        "prompt": player.prompt_text or episode.draw.prompt.text,
        "completion": spoken[-1].text if spoken else "",
        "finish": finish,
        "ground_truth": find_ground_truth(episode.draw.example),
        "messages": to_json(_messages(player, layout), default=str),
        **({"images": to_json([hex_id(image.id) for image in images_of(player.messages)])} if episode.image else {}),
    }


def _messages(player: Player, layout: RowLayout) -> list[dict[str, Any]]:
    """The conversation of `player`: turns have their reward, their tool calls and, in games, the player."""
    messages = [as_json(message) for message in player.prompt]
    for message, turn in player.conversation:
        entry = as_json(message)
        if turn is not None:
            entry.pop("tool_calls", None)
            entry |= {"tool_calls": [_call(call) for call in turn.calls]} if turn.calls else {}
            entry |= {"reward": turn.reward} if turn.reward is not None else {}
            entry |= {"player": player.number} if layout.players > 1 else {}
        messages.append(entry)
    return messages


def _call(call: ToolCall) -> dict[str, Any]:
    error = {} if call.error is None else {"error": call.error}
    return {"name": call.name, "arguments": dict(call.arguments), "id": call.id, **error}
