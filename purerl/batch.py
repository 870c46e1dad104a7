"""The batch: a TensorDict of whole rows, aligned to tokens.

A row is a whole sequence (prompt, completion, tool output, ...), right-padded. A quantity at `t` is about token `t`
itself: `logp[:, t]` is the log-probability of `tokens[:, t]` given what precedes it. `SCHEMA` says what each field is;
`collate` makes a batch out of rows; `check_batch` refuses one that does not follow the schema.

Two masks, and two words for them. *Action* tokens (`action`) are the policy's own; the field is written once and never
changed, and recurrences, lengths and the place of an outcome follow it. *Counted* tokens (`mask`) are the action tokens
that enter losses, counts and baselines; corrections may clear some. What is not counted is *masked out*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.errors import BatchError, nearest

__all__ = [
    "FIELDS",
    "ROW_FIELDS",
    "SCHEMA",
    "STRUCTURE",
    "Field",
    "check_batch",
    "collate",
    "empty_batch",
    "with_fields",
]


class Field(NamedTuple):
    """One field of the batch.

    A scored field names its `source`: the role that a trainer plays, and the output of it that the field holds.
    """

    name: str
    axes: str
    dtype: torch.dtype
    unit: str
    writer: str
    meaning: str
    source: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name} [{self.axes}] {str(self.dtype).removeprefix('torch.')}"


_I, _F, _B = torch.int64, torch.float32, torch.bool
_ROW, _TOKEN = "rows", "rows time"

SCHEMA: tuple[Field, ...] = (
    Field("tokens", _TOKEN, _I, "id", "collate", "token ids"),
    Field("attention_mask", _TOKEN, _B, "", "collate", "there is a token"),
    Field("action", _TOKEN, _B, "", "collate", "the policy's own token; the demonstrator's, in SFT"),
    Field("mask", _TOKEN, _B, "", "collate, transforms", "the action token counts"),
    Field("row", _ROW, _I, "label", "loop", "identity of the row"),
    Field("group", _ROW, _I, "label", "loop", "rows of one prompt share a label; any labels"),
    Field("example", _ROW, _I, "index", "loop", "index into the data set"),
    Field("role", _ROW, _I, "index", "envs", "whose row it is: environment and player, numbered"),
    Field("turn", _TOKEN, _I, "index", "envs", "turn of the token: it changes from one step to the next"),
    Field("anchor", _TOKEN, _I, "label", "envs", "state that the environment was in when the step began; any labels"),
    Field("chosen", _ROW, _B, "", "data", "the preferred row of a pair"),
    Field("reward", _TOKEN, _F, "reward", "rewards", "an outcome sits on the row's last action token"),
    Field("components", "rows k", _F, "reward", "rewards", "what the row scores by each of k rewards"),
    Field("greedy_score", _ROW, _F, "reward", "rewards", "score of the greedy completion of the row's prompt"),
    Field("score", _ROW, _F, "reward", "rewards", "the sum of the row's rewards, for an objective that reads it"),
    Field("rollout_logp", _TOKEN, _F, "nats", "generator", "under the sampler, at the sampling temperature"),
    Field("version", _TOKEN, _I, "version", "generator", "weight version that sampled the token"),
    Field("temperature", _ROW, _F, "", "loop", "sampling temperature; 1 where nothing was sampled"),
    Field("truncated", _ROW, _B, "", "generator", "ended by the length limit"),
    Field("old_logp", _TOKEN, _F, "nats", "score", "under the policy when the update began", ("policy", "logp")),
    Field(
        "sum_pi_squared",
        _TOKEN,
        _F,
        "",
        "score",
        "sum of the squared probabilities of all tokens, when the update began",
        ("policy", "sum_pi_squared"),
    ),
    Field("ref_logp", _TOKEN, _F, "nats", "score", "under the reference", ("reference", "logp")),
    Field("teacher_logp", _TOKEN, _F, "nats", "score", "under the teacher", ("teacher", "logp")),
    Field(
        "teacher_topk_tokens",
        "rows time k",
        _I,
        "id",
        "score",
        "the teacher's k most likely tokens, for `topk_logp`",
        ("teacher", "topk_tokens"),
    ),
    Field(
        "teacher_topk_logp",
        "rows time k",
        _F,
        "nats",
        "score",
        "of those tokens, under the teacher",
        ("teacher", "topk_logp"),
    ),
    Field("reward_model_logp", _TOKEN, _F, "nats", "score", "under PRIME's reward model", ("reward_model", "logp")),
    Field(
        "old_value", _TOKEN, _F, "reward", "score", "the critic's estimate when the update began", ("critic", "value")
    ),
    Field("old_entropy", _TOKEN, _F, "nats", "score", "of the policy when the update began", ("policy", "entropy")),
    Field("noise", _TOKEN, _F, "", "loop", "uniform in [0, 1): chance is data"),
    Field("advantage", _TOKEN, _F, "reward", "estimator", "what the surrogate multiplies"),
    Field("returns", _TOKEN, _F, "reward", "estimator", "the critic's target"),
    Field("copies", _ROW, _F, "", "estimator", "how often resampling drew the row, relative to the mean token's"),
    Field("correct", _TOKEN, _B, "", "estimator", "the counted tokens of rows that are right"),
    Field("entropy_coef", _ROW, _F, "", "estimator", "what the entropy bonus of the row is multiplied by"),
    Field("weight", _TOKEN, _F, "", "estimator", "detached importance weight that a policy loss is multiplied by"),
    Field("rejected", _TOKEN, _B, "", "estimator", "counted before the corrections, and rejected by them"),
    Field("penalized", _TOKEN, _B, "", "prepare", "KL-Cov's choice of tokens"),
    Field("dropped", _TOKEN, _B, "", "prepare", "the policy loss leaves the token out"),
    Field("logp", _TOKEN, _F, "nats", "trainer", "under the model now, with gradient"),
    Field(
        "topk_logp", "rows time k", _F, "nats", "trainer", "of the teacher's tokens under the model now, with gradient"
    ),
    Field("entropy", _TOKEN, _F, "nats", "trainer", "of the model's next-token distribution now"),
    Field("value", _TOKEN, _F, "reward", "trainer", "the critic's estimate now, with gradient"),
    Field("log_partition", _TOKEN, _F, "", "trainer", "FlowRL's log Z of what precedes the token, with gradient"),
)
FIELDS: Mapping[str, Field] = {field.name: field for field in SCHEMA}

ROW_FIELDS = frozenset(field.name for field in SCHEMA if not field.axes.startswith(_TOKEN))
"""Fields of whole rows: [rows], or with axes of their own after it. All others have a value at each token."""

STRUCTURE = ("attention_mask", "action", "mask", "row", "group")
"""Fields that every batch has and that every function may read."""

# Names that people bring from other libraries, and ours for them.
_ALIASES = {
    "input_ids": "tokens",
    "old_log_probs": "old_logp",
    "old_per_token_logps": "old_logp",
    "ref_log_prob": "ref_logp",
    "ref_per_token_logps": "ref_logp",
    "rollout_log_probs": "rollout_logp",
    "log_probs": "logp",
    "response_mask": "action",
    "completion_mask": "action",
    "assistant_masks": "action",
    "loss_mask": "mask",
    "token_level_rewards": "reward",
    "token_level_scores": "reward",
    "rewards": "reward",
    "advantages": "advantage",
    "values": "old_value",
    "uid": "group",
    "index": "example",
}


def with_fields(batch: TensorDict, **fields: Tensor) -> TensorDict:
    """A new batch that shares everything with `batch` but `fields`; the argument is unchanged."""
    return batch.copy().update(fields)


def collate(rows: Sequence[Mapping[str, Any]]) -> TensorDict:
    """Right-pad `rows` to the longest and stack them.

    Each row maps field names to one value (row fields) or to a sequence as long as its `tokens` (token fields).
    `attention_mask` is written here; `mask` is `action` where it is not given. Padding is 0, or False.

    Raises: BatchError for no rows, an unknown field, rows with different fields, and a field of the wrong length.

    >>> long = {"tokens": [5, 6, 7], "action": [0, 1, 1], "row": 0, "group": 0}
    >>> short = {"tokens": [5, 8], "action": [0, 1], "row": 1, "group": 0}
    >>> collate([long, short])["mask"]
    tensor([[False,  True,  True],
            [False,  True, False]])
    """
    if not rows:
        raise BatchError("collate", got="no rows", need="at least one")
    names = set(rows[0])
    for index, row in enumerate(rows):
        if set(row) != names:
            difference = ", ".join(sorted(names ^ set(row)))
            raise BatchError(f"row {index} has other fields than row 0", got=f"only one of the two has {difference}")
    _check_known(names)
    lengths = torch.tensor([len(row["tokens"]) for row in rows])
    there = torch.arange(int(lengths.max())) < lengths[:, None]
    fields = {name: _column(FIELDS[name], [row[name] for row in rows], lengths, there) for name in rows[0]}
    fields["attention_mask"] = there
    fields.setdefault("mask", fields["action"])
    return TensorDict(fields, batch_size=[len(rows)])


def empty_batch() -> TensorDict:
    """A batch without rows, which has every field.

    >>> empty_batch()["components"].shape
    torch.Size([0, 1])
    """
    fields = {field.name: torch.zeros([0] + [1] * field.axes.count(" "), dtype=field.dtype) for field in SCHEMA}
    return TensorDict(fields, batch_size=[0])


def _column(field: Field, values: list[Any], lengths: Tensor, there: Tensor) -> Tensor:
    if field.name in ROW_FIELDS:
        return torch.tensor(values, dtype=field.dtype)
    for index, (value, length) in enumerate(zip(values, lengths.tolist(), strict=True)):
        if len(value) != length:
            raise BatchError(
                f"field {field.name!r} of row {index}", got=f"{len(value)} values", need=f"{length}, one for each token"
            )
    items = torch.from_numpy(np.array(list(chain.from_iterable(values)))).to(field.dtype)
    padded = torch.zeros(there.shape + items.shape[1:], dtype=field.dtype)
    return padded.masked_scatter_(there.reshape(there.shape + (1,) * (items.ndim - 1)), items)


def check_batch(batch: TensorDict, reads: Iterable[str] = ()) -> TensorDict:
    """Return `batch` if it follows the schema and has the fields of `STRUCTURE` and `reads`.

    Any float dtype is accepted where the schema says float32, as long as all float fields agree. An action token at
    position 0 is refused, for nothing precedes it that could predict it.

    Raises: BatchError, which names the field, what we got, what we need, and what to do.
    """
    _check_known(batch.keys())
    for name in (*STRUCTURE, *reads):
        if name not in batch.keys():
            need = f"{FIELDS[name]!r}: {FIELDS[name].meaning}"
            raise BatchError(
                f"field {name!r} is missing",
                got=", ".join(sorted(map(str, batch.keys()))),
                need=need,
                do=f"it is written by: {FIELDS[name].writer}",
            )
    rows, time = batch["attention_mask"].shape
    for name, value in batch.items():
        field, shape = FIELDS[name], (rows,) if name in ROW_FIELDS else (rows, time)
        # What axes beyond those two are for, only those who read the field know.
        shape += tuple(value.shape[len(shape) :][: len(field.axes.split()) - len(shape)])
        right = value.is_floating_point() if field.dtype.is_floating_point else value.dtype == field.dtype
        if tuple(value.shape) != shape or value.ndim != len(field.axes.split()) or not right:
            raise BatchError(
                f"field {name!r}",
                got=f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}",
                need=f"{field!r} = {list(shape)}",
            )
    _check_masks(batch)
    return batch


def _check_known(names: Iterable[str]) -> None:
    for name in names:
        if name not in FIELDS:
            remedy = f"it is {_ALIASES[name]!r} here" if name in _ALIASES else nearest(name, FIELDS)
            raise BatchError(f"unknown field {name!r}", do=remedy)


def _check_masks(batch: TensorDict) -> None:
    for inner, outer in (("mask", "action"), ("action", "attention_mask")):
        outside = batch[inner] & ~batch[outer]
        if outside.any():
            row, time = outside.nonzero()[0].tolist()
            raise BatchError(
                f"{inner!r} is set where {outer!r} is not",
                got=f"row {row}, position {time}",
                need=f"{inner!r} within {outer!r}",
            )
    if batch["action"][:, :1].any():
        row = int(batch["action"][:, 0].nonzero()[0])
        raise BatchError(
            "an action token at position 0",
            got=f"row {row}",
            need="something before it to predict it from",
            do="begin the row with the prompt, or a begin-of-sequence token",
        )
    dtypes = {str(value.dtype).removeprefix("torch.") for value in batch.values() if value.is_floating_point()}
    if len(dtypes) > 1:
        raise BatchError("float fields disagree", got=", ".join(sorted(dtypes)), need="one float dtype in a batch")
