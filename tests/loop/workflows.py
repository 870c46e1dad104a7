"""Workflows of a user, and functions that make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from purerl.protocols import Request
from purerl.rewards.results import RewardResult
from purerl.rollouts.single_turn import SingleTurn
from purerl.rollouts.types import Draw, Trajectory
from purerl.seeds import derive_seed


@frozen
class TwoTurns:
    """Two turns, between which the model reads what it has written again. The reward of a turn is 1 for an even token.

    The state of a turn is its number. If there is a `log`, it says when the workflow was made and closed.
    """

    sampling: Any
    samples: int
    row_fields: Any
    log: str | None = None
    changes: Any = None

    async def __call__(self, draw: Draw, generate: Any) -> list[Trajectory]:
        return [await self._row(draw, k, generate) for k in range(self.samples)]

    async def _row(self, draw: Draw, k: int, generate: Any) -> Trajectory:
        tokens, turns = [*draw.prompt.tokens], []
        for turn in range(2):
            key, seed = f"{draw.key}/{k}.{turn}", derive_seed(*draw.seeds, k, turn)
            [completion] = await generate([Request(key, tokens, self.sampling, seed)])
            turns.append(completion)
            tokens = [*tokens, *completion.tokens, *completion.tokens]
        prompt = len(draw.prompt.tokens)
        fields: dict[str, Any] = {"tokens": [*draw.prompt.tokens], "action": [False] * prompt, "reward": [0.0] * prompt}
        fields |= {"rollout_logp": [0.0] * prompt, "version": [0] * prompt, "turn": [0] * prompt}
        for turn, completion in enumerate(turns):
            count, echo = len(completion.tokens), [] if turn else completion.tokens
            fields["tokens"] += [*completion.tokens, *echo]
            fields["action"] += [True] * count + [False] * len(echo)
            fields["reward"] += [0.0] * (count - 1) + [float(completion.tokens[0] % 2 == 0)] + [0.0] * len(echo)
            fields["rollout_logp"] += [*completion.logp, *[0.0] * len(echo)]
            fields["version"] += [*completion.version, *[0] * len(echo)]
            fields["turn"] += [turn] * (count + len(echo))
        fields |= {"mask": fields["action"], "anchor": fields["turn"], "truncated": False}
        fields |= {"row": draw.number * self.samples + k, "temperature": self.sampling.temperature}
        result = RewardResult({"even": sum(fields["reward"])}, {"even": sum(fields["reward"])})
        row = Trajectory({**self.row_fields(draw), **fields}, {"completion": "two turns", "finish": "stop"}, result)
        return evolve(row, **self.changes(row)) if self.changes else row

    async def close(self) -> None:
        _write(self.log, "closed")


def two_turns(sampling, samples, row_fields, seed, log=None):
    _write(log, json.dumps({"samples": samples, "temperature": sampling.temperature, "seed": seed}))
    return TwoTurns(sampling, samples, row_fields, log)


def single_turn(*, chat, sampling, samples, row_fields, score):
    """The default of a run without a workflow."""
    return SingleTurn(tokenizer=chat.tokenizer, sampling=sampling, samples=samples, score=score, row_fields=row_fields)


def with_optional_score(sampling, samples, row_fields, score=None):
    assert (score is None) == (sampling.max_tokens == 3)
    return TwoTurns(sampling, samples, row_fields)


def raises(sampling):
    return sampling["temperature"]


def returns_nothing(**arguments):
    return None


def wrong_rows(what, sampling, samples, row_fields):
    changes = {
        "no logp": lambda row: {"fields": {k: v for k, v in row.fields.items() if k != "rollout_logp"}},
        "no anchor": lambda row: {"fields": {k: v for k, v in row.fields.items() if k != "anchor"}},
        "unknown field": lambda row: {"fields": {**row.fields, "anchors": row.fields["anchor"]}},
        "length": lambda row: {"fields": {**row.fields, "version": [0]}},
        "group": lambda row: {"fields": {**row.fields, "group": row.fields["row"]}},
        "row": lambda row: {"fields": {**row.fields, "row": 0}},
        "mask": lambda row: {"fields": {**row.fields, "mask": [True] * len(row.fields["mask"])}},
        "result": lambda row: {"result": RewardResult()},
        "text": lambda row: {"texts": {}},
    }
    return TwoTurns(sampling, samples, row_fields, changes=changes[what])


def no_list(**arguments):
    async def workflow(draw, generate):
        return None

    return workflow


def fails_sometimes(sampling, samples, row_fields):
    inner = TwoTurns(sampling, samples, row_fields)

    async def workflow(draw, generate):
        if draw.number == 1:
            raise ValueError("no luck")
        return await inner(draw, generate)

    return workflow


def _write(log: str | None, line: str) -> None:
    if log:
        with Path(log).open("a") as file:
            file.write(line + "\n")
