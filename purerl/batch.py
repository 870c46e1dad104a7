"""The batch: a TensorDict of rows, with every quantity aligned to its token.

A row is a whole sequence (prompt, completion, tool output, ...), right-padded. A value at position `t` belongs to the
token at `t`: `logp[:, t]` is the log-probability of `tokens[:, t]` given the tokens before it. `SCHEMA` defines the
fields, `collate` creates a batch from rows, and `check_batch` refuses one that does not follow the schema.

There are two masks. *Action* tokens (`action`) are the policy's own tokens. The field is never changed; recurrences and
lengths use it, and an outcome reward is on the last action token. *Counted* tokens (`mask`) are the action tokens that
enter losses, counts and baselines; corrections may remove some. Tokens that are not counted are *masked out*.

An *episode* is one try of a task. It is one row, unless the context of an agent is rewritten: what follows is then a
new row with the same label `episode`, which starts with the new context. See `purerl.algos.parts.episodes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from purerl.errors import BatchError, nearest
from purerl.types import TensorDict

__all__ = [
    "FIELDS",
    "OPTIONAL_STRUCTURE",
    "ROW_FIELDS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "STRUCTURE",
    "Field",
    "check_batch",
    "collate",
    "empty_batch",
    "require_tensors",
    "select_fields",
    "with_fields",
]


class Field(NamedTuple):
    """One field of the batch.

    A field that a model computes has a `source`: the role of the model, and its output. A field that not every run can
    have names what the run needs for it in `requires`.
    """

    name: str
    axes: str
    dtype_name: str
    unit: str
    writer: str
    meaning: str
    source: tuple[str, ...] = ()
    requires: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its tensor."""
        return getattr(torch, self.dtype_name)

    @property
    def is_input(self) -> bool:
        """Whether the run must supply the field. Other fields are computed by a model or by the algorithm."""
        return not self.source and self.writer not in ("estimator", "prepare", "trainer")

    def __repr__(self) -> str:
        return f"{self.name} [{self.axes}] {self.dtype_name}"


_I, _F, _B = "int64", "float32", "bool"
_ROW, _TOKEN, _CHOICES = "rows", "rows time", "rows time k"


def _scored(name: str, unit: str, meaning: str, role: str, output: str, axes: str = _TOKEN) -> Field:
    """A field that the loop asks a model for."""
    return Field(name, axes, _I if unit == "id" else _F, unit, "score", meaning, (role, output))


def _observed(name: str, axes: str, unit: str, meaning: str, dtype: str = _I) -> Field:
    """A field that an environment provides."""
    return Field(name, axes, dtype, unit, "an environment", meaning, requires="environment")


def _named(name: str, meaning: str) -> Field:
    """The component of the reward with this name, without its weight."""
    return Field(name, _ROW, _F, "", "rewards", meaning, requires=f"reward {name}")


# Python's floats have 64 bits.
_NUMPY_DTYPES = {"bool": "bool", "int64": "int64", "float32": "float64"}

SCHEMA_VERSION = 2

