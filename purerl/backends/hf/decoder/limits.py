"""The limits of a model in the in-process engines, read from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from purerl.errors import BatchError, ConfigError
from purerl.types import TensorDict

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = ["CHOICES", "Limits", "attention_of", "check_layers", "check_rows", "limits_of", "unsupported_layers"]

_SUPPORTED = {"full_attention", "sliding_attention"}

CHOICES = "teacher_topk_tokens"
"""The field of a batch that has the tokens of `topk_logp`."""


class Limits(NamedTuple):
    """The maximum number of tokens of a sequence (None: unlimited), and the number of token ids."""

    max_sequence_length: int | None
    vocab_size: int


def limits_of(model: PreTrainedModel) -> Limits:
    """The limits of `model`.

    With "longrope" a sequence is at most as long as in the original training: if one row of a batch is longer, all rows
    change to another rotary embedding, so that rows would depend on each other.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return Limits(rope["original_max_position_embeddings"], config.vocab_size)
    return Limits(getattr(config, "max_position_embeddings", None), config.vocab_size)


def check_rows(batch: TensorDict, limits: Limits) -> None:
    """Refuse rows that are longer than `limits` allow, and invalid token ids. Raises BatchError.

    On an accelerator an invalid id would be a device-side assertion, after which the process cannot continue.
    """
    tokens, mask, maximum = batch["tokens"], batch["attention_mask"], limits.max_sequence_length
    if maximum is not None and tokens.shape[1] > maximum and len(tokens):
        lengths = mask.sum(-1)
        row, length = int(lengths.argmax()), int(lengths.max())
        if length > maximum:
            need, do = f"at most {maximum:,}, the number of positions of the model", "leave that example out"
            raise BatchError(_row_name(batch, row), got=f"{length:,} tokens", need=need, do=do)
    _check_ids(batch, "tokens", mask, limits, do="use the tokenizer that the model was trained with")
    if CHOICES in batch.keys():
        do = "limit the ids of the teacher to those of the policy"
        _check_ids(batch, CHOICES, batch["action"][..., None], limits, do=do)


def _check_ids(batch: TensorDict, name: str, mask: Tensor, limits: Limits, *, do: str) -> None:
    """Refuse ids in the field `name`, where `mask` is true, that the model does not have."""
    ids = batch[name]
    invalid = mask & ((ids < 0) | (ids >= limits.vocab_size))
    if invalid.any():
        place = invalid.nonzero()[0].tolist()
        what = f"{_row_name(batch, place[0])}" + (f", {name}" if name != "tokens" else "")
        got, need = f"token {int(ids[tuple(place)]):,}", f"ids from 0 to {limits.vocab_size - 1:,}"
        raise BatchError(what, got=got, need=need, do=do)


def _row_name(batch: TensorDict, row: int) -> str:
    example = f", from example {int(batch['example'][row]):,}" if "example" in batch.keys() else ""
    return f"row {row} of a batch{example}"


def attention_of(model: PreTrainedModel) -> str | None:
    """The attention implementation that the decoder of `model` uses; None if it has none."""
    return model.config.get_text_config(decoder=True)._attn_implementation  # noqa: SLF001 - there is no public attribute


def unsupported_layers(model: PreTrainedModel) -> list[str]:
    """Types of layers that store something else than a key and a value per token; empty if there are none."""
    kinds = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or [])
    return sorted(kinds - _SUPPORTED) or (["a recurrent state"] if getattr(model, "_is_stateful", False) else [])


def check_layers(model: PreTrainedModel) -> None:
    """Raise ConfigError for a model with a layer that stores something else than a key and a value per token."""
    unsupported = unsupported_layers(model)
    if unsupported:
        got = f"{type(model).__name__} with {', '.join(unsupported)}"
        need = "layers of full or sliding-window attention, which store keys and values"
        raise ConfigError("the in-process generator cannot run this model", got=got, need=need, do="use another engine")
