"""Waiting groups in a Parquet file: every value as it was written, and clear errors for other files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from attrs import asdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purerl.batch import SCHEMA, Field, collate
from purerl.errors import BatchError, CheckpointError
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.types import Group, Trajectory
from purerl.store.groups import read_groups, write_groups
from purerl.system.digests import digest_of

SCALARS = {
    torch.bool: st.booleans(),
    torch.int64: st.integers(-(2**63), 2**63 - 1),
    torch.float32: st.floats(),
}
FAILURES = st.builds(
    Failure, function=st.text(max_size=5), kind=st.sampled_from(["raised", "timed out"]), traceback=st.text(max_size=9)
)
NUMBERS = st.dictionaries(st.text(max_size=5), st.floats() | st.integers(), max_size=3)
RESULTS = st.builds(
    RewardResult,
    components=NUMBERS,
    weighted_components=NUMBERS,
    failure=st.none() | FAILURES,
    by_function=st.dictionaries(st.text(max_size=3), NUMBERS, max_size=2),
)
# Half of a surrogate pair, which UTF-8 cannot encode, and characters of control.
TEXTS = st.text(st.characters(categories=None), max_size=8)


def _values(field: Field, num_tokens: int, num_choices: int) -> st.SearchStrategy[Any]:
    """Values of `field` for a row with this number of tokens."""
    scalars = SCALARS[field.dtype]
    choices = st.lists(scalars, min_size=num_choices, max_size=num_choices)
    shapes = {
        "rows": scalars,
        "rows k": choices,
        "rows time": st.lists(scalars, min_size=num_tokens, max_size=num_tokens),
        "rows time k": st.lists(choices, min_size=num_tokens, max_size=num_tokens),
    }
    return shapes[field.axes]


@st.composite
def _trajectories(draw: Any) -> Trajectory:
    """A trajectory with any fields of the schema, in any order."""
    shape = draw(st.tuples(st.integers(0, 4), st.integers(0, 3)))
    fields = draw(st.lists(st.sampled_from(SCHEMA), unique=True, max_size=6))
    texts = draw(st.dictionaries(TEXTS, TEXTS | st.none(), max_size=3))
    values = {field.name: draw(_values(field, *shape)) for field in fields}
    return Trajectory(values, texts, draw(RESULTS), draw(NUMBERS))


GROUPS = st.lists(
    st.builds(
        Group,
        draw=st.integers(0, 10**9),
        trajectories=st.lists(_trajectories(), max_size=3).map(tuple),
        failure=st.none() | FAILURES,
    ),
    max_size=3,
)


def _content(groups: list[Group]) -> str:
    """Everything in `groups` as text: the order of names, types of numbers, each bit of a float, -0.0 and NaN."""
    return repr([asdict(group) for group in groups])


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(groups=GROUPS)
def test_groups_are_read_as_they_were_written(groups: list[Group], tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    assert write_groups(path, groups) == digest_of(path)
    assert _content(read_groups(path)) == _content(groups)


def _row(length: int, **fields: Any) -> Trajectory:
    zeros = [0.0] * length
    values = {"tokens": [*range(length)], "action": [k > 0 for k in range(length)], "rollout_logp": zeros}
    return Trajectory({**values, "row": length, "group": 7, **fields}, {"prompt": "p", "completion": None})


def test_rows_are_not_padded_and_may_have_different_fields(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    failed = Failure("environment", "timed out", "no answer within 10 seconds")
    messages = json.dumps([{"role": "user", "content": "é\u202e"}])
    long = Trajectory(_row(5).fields, {"messages": messages}, metrics={"environment/turns": 3.0})
    groups = [
        Group(3, (_row(2), _row(3, turn=[0, 0, 1], teacher_topk_tokens=[[1, 2], [3, 4], [5, 6]]))),
        Group(4, (), failed),
        Group(5, ()),
        Group(9, (long,), failed),
    ]
    write_groups(path, groups)
    assert read_groups(path) == groups
    table = parquet.read_table(path)
    assert table["field/tokens"].to_pylist() == [[0, 1], [0, 1, 2], [0, 1, 2, 3, 4]]
    assert table["field/turn"].to_pylist() == [None, [0, 0, 1], None]
    write_groups(path, [])
    assert read_groups(path) == []


def test_log_probabilities_are_read_bit_for_bit_and_make_the_same_batch(tmp_path: Path) -> None:
    path, logp = tmp_path / "groups.parquet", [0.0, -0.1, math.nextafter(-1.0, 0), -5e-324, -0.0]
    row = _row(5, rollout_logp=logp, temperature=0.7)
    write_groups(path, [Group(0, (row,))])
    [group] = read_groups(path)
    restored = group.trajectories[0].fields
    assert [value.hex() for value in restored["rollout_logp"]] == [value.hex() for value in logp]
    first, second = collate([dict(row.fields)]), collate([dict(restored)])
    assert all(torch.equal(first[name], second[name]) for name in first.keys())


def test_arrays_tensors_and_tuples_are_read_as_lists(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    fields = {"tokens": torch.tensor([1, 2]), "action": (0, 1), "reward": np.array([0.0, 0.5]), "row": np.int64(3)}
    write_groups(path, [Group(0, (Trajectory(fields, metrics={"environment/turns": np.float32(2)}),))])
    [group] = read_groups(path)
    [row] = group.trajectories
    assert row.fields == {"tokens": [1, 2], "action": [False, True], "reward": [0.0, 0.5], "row": 3}
    assert row.metrics == {"environment/turns": 2.0}


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    with pytest.raises(BatchError, match=r"unknown field 'advantages'[\s\S]*did you mean 'advantage'"):
        write_groups(path, [Group(0, (_row(2, advantages=[0.0, 1.0]),))])
    with pytest.raises(BatchError, match=r"field 'reward' of a trajectory"):
        write_groups(path, [Group(0, (_row(2, reward=[0.0, "high"]),))])
    with pytest.raises(CheckpointError, match=r"cannot be saved[\s\S]*an object of type PosixPath"):
        write_groups(path, [Group(0, (Trajectory({}, {"prompt": Path()}),))])
    assert not path.exists()


def _replace(path: Path, metadata: dict[bytes, bytes]) -> None:
    parquet.write_table(parquet.read_table(path).replace_schema_metadata(metadata), path)


def test_damaged_files_and_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    write_groups(path, [Group(0, (_row(2), _row(3)))])
    content, table = path.read_bytes(), parquet.read_table(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"groups.parquet' cannot be loaded"):
        read_groups(path)
    with pytest.raises(CheckpointError, match=r"missing.parquet' cannot be loaded"):
        read_groups(tmp_path / "missing.parquet")
    parquet.write_table(table.replace_schema_metadata(None), path)
    with pytest.raises(CheckpointError, match="a Parquet file without groups"):
        read_groups(path)
    parquet.write_table(table.slice(1), path)
    with pytest.raises(CheckpointError, match="1 trajectories; its groups have 2"):
        read_groups(path)
    parquet.write_table(table.set_column(2, "result", pa.array(['{"other": 1}', "{}"])), path)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        read_groups(path)
    path.write_bytes(content)
    _replace(path, {b"purerl.groups": json.dumps({"version": 2, "groups": []}).encode()})
    with pytest.raises(CheckpointError, match="version 2 of its format; this one is 1"):
        read_groups(path)