SCHEMA: tuple[Field, ...] = (
    Field("tokens", _TOKEN, _I, "id", "collate", "token ids"),
    Field("image", _TOKEN, _I, "id", "data", "content id of the token's image; 0: text", requires="images"),
    Field("attention_mask", _TOKEN, _B, "", "collate", "the position has a token"),
    Field("action", _TOKEN, _B, "", "collate", "the token is the policy's own; in SFT, the demonstrator's"),
    Field("mask", _TOKEN, _B, "", "collate, transforms", "the action token is counted"),
    Field("row", _ROW, _I, "label", "loop", "identity of the row"),
    Field("group", _ROW, _I, "label", "loop", "rows of the same prompt have the same label"),
    Field("example", _ROW, _I, "index", "loop", "index in the data set"),
    _observed("episode", _ROW, "label", "rows of the same episode have the same label, and are in the order of `row`"),
    _observed("role", _ROW, "index", "player of the row; with several environments, both as one number"),
    _observed("turn", _TOKEN, "index", "turn of the token, in its episode"),
    _observed("anchor", _TOKEN, "label", "state of the environment when the turn started"),
    _observed("progress", _TOKEN, "reward", "at a turn's last token: the change of the state's score", _F),
    Field("chosen", _ROW, _B, "", "data", "the preferred row of a pair", requires="pairs"),
    Field("margin", _ROW, _F, "reward", "data", "how much higher the chosen row should score", requires="margins"),
    Field("desirable", _ROW, _B, "", "data", "the label of a completion", requires="labels"),
    Field("mismatched", _ROW, _B, "", "data", "the completion belongs to another prompt", requires="labels"),
    Field("optimal_value", _ROW, _F, "reward", "data", "optimal value of the prompt", requires="values"),
    Field("reward", _TOKEN, _F, "reward", "rewards", "an outcome reward is on the last action token"),
    Field("components", "rows k", _F, "reward", "rewards", "k rewards; NaN: it has none", requires="several rewards"),
    _named("correctness", "whether the row is correct, at least 1/2"),
    _named("ranking", "rank of the row in its group, higher is better; NaN: it has none"),
    _named("hack", "whether the row is a confirmed hack, at least 1/2"),
    Field("greedy_score", _ROW, _F, "reward", "rewards", "reward of the greedy completion of the row's prompt"),
    Field("score", _ROW, _F, "reward", "rewards", "the sum of the rewards of the row's episode, for objectives"),
    Field("draw_weight", _ROW, _F, "", "loop", "importance weight of the row's prompt, relative to uniform draws"),
    Field("teacher_index", _ROW, _I, "index", "loop", "which of several teachers scores the row"),
    Field("rollout_logp", _TOKEN, _F, "nats", "generator", "under the generator, at the sampling temperature"),
    Field("version", _TOKEN, _I, "version", "generator", "version of the weights that sampled the token"),
    Field("temperature", _ROW, _F, "", "loop", "sampling temperature; 1 if nothing was sampled"),
    Field("truncated", _ROW, _B, "", "generator", "ended by the length limit"),
    _scored("old_logp", "nats", "under the policy at the start of the update", "policy", "logp"),
    _scored("sum_pi_squared", "", "sum of squared probabilities, at the update's start", "policy", "sum_pi_squared"),
    _scored("ref_logp", "nats", "under the reference model", "reference", "logp"),
    _scored("teacher_logp", "nats", "under the teacher", "teacher", "logp"),
    _scored("teacher_topk_tokens", "id", "the teacher's k most likely tokens", "teacher", "topk_tokens", _CHOICES),
    _scored("teacher_topk_logp", "nats", "of these tokens, under the teacher", "teacher", "topk_logp", _CHOICES),
    _scored("reward_model_logp", "nats", "under the reward model of PRIME", "reward_model", "logp"),
    _scored("old_value", "reward", "the critic's estimate at the start of the update", "critic", "value"),
    _scored("old_entropy", "nats", "of the policy at the start of the update", "policy", "entropy"),
    _scored("routes", "id", "record of the experts of the row's tokens; 0: none", "policy", "routes", _ROW),
    Field("noise", _TOKEN, _F, "", "loop", "uniform random numbers in [0, 1)"),
    Field("advantage", _TOKEN, _F, "reward", "estimator", "factor of the policy gradient"),
    Field("returns", _TOKEN, _F, "reward", "estimator", "target of the critic"),
    Field("copies", _ROW, _F, "", "estimator", "how often resampling has drawn the row, relative to the mean"),
    Field("correct", _TOKEN, _B, "", "estimator", "counted tokens of correct rows"),
    Field("entropy_coef", _ROW, _F, "", "estimator", "coefficient of the entropy bonus, if it adapts"),
    Field("kl_loss_coef", _ROW, _F, "", "estimator", "coefficient of the KL penalty in the loss, if it adapts"),
    Field("kl_reward_coef", _ROW, _F, "", "estimator", "coefficient of the KL penalty in the reward, if it adapts"),
    Field("weight", _TOKEN, _F, "", "estimator", "importance weight of the policy loss, without gradient"),
    Field("rejected", _TOKEN, _B, "", "estimator", "the token was counted, and a correction has rejected it"),
    Field("prompt_weight", _ROW, _F, "", "prepare", "weight of the row's tokens in a mean over prompts"),
    Field("episode_tokens", "rows k", _I, "tokens", "prepare", "tokens of the row's episode that each term covers"),
    Field("penalized", _TOKEN, _B, "", "prepare", "tokens selected by KL-Cov"),
    Field("dropped", _TOKEN, _B, "", "prepare", "the token has no policy loss"),
    Field("margin_shift", _ROW, _F, "nats", "prepare", "what matching by rank adds to the margin of the row's pair"),
    Field("reference_point", _ROW, _F, "nats", "prepare", "what KTO compares the row's log-ratio with"),
    Field("ratio_low", _ROW, _F, "", "prepare", "lower clip bound of the ratio, if it adapts"),
    Field("ratio_high", _ROW, _F, "", "prepare", "upper clip bound of the ratio, if it adapts"),
    Field("observed", _TOKEN, _B, "", "prepare", "the token is no action, and its likelihood is learned"),
    Field("preferred", _TOKEN, _B, "", "prepare", "counted tokens of chosen rows"),
    Field("logp", _TOKEN, _F, "nats", "trainer", "under the current model, with gradient"),
    Field("topk_logp", _CHOICES, _F, "nats", "trainer", "of the same tokens, under the current model, with gradient"),
    Field("entropy", _TOKEN, _F, "nats", "trainer", "of the current model's next-token distribution"),
    Field("value", _TOKEN, _F, "reward", "trainer", "the critic's current estimate, with gradient"),
    Field("classifier_score", _TOKEN, _F, "reward", "trainer", "a classifier's score at the token, with gradient"),
    Field("log_partition", _TOKEN, _F, "", "trainer", "FlowRL's log Z of the tokens before, with gradient"),
)  # fmt: skip
FIELDS: Mapping[str, Field] = {field.name: field for field in SCHEMA}

