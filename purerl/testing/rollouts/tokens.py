"""Checks of a workflow: sampled tokens appear in its rows as they were sampled."""

from __future__ import annotations

from collections.abc import Mapping

from purerl.protocols import Request
from purerl.rollouts.types import Trajectory
from purerl.testing.rollouts.case import Case, RolloutOutcome, plain

__all__ = ["every_sampled_token_is_in_a_row", "keys_of_row", "sampled_tokens_are_unchanged"]


def sampled_tokens_are_unchanged(case: Case) -> None:
    """The action tokens of a row are completions, each after the tokens that were its request.

    Each token has the log-probability and the version with which it was sampled.
    """
    for draw in case.draws:
        outcome = case.alone(draw)
        for row in outcome.rows(draw.number):
            assert keys_of_row(row, outcome), f"a row of draw {draw.number}: got no sampled tokens"


def every_sampled_token_is_in_a_row(case: Case) -> None:
    """Each request that was sampled is in a row. Exempt a workflow that samples what is not trained."""
    for draw in case.draws:
        outcome = case.alone(draw)
        used = {key for row in outcome.rows(draw.number) for key in keys_of_row(row, outcome)}
        for request in outcome.requests:
            is_used = request.key in used or request.sampling.temperature == 0
            assert is_used, f"request {request.key!r}: got its tokens in no row, expected them in one"


def keys_of_row(row: Trajectory, outcome: RolloutOutcome) -> list[str]:
    """The keys of the requests whose completions are the action tokens of `row`."""
    fields = {name: plain(row.fields[name]) for name in ("tokens", "action", "rollout_logp", "version")}
    keys: list[str] = []
    position = 0
    while any(fields["action"][position:]):
        position += fields["action"][position:].index(True)
        before = fields["tokens"][:position]
        requests = [r for r in outcome.requests if r.key in outcome.completions and [*r.tokens] == before]
        end = f"{len(before)} tokens that end with {before[-5:]}"
        assert requests, (
            f"an action token at position {position}, after {end}: got no request with the tokens before it; "
            f"the tokens of a request, and what was sampled, must be the row"
        )
        differences = {request.key: _difference(fields, position, outcome, request) for request in requests}
        key = min(differences, key=lambda key: (differences[key][0], differences[key][1]))
        assert not differences[key][0], f"completion {key!r} in a row: {differences[key][1]}"
        keys.append(key)
        position += len(outcome.completions[key].tokens)
    return keys


def _difference(
    fields: Mapping[str, list], position: int, outcome: RolloutOutcome, request: Request
) -> tuple[int, str]:
    """The number of fields that differ from a completion at `position`, and the first one that does."""
    completion = outcome.completions[request.key]
    columns = {
        "tokens": [*completion.tokens],
        "action": [True] * len(completion.tokens),
        "rollout_logp": [*completion.logp],
        "version": [*completion.version],
    }
    end = position + len(completion.tokens)
    got = {name: fields[name][position:end] for name in columns}
    wrong = [name for name, values in columns.items() if got[name] != values]
    text = f"field {wrong[0]!r}: got {got[wrong[0]]}, expected {columns[wrong[0]]}" if wrong else ""
    return len(wrong) if completion.tokens else len(columns), text
