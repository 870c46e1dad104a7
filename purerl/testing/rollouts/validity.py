"""Checks of a workflow: its rows can be trained, stored and logged."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from purerl.batch import check_batch, collate
from purerl.errors import EngineError, PurerlError
from purerl.rollouts.types import Trajectory
from purerl.store.groups import read_groups, write_groups
from purerl.system.messages import decode, encode
from purerl.testing.rollouts.case import Case, assert_same, plain

__all__ = [
    "every_draw_gives_rows",
    "groups_can_be_stored",
    "labels_are_those_of_the_draw",
    "rewards_are_those_of_the_result",
    "rows_follow_the_schema",
    "texts_and_metrics_can_be_logged",
]

_READ = ("example", "reward", "rollout_logp", "version", "temperature", "truncated")
_TEXTS = ("prompt", "completion", "finish")


def every_draw_gives_rows(case: Case) -> None:
    """A draw gives one group with at least one row. Without a failure of the engine or of a reward, there is none."""
    for draw in case.draws:
        group = case.alone(draw).groups[draw.number]
        failure = group.failure and group.failure.traceback
        assert failure is None, f"draw {draw.number}: got {failure}"
        assert group.trajectories, f"draw {draw.number}: got no rows, expected at least one"
        for row in group.trajectories:
            assert isinstance(row, Trajectory), f"draw {draw.number}: got {row!r:.200}, expected trajectories"
            failure = row.result.failure and row.result.failure.traceback
            assert failure is None, f"draw {draw.number}: got a row with the failure {failure}"


def _rows(case: Case) -> list[Trajectory]:
    return [*chain.from_iterable(case.alone(draw).rows(draw.number) for draw in case.draws)]


def rows_follow_the_schema(case: Case) -> None:
    """The rows of all draws make one batch that has the fields of a sampled row, and finite numbers."""
    try:
        batch = check_batch(collate([dict(row.fields) for row in _rows(case)]), _READ)
    except (PurerlError, ValueError, TypeError, KeyError) as error:
        raise AssertionError(f"got {type(error).__name__}: {error}") from error
    assert "mask" in _rows(case)[0].fields, "field 'mask': got none; a row whose sample is missing needs it"
    for name, value in batch.items():
        if value.is_floating_point():
            assert value.isfinite().all(), f"field {name!r}: got {value.tolist()!r:.300}, expected finite numbers"
    assert (batch["temperature"] > 0).all(), "field 'temperature': got 0; rows that are trained have another one"


def labels_are_those_of_the_draw(case: Case) -> None:
    """No two rows have the same label, and each row has the number and the index of its draw."""
    label, count = Counter(int(row.fields["row"]) for row in _rows(case)).most_common(1)[0]
    assert count == 1, f"field 'row': got {label} in {count} rows; derive it from draw.number and the sample"
    episodes: dict[int, int] = {}
    for draw in case.draws:
        for row in case.alone(draw).rows(draw.number):
            for name, want in (("group", draw.number), ("example", draw.index)):
                got = row.fields[name]
                assert got == want, f"field {name!r} of a row of draw {draw.number}: got {got}, expected {want}"
            episode = int(row.fields.get("episode", 0))
            other = episodes.setdefault(episode, draw.number) if "episode" in row.fields else draw.number
            assert other == draw.number, f"field 'episode': got {episode} in the draws {other} and {draw.number}"


def rewards_are_those_of_the_result(case: Case) -> None:
    """The field `reward` adds up to the reward of the result. Without a reward nothing is counted."""
    for row in _rows(case):
        reward, total = row.result.reward, float(sum(plain(row.fields["reward"])))
        is_counted = any(plain(row.fields["mask"]))
        if reward is None:
            assert not is_counted, "a row without a reward: got counted tokens, expected a mask that is false"
        elif "greedy_score" not in row.fields:
            difference = abs(total - reward)
            assert difference <= 1e-5 * max(1.0, abs(reward)), (
                f"the sum of the field 'reward': got {total}, expected {reward}, the reward of the result"
            )


def texts_and_metrics_can_be_logged(case: Case) -> None:
    """The texts are strings, the prompt, the completion and its end among them. Metrics are finite numbers."""
    for row in _rows(case):
        for name in {*_TEXTS, *row.texts}:
            text, optional = row.texts.get(name), name not in _TEXTS
            is_valid = isinstance(text, str) or (optional and text is None)
            assert is_valid, f"text {name!r}: got {text!r:.200}, expected a string"
        for name, value in row.metrics.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            assert is_number, f"metric {name!r}: got {value!r}, expected a finite number"


def groups_can_be_stored(case: Case) -> None:
    """A group that waits when a checkpoint is written is the same after it was read, and other ranks can get it."""
    groups = [case.alone(draw).groups[draw.number] for draw in case.draws]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "groups.parquet"
        try:
            write_groups(path, groups)
            stored = read_groups(path)
        except (PurerlError, ValueError, TypeError) as error:
            raise AssertionError(f"a checkpoint: got {type(error).__name__}: {error}") from error
    for actual, expected in zip(stored, groups, strict=True):
        assert_same(actual, expected, "after it was stored")
        try:
            received = decode(encode(expected))
        except EngineError as error:
            raise AssertionError(f"a group cannot be sent to other ranks: got {error}") from error
        assert_same(received, expected, "after it was sent")