ROW_FIELDS = frozenset(field.name for field in SCHEMA if not field.axes.startswith(_TOKEN))
"""Fields with one value per row: [rows], or with axes of their own. All others have one value per token."""

STRUCTURE = ("attention_mask", "action", "mask", "row", "group")
"""Fields that every batch has, and that every function may read."""

OPTIONAL_STRUCTURE = ("episode", "episode_tokens")
"""Fields that a batch of episodes has besides, for the functions that run an algorithm. No algorithm reads them.

Without `episode`, every row is an episode of its own."""

# Names in other libraries -> our names.
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


def with_fields(batch: TensorDict, **fields: torch.Tensor) -> TensorDict:
    """A new batch with `fields` replaced or added. It shares all other tensors with `batch`, which is unchanged."""
    _require_batch(batch)
    return batch.copy().update(fields)


def select_fields(batch: TensorDict, names: Iterable[str]) -> TensorDict:
    """The fields of `STRUCTURE` and `names` of `batch`, and those of `OPTIONAL_STRUCTURE` that it has.

    This is what a function gets that declares `names`.

    Raises: KeyError for a field that `batch` does not have.
    """
    _require_batch(batch)
    optional = [name for name in OPTIONAL_STRUCTURE if name in batch.keys()]
    return batch.select(*dict.fromkeys((*STRUCTURE, *names, *optional)))


