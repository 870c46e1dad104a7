"""Batches on which algorithms are compared: generated, from a run, or from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from purerl.algos.algebra import Algorithm
from purerl.batch import FIELDS, STRUCTURE, check_batch, with_fields
from purerl.data.files import read_table
from purerl.data.nested import decoded, shaped
from purerl.errors import InputError
from purerl.explain.comparison.changes import fields_to_compare
from purerl.store.rollouts import to_batch
from purerl.store.step_files import step_path, stored_steps
from purerl.testing.batches import example_batch
from purerl.types import TensorDict

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["example_completions", "read_completions", "stored_completions"]


def example_completions(*algorithms: Algorithm, prompts: int = 16, samples: int = 8, seed: int = 0) -> TensorDict:
    """A batch as in the middle of a run, with the fields of `algorithms`: rewards 0 or 1, a policy that has moved.

    Rows have 8 to 64 tokens. The log-ratio of a token has a standard deviation of 0.1 nats between the current and the
    old policy, 0.02 between the old policy and the generator, and 0.3 between the old policy and the reference.

    If an algorithm reads pairs, there are as many rows, with two for each prompt. Only the chosen one has the reward 1.
    """
    names = (*fields_to_compare(*algorithms), "logp")
    if "chosen" in names:
        prompts, samples = prompts * samples // 2, 2
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, 65, (prompts * samples,), generator=rng).tolist()
    layout = tuple((row // samples, ".." + "a" * length) for row, length in enumerate(lengths))
    batch = example_batch(dict.fromkeys(names), layout, seed=seed)
    old = -torch.rand(batch["mask"].shape, generator=rng, dtype=torch.float64).add(0.02).log().neg()

    def moved(scale: float) -> Tensor:
        return (old + scale * torch.randn(old.shape, generator=rng, dtype=torch.float64)).clamp(max=-1e-4)

    scales: Mapping[str, float] = {"old_logp": 0.0, "logp": 0.1, "rollout_logp": 0.02, "ref_logp": 0.3}
    fields: dict[str, Any] = {name: moved(scale) for name, scale in scales.items() if name in batch.keys()}
    difficulty = torch.rand(prompts, generator=rng).repeat_interleave(samples)
    correct = torch.rand(prompts * samples, generator=rng) < difficulty
    correct = (batch["chosen"] if "chosen" in names else correct).double()
    last = batch["action"] & (batch["action"].flip(-1).cumsum(-1).flip(-1) == 1)
    rewards = {"reward": correct.unsqueeze(-1) * last, "score": correct}
    return with_fields(batch, **fields, **{name: value for name, value in rewards.items() if name in batch.keys()})


def stored_completions(run: Path, step: int | None, *algorithms: Algorithm) -> TensorDict:
    """The rollouts of the run in the directory `run` at `step`, the last one if it is None, as `read_completions`.

    Raises: InputError if there are no rollouts of this step, or if they lack a field that `algorithms` read.
    """
    steps = stored_steps(run / "rollouts")
    if not steps or step not in (None, *steps):
        got = f"steps {steps[0]} to {steps[-1]}" if steps else "no rollouts"
        need = f"step {step}" if steps else "the directory of a run"
        raise InputError(f"rollouts of {str(run)!r}", got=got, need=need)
    return read_completions(step_path(run / "rollouts", steps[-1] if step is None else step), *algorithms)


def read_completions(path: Path, *algorithms: Algorithm) -> TensorDict:
    """The batch in the file at `path`, in float64: rollouts of a run, or any file with fields of the batch as columns.

    A file is Parquet or JSON Lines, as for training data. A row is a row of the batch, and a column of tokens has a
    list. Other columns are ignored.

    The current policy is the one at the start of the update, unless there is a column `logp`: `logp` is `old_logp`, or
    `rollout_logp` without it. In the same way `value` is `old_value`, and `entropy` is `old_entropy`. Fields that an
    algorithm has written are ignored.

    Raises: DataError if there is no such file or it cannot be read; InputError if columns that `algorithms` read are
    missing or have another type; BatchError if the values do not follow the schema.
    """
    table = _without_json(read_table(path))
    needed = fields_to_compare(*algorithms)
    _check_columns(path, table, needed)
    batch = to_batch(table)
    batch = with_fields(batch, **{name: value.double() for name, value in batch.items() if value.is_floating_point()})
    batch = batch.exclude(*(name for name in batch.keys() if FIELDS[name].writer in ("estimator", "prepare")))
    names = [name for name in ("logp", *needed) if name not in batch.keys()]
    batch = with_fields(batch, **{name: batch[_source(name, batch.keys())] for name in names})
    return check_batch(batch, needed)


def _without_json(table: pa.Table) -> pa.Table:
    """`table` with the columns of JSON that have a type: integers beside floats become floats."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if (shape := shaped(field)) != field.type:
            column = pa.array(decoded(table.column(index), field.name), shape)
            table = table.set_column(index, field.name, column)
    return table


_ALTERNATIVES = {
    "logp": ("old_logp", "rollout_logp"),
    "old_logp": ("rollout_logp",),
    "value": ("old_value",),
    "entropy": ("old_entropy",),
    "mask": ("action",),
}
"""Fields that have the value of the missing one, if the policy is that at the start of the update."""


def _source(name: str, columns: Any) -> str | None:
    """The column that has the values of the field `name`; None if there is none."""
    return next((column for column in (name, *_ALTERNATIVES.get(name, ())) if column in columns), None)


def _check_columns(path: Path, table: pa.Table, needed: tuple[str, ...]) -> None:
    """Refuse missing columns, missing values, and columns of another type than their field, before rows are read."""
    subject, columns = f"batch {str(path)!r}", table.column_names
    always = [name for name in STRUCTURE if name != "attention_mask"]
    missing = [name for name in dict.fromkeys(("tokens", *always, "logp", *needed)) if not _source(name, columns)]
    if missing:
        meanings = "; ".join(f"{name}: {FIELDS[name].meaning}" for name in missing)
        do = "use the rollouts of a run that has these fields, or a generated batch: neither --run nor --batch"
        raise InputError(subject, got=f"no column {', '.join(missing)}", need=meanings, do=do)
    if len(steps := table.column("step").unique() if "step" in columns else ()) > 1:
        do = "name the file of one step; groups of several steps have the same labels"
        raise InputError(subject, got=f"{len(steps)} steps", need="the rows of one step", do=do)
    for name in (name for name in columns if name in FIELDS):
        depth, leaf, nulls = _contents(table.column(name).combine_chunks())
        if nulls:
            raise InputError(f"column {name!r} of {subject}", got=f"{nulls} nulls", need="a value in each row")
        if depth != len(FIELDS[name].axes.split()) - 1 or not leaf:
            lists, kind = len(FIELDS[name].axes.split()) - 1, FIELDS[name].dtype_name
            need = f"{'a list of ' if lists else ''}{'lists of ' * (lists - 1)}{kind}, {FIELDS[name].meaning}"
            got = str(table.schema.field(name).type)
            raise InputError(f"column {name!r} of {subject}", got=got, need=need)


def _contents(column: pa.Array) -> tuple[int, bool, int]:
    """The depth of the lists in `column`, whether there are numbers or booleans in them, and the number of nulls."""
    import pyarrow.types as t

    kind, nulls = column.type, column.null_count
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        depth, leaf, inner = _contents(column.flatten())
        return depth + 1, leaf, nulls + inner
    return 0, t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_null(kind), nulls
