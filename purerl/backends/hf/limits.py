"""What the embedded engines can do with a model, told from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purerl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["check_layers", "longest", "strange_layers"]

_KINDS = {"full_attention", "sliding_attention"}


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
