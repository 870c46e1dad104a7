"""What the embedded engines can do with a model, told from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tensordict import TensorDict

from purerl.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Limits", "check_layers", "check_rows", "limits_of", "longest", "strange_layers"]

_KINDS = {"full_attention", "sliding_attention"}


class Limits(NamedTuple):
    """How many tokens a sequence may have, if there is a limit, and how many ids there are."""

    longest: int | None
    vocabulary: int


def limits_of(model: PreTrainedModel) -> Limits:
    """What `model` takes."""
    return Limits(longest(model), model.config.get_text_config(decoder=True).vocab_size)


def check_rows(batch: TensorDict, limits: Limits) -> None:
    """Refuse rows that are longer than `limits` allow, and ids that are none. Raises BatchError.

    On an accelerator an id that is none would be an assertion, after which nothing works any more.
    """
    tokens, there = batch["tokens"], batch["attention_mask"]
    if limits.longest is not None and tokens.shape[1] > limits.longest and len(tokens):
        lengths = there.sum(-1)
        row, length = int(lengths.argmax()), int(lengths.max())
        if length > limits.longest:
            need, do = f"at most {limits.longest:,}, which the model has positions for", "leave that example out"
            raise BatchError(_name(batch, row), got=f"{length:,} tokens", need=need, do=do)
    wrong = there & ((tokens < 0) | (tokens >= limits.vocabulary))
    if wrong.any():
        row, time = wrong.nonzero()[0].tolist()
        need, do = f"ids from 0 to {limits.vocabulary - 1:,}", "use the tokenizer that the model was trained with"
        raise BatchError(_name(batch, row), got=f"token {int(tokens[row, time]):,}", need=need, do=do)


def _name(batch: TensorDict, row: int) -> str:
    example = f", made of example {int(batch['example'][row]):,}" if "example" in batch.keys() else ""
    return f"row {row} of a batch{example}"


def strange_layers(model: PreTrainedModel) -> list[str]:
    """What layers keep that is no key and value for each token; empty where all keep those."""
    kinds = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or [])
    return sorted(kinds - _KINDS) or (["a recurrent state"] if getattr(model, "_is_stateful", False) else [])


def check_layers(model: PreTrainedModel) -> None:
    """Raise ConfigError for a model whose layers keep something else than a key and a value for each token."""
    strange = strange_layers(model)
    if strange:
        got = f"{type(model).__name__} with {', '.join(strange)}"
        need = "layers of full or sliding-window attention, which keep keys and values"
        raise ConfigError("the embedded generator cannot run this model", got=got, need=need, do="use another engine")


def longest(model: PreTrainedModel) -> int | None:
    """How many tokens a sequence may have; None where the model does not say.

    With "longrope" it is the length up to which the model was first trained: where one row of a batch goes beyond, all
    of them change to another rotary embedding, so rows would depend on each other.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return rope["original_max_position_embeddings"]
    return getattr(config, "max_position_embeddings", None)