def require_tensors(batch: TensorDict, names: Iterable[str] = ()) -> None:
    """Refuse a batch that is no TensorDict, and one in which a field of `STRUCTURE` or `names` is no tensor.

    Other fields may hold anything. They are passed on unchanged.

    Raises: BatchError that names the field.
    """
    _require_batch(batch)
    for name in (*STRUCTURE, *names):
        value = batch.get(name, None)
        if value is not None and not isinstance(value, torch.Tensor):
            got, need = type(value).__name__, f"a tensor, {FIELDS.get(name, name)!r}"
            raise BatchError(f"field {name!r}", got=got, need=need, do="give each of its values a number")


def _require_batch(batch: TensorDict) -> None:
    if not hasattr(batch, "batch_size"):
        do = "create it with collate(rows), or with TensorDict(fields, batch_size=[number of rows])"
        raise BatchError("a batch", got=type(batch).__name__, need="a TensorDict", do=do)


def collate(rows: Sequence[Mapping[str, Any]]) -> TensorDict:
    """Right-pad `rows` to the longest and stack them.

    Each row maps field names to one value (row fields) or to a sequence as long as its `tokens` (token fields).
    `attention_mask` is created here; `mask` is `action` if it is missing. Padding is 0 or False.

    Raises: BatchError for no rows, unknown fields, rows with different fields, and fields of the wrong length.

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
        if row.keys() != names:
            difference = ", ".join(sorted(names ^ set(row)))
            raise BatchError(f"row {index} has other fields than row 0", got=f"only one of them has {difference}")
    _check_known(names)
    lengths = torch.tensor([len(row["tokens"]) for row in rows])
    attention_mask = torch.arange(int(lengths.max())) < lengths[:, None]
    fields = {name: _column(FIELDS[name], [row[name] for row in rows], lengths, attention_mask) for name in rows[0]}
    fields["attention_mask"] = attention_mask
    fields.setdefault("mask", fields["action"])
    from tensordict import TensorDict

    return TensorDict(fields, batch_size=[len(rows)])


def empty_batch() -> TensorDict:
    """A batch without rows that has every field.

    >>> empty_batch()["components"].shape
    torch.Size([0, 1])
    """
    from tensordict import TensorDict

    fields = {field.name: torch.zeros([0] + [1] * field.axes.count(" "), dtype=field.dtype) for field in SCHEMA}
    return TensorDict(fields, batch_size=[0])


def _column(field: Field, values: list[Any], lengths: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    if field.name in ROW_FIELDS:
        return torch.tensor(values, dtype=field.dtype)
    counts, expected = list(map(len, values)), lengths.tolist()
    if counts != expected:
        index = next(k for k, pair in enumerate(zip(counts, expected, strict=True)) if pair[0] != pair[1])
        got, need = f"{counts[index]} values", f"{expected[index]}, one per token"
        raise BatchError(f"field {field.name!r} of row {index}", got=got, need=need)
    flat = chain.from_iterable(values)
    import numpy as np

    array = np.array(list(flat)) if field.axes == _CHOICES else np.fromiter(flat, _NUMPY_DTYPES[field.dtype_name])
    items = torch.from_numpy(array).to(field.dtype)
    padded = torch.zeros(attention_mask.shape + items.shape[1:], dtype=field.dtype)
    where = attention_mask.reshape(attention_mask.shape + (1,) * (items.ndim - 1))
    return padded.masked_scatter_(where, items)


def check_batch(batch: TensorDict, reads: Iterable[str] = ()) -> TensorDict:
    """Return `batch` if it follows the schema and has the fields of `STRUCTURE` and `reads`.

    Instead of float32 any float dtype is accepted, if it is the same in all fields. An action token at position 0 is
    refused, because there is no token before it from which it could be predicted. The rows of an episode must be in one
    group. Rewards must be finite in rows with a counted token; a component that is NaN is one that the row does not
    have.

    Raises: BatchError that names the field.
    """
    require_tensors(batch)
    _check_known(batch.keys())
    require_tensors(batch, batch.keys())
    for name in (*STRUCTURE, *reads):
        if name not in batch.keys():
            need = f"{FIELDS[name]!r}: {FIELDS[name].meaning}"
            raise BatchError(
                f"field {name!r} is missing",
                got=", ".join(sorted(map(str, batch.keys()))),
                need=need,
                do=f"it is written by {FIELDS[name].writer}",
            )
    rows, time = batch["attention_mask"].shape
    for name, value in batch.items():
        field, shape = FIELDS[name], (rows,) if name in ROW_FIELDS else (rows, time)
        # Further axes may have any length.
        shape += tuple(value.shape[len(shape) :][: len(field.axes.split()) - len(shape)])
        same_kind = value.is_floating_point() if field.dtype.is_floating_point else value.dtype == field.dtype
        if tuple(value.shape) != shape or value.ndim != len(field.axes.split()) or not same_kind:
            raise BatchError(
                f"field {name!r}",
                got=f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}",
                need=f"{field!r} = {list(shape)}",
            )
    _check_masks(batch)
    _check_episodes(batch)
    _check_rewards(batch)
    return batch


def _check_known(names: Iterable[str]) -> None:
    for name in names:
        if name not in FIELDS:
            remedy = f"purerl calls it {_ALIASES[name]!r}" if name in _ALIASES else nearest(name, FIELDS)
            raise BatchError(f"unknown field {name!r}", do=remedy)


def _check_masks(batch: TensorDict) -> None:
    for inner, outer in (("mask", "action"), ("action", "attention_mask")):
        outside = batch[inner] & ~batch[outer]
        if outside.any():
            row, time = outside.nonzero()[0].tolist()
            raise BatchError(
                f"{inner!r} is true where {outer!r} is false",
                got=f"row {row}, position {time}",
                need=f"{inner!r} only where {outer!r} is true",
            )
    if batch["action"][:, :1].any():
        row = int(batch["action"][:, 0].nonzero()[0])
        raise BatchError(
            "an action token at position 0",
            got=f"row {row}",
            need="a token before it",
            do="start the row with the prompt, or with a begin-of-sequence token",
        )
    dtypes = {str(value.dtype).removeprefix("torch.") for value in batch.values() if value.is_floating_point()}
    if len(dtypes) > 1:
        raise BatchError(
            "float fields have different dtypes",
            got=", ".join(sorted(dtypes)),
            need="the same dtype in all float fields",
        )


def _check_episodes(batch: TensorDict) -> None:
    if "episode" in batch.keys():
        pairs = torch.stack([batch["episode"], batch["group"]]).unique(dim=1)
        repeated = pairs[0, 1:][pairs[0, 1:] == pairs[0, :-1]]
        if len(repeated):
            label = int(repeated[0])
            groups = pairs[1][pairs[0] == label].tolist()
            need = "rows of an episode have the same prompt, so they are in one group"
            raise BatchError(f"episode {label}", got=f"groups {', '.join(map(str, groups))}", need=need)


def _check_rewards(batch: TensorDict) -> None:
    counted, fields = batch["mask"].any(-1), dict[str, Any](batch.items())
    for name, value in fields.items():
        if FIELDS[name].unit != "reward" or not FIELDS[name].is_input:
            continue
        is_wrong = value.isinf() if name == "components" else ~value.isfinite()
        is_read = counted if name in ROW_FIELDS else counted.unsqueeze(-1) & batch["attention_mask"]
        where = (is_wrong & (is_read if value.ndim == is_read.ndim else is_read.unsqueeze(-1))).nonzero()
        if len(where):
            row, *rest = where[0].tolist()
            got = f"{value[tuple(where[0])].item()} in row {row}" + "".join(f", position {k}" for k in rest)
            need = "a finite number" + (", or NaN if the row has no such component" if name == "components" else "")
            raise BatchError(f"field {name!r}", got=got, need=need, do="leave out rows without a reward")
