"""Checks of a workflow: a sample that fails is a missing sample, and the others are not affected."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from purerl.protocols import Request
from purerl.rewards.results import RewardResult
from purerl.rollouts.types import Draw, Trajectory
from purerl.testing.rollouts.case import FAILURE, Case, RolloutOutcome, assert_same_row, plain
from purerl.testing.rollouts.tokens import keys_of_row

__all__ = ["failed_request_is_a_missing_sample", "failed_reward_is_a_missing_sample", "missing_reward_is_not_counted"]

_MAX_FAILURES = 6


def failed_request_is_a_missing_sample(case: Case) -> None:
    """If the engine fails on a request, the rows of its sample have the failure, no reward and no counted token.

    Rows of other samples are the same as without the failure.
    """
    draw = case.draws[0]
    expected = case.alone(draw)
    for request in _some(expected.requests):
        outcome = case.run([draw], failing=[request.key])
        where = f"draw {draw.number}, whose request {request.key!r} has failed"
        failed = _check_failed_rows(draw, outcome, expected, where)
        for label in _independent_rows(case, draw, request, expected):
            assert label not in failed, f"{where}: got a failure in row {label} too, expected one of this sample only"


def _some(requests: Sequence[Request]) -> Sequence[Request]:
    """Some of all requests: the first ones and the last one."""
    return requests if len(requests) <= _MAX_FAILURES else [*requests[: _MAX_FAILURES - 1], requests[-1]]


def _check_failed_rows(draw: Draw, outcome: RolloutOutcome, expected: RolloutOutcome, where: str) -> set[int]:
    """The labels of the rows that have failed. The other ones must be the same as the `expected` ones."""
    group, labels = outcome.groups[draw.number], {row.fields["row"]: row for row in expected.rows(draw.number)}
    rows = {row.fields["row"]: row for row in group.trajectories}
    failed = labels.keys() - rows.keys() if group.failure else {n for n, row in rows.items() if row.result.failure}
    assert failed, f"{where}: got no row with a failure; a completion with finish 'error' is a missing sample"
    for label in failed & rows.keys():
        _check_missing(rows[label], f"{where}, row {label}")
    for label in rows.keys() - failed:
        assert label in labels, f"{where}: got a row {label} without a failure that is not there otherwise"
        assert_same_row(rows[label], labels[label], f"{where}, row {label}, which has not failed")
    return failed


def _check_missing(row: Trajectory, where: str) -> None:
    reward, counted = row.result.reward, sum(plain(row.fields["mask"]))
    assert reward is None, f"{where}: got the reward {reward}, expected none"
    assert not counted, f"{where}: got {counted} counted tokens, expected a mask that is false"
    assert not any(plain(row.fields["reward"])), f"{where}: got a reward in its fields, expected 0"


def _independent_rows(case: Case, draw: Draw, request: Request, outcome: RolloutOutcome) -> set[int]:
    """The labels of the rows of samples that do not depend on `request`.

    A sample starts with a request of the first ones. Rows belong together if they have a request or the label `episode`
    in common, or if `request` is not made before the first request of the row has finished, as in a game of several
    players. All rows may depend on a request that is in no row.
    """
    rows = {row.fields["row"]: row for row in outcome.rows(draw.number)}
    keys = {label: {*keys_of_row(row, outcome), *_episode(row)} for label, row in rows.items()}
    if not any(request.key in names for names in keys.values()):
        return set()
    related = _related({request.key}, [*keys.values()])
    starts = {key for key in outcome.first if key not in related and _is_made_without(case, draw, request.key, key)}
    return {label for label, names in keys.items() if not names & related and names & starts}


def _is_made_without(case: Case, draw: Draw, key: str, start: str) -> bool:
    """Whether the request `key` is made while the request `start` waits."""
    with case.running([draw]) as running:
        pending = running.generator.pending
        running.generator.held = start
        running.wait(lambda: key in running.generator.keys or [*pending] == [start], case.timeout)
        return key in running.generator.keys


def _episode(row: Trajectory) -> list[str]:
    return [f"episode {row.fields['episode']}"] if "episode" in row.fields else []


def _related(names: set[str], sets: Sequence[Collection[str]]) -> set[str]:
    """`names`, and those in sets that have one of them, and so on."""
    larger = names.union(*(members for members in sets if names.intersection(members)))
    return names if larger == names else _related(larger, sets)


def failed_reward_is_a_missing_sample(case: Case) -> None:
    """If a reward function fails, the rows that it scores have the failure, no reward and no counted token.

    Other rows are the same as without the failure.
    """
    draw = case.draws[0]
    expected = case.alone(draw)
    largest = 0
    for scored in expected.inputs[:_MAX_FAILURES]:
        outcome = case.run([draw], results={scored.row: FAILURE})
        where = f"draw {draw.number}, whose reward of {scored.row!r} has failed"
        failed = _check_failed_rows(draw, outcome, expected, where)
        largest = max(largest, len(expected.rows(draw.number)) - len(failed))
    if len(expected.inputs) > 1 and len(expected.rows(draw.number)) > 1:
        assert largest, f"draw {draw.number}: got a failure in all rows if one reward fails, expected it in one"


def missing_reward_is_not_counted(case: Case) -> None:
    """A row for which a reward function has returned None has no counted token; it is no failure."""
    draw = case.draws[0]
    for scored in case.alone(draw).inputs[:_MAX_FAILURES]:
        outcome = case.run([draw], results={scored.row: RewardResult()})
        where = f"draw {draw.number}, whose reward of {scored.row!r} is None"
        group = outcome.groups[draw.number]
        failure = group.failure and group.failure.traceback
        assert failure is None, f"{where}: got {failure}"
        uncounted = [row for row in group.trajectories if not any(plain(row.fields["mask"]))]
        assert uncounted, f"{where}: got counted tokens in all rows, expected a mask that is false"
        for row in uncounted:
            _check_missing(row, where)
