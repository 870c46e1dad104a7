"""The rows of the batch that an episode of verifiers becomes: one for each branch of its traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from purerl.protocols import Completion
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.fields import RowTurn, token_fields
from purerl.rollouts.types import Draw, Trajectory

__all__ = ["Labels", "rows_of"]

Requests = Sequence[tuple[Sequence[int], Completion]]


@frozen
class Labels:
    """The labels of the rows of a sample.

    number       of its first row, and its first episode
    max_rows     maximum number of rows
    temperature  of sampling
    """

    number: int
    max_rows: int
    temperature: float


def rows_of(draw: Draw, episode: Any, requests: Requests, agents: Sequence[str], labels: Labels) -> list[Trajectory]:
    """The rows of all traces of `episode`, an Episode of verifiers.

    requests  the tokens of each request of the sample, with its completion
    agents    the names of all agents of the environment; their positions are the field `role` if there are several
    """
    known = {(*tokens, *completion.tokens): completion for tokens, completion in requests}
    trajectories = []
    for trace in (trace for trace in episode.traces if trace.agent.trainable):
        role = {"role": agents.index(trace.agent.name)} if len(agents) > 1 else {}
        fields = {"episode": labels.number + len(trajectories), **role, "truncated": bool(trace.is_truncated)}
        trajectories += _rows_of_trace(draw, episode, trace, known, fields)
    if not trajectories:
        trajectories = [_missing(draw, failure=_failure_of(episode, "no agent has sampled tokens"))]
    if len(trajectories) > labels.max_rows:
        message = f"{len(trajectories)} rows, but max_rows is {labels.max_rows}"
        trajectories = [_missing(draw, failure=Failure("verifiers", "failed", message + "\n", part="environment"))]
    fields = {"group": draw.number, "example": draw.index, "temperature": labels.temperature}
    first = {"episode": labels.number, **({"role": 0} if len(agents) > 1 else {})}  # of a row without a trace
    return [
        evolve(trajectory, fields={**first, **trajectory.fields, **fields, "row": row})
        for row, trajectory in enumerate(trajectories, start=labels.number)
    ]


def _missing(draw: Draw, failure: Failure) -> Trajectory:
    """The row of a sample without tokens: its prompt, masked out."""
    fields = {"truncated": False} | _token_fields(draw.prompt.tokens, [], None)
    return Trajectory(fields, _texts(draw, [], "", "error"), RewardResult(failure=failure))


def _rows_of_trace(
    draw: Draw, episode: Any, trace: Any, known: Mapping[tuple[int, ...], Completion], fields: Mapping[str, Any]
) -> list[Trajectory]:
    """A row for each trainable branch that has a turn of its own. The last one has the reward."""
    seen: set[int] = set()
    branches = [branch for branch in trace.branches if branch.trainable]
    turns = [_turns_of(branch, known, seen) for branch in branches]
    pairs = [pair for pair in zip(branches, turns, strict=True) if any(turn.is_action for turn in pair[1] or ())]
    failure = None if trace.ok and episode.ok else _failure_of(episode, "the trace did not end as planned", trace)
    if failure is None and any(found is None for found in turns):
        text = "a trace has sampled tokens that were not sampled here\n"
        failure = Failure("verifiers", "failed", text, "environment")
    if failure and not pairs:
        missing = _missing(draw, failure)
        return [evolve(missing, fields={**missing.fields, **fields})]
    rows = []
    for branch, found in pairs:
        is_last = branch is pairs[-1][0]
        result = RewardResult(failure=failure) if failure else _result(trace, is_last=is_last)
        finish = "error" if failure else "length" if trace.is_truncated else "stop"
        texts = _texts(draw, [node.message for node in branch.nodes], trace.last_reply, finish)
        rows.append(Trajectory({**fields, **_token_fields([], found, result.reward)}, texts, result))
    return rows


def _turns_of(branch: Any, known: Mapping[tuple[int, ...], Completion], seen: set[int]) -> list[RowTurn] | None:
    """The turns of `branch`, whose nodes are added to `seen`; None if a sampled one is no request with completion."""
    tokens: list[int] = []
    turns: list[RowTurn] = []
    start = 0
    for node in branch.nodes:
        tokens += node.token_ids
        if not any(node.mask):
            continue
        completion = known.get(tuple(tokens))
        if completion is None or len(completion.tokens) != sum(node.mask):
            return None
        end = len(tokens) - len(completion.tokens)
        turns.append(RowTurn(len(turns), tokens[start:end], completion, is_action=id(node) not in seen))
        seen.add(id(node))
        start = len(tokens)
    return turns


def _token_fields(prompt: Sequence[int], turns: Sequence[RowTurn], reward: float | None) -> dict[str, list[Any]]:
    """The fields with one value for each token, up to the last token that is sampled in this row."""
    last = max((number for number, turn in enumerate(turns) if turn.is_action), default=-1)
    shown = [evolve(turn, reward=(reward or 0.0) * (turn.number == last)) for turn in turns[: last + 1]]
    return token_fields(prompt, shown, has_reward=reward is not None)


def _result(trace: Any, *, is_last: bool) -> RewardResult:
    """The rewards of `trace` by name. In a row that is not its last one, all of them are 0."""
    found = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    if not is_last:
        return RewardResult(weighted_components=dict.fromkeys(found, 0.0))
    metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
    components = metrics | {name: float(reward.score) for name, reward in found.items()}
    weighted = {name: float(reward.value) for name, reward in found.items()}
    return RewardResult(components, weighted, by_function={"verifiers": components} if weighted else {})


def _failure_of(episode: Any, otherwise: str, trace: Any = None) -> Failure:
    """The last error of the trace, or of the episode."""
    errors = [*([] if trace is None else trace.errors), *episode.errors]
    errors = errors or [error for other in episode.traces for error in other.errors]
    if not errors:
        return Failure("verifiers", "failed", otherwise + "\n", part="environment")
    error = errors[-1]
    kind = "timed out" if episode.is_timeout or (trace is not None and trace.is_timeout) else "raised"
    text = error.traceback or f"{error.type}: {error.message}\n"
    return Failure("verifiers", kind, text, part="environment")


def _texts(draw: Draw, messages: Sequence[Any], completion: str, finish: str) -> dict[str, Any]:
    return {
        "prompt": draw.prompt.text,
        "completion": completion,
        "finish": finish,
        "ground_truth": find_ground_truth(draw.example),
        "messages": json.dumps([_message(message) for message in messages]),
    }


def _message(message: Any) -> dict[str, Any]:
    content, calls = message.content or [], getattr(message, "tool_calls", None) or []
    if not isinstance(message.content, str):
        content = "".join(getattr(part, "text", "") for part in content)
    calls = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in calls]
    return {"role": message.role, "content": content} | ({"tool_calls": calls} if calls else {})
