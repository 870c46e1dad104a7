"""A trained model in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purerl.backends.hf.decoder.architecture import initialize_head
from purerl.backends.hf.model.token_model import HEADS, build_head, head_file
from purerl.backends.hf.weights.shard_files import os_errors
from purerl.backends.megatron.bridge import Bridge
from purerl.backends.megatron.files import write_files
from purerl.backends.megatron.mesh import Groups
from purerl.backends.megatron.names import SCORE
from purerl.models.tokenizer import pad_token_of
from purerl.settings import Model

__all__ = ["export", "new_score", "read_heads"]


def export(path: Path, model: Model, bridge: Bridge, heads: Mapping[str, Any], groups: Groups) -> None:
    """Write the configuration of `model`, the weights of `bridge`, and each head into a file beside them. Collective.

    Rank 0 writes the weights, and a rank of the last stage the heads.

    Raises: OSError on every rank if a file cannot be written.
    """

    def write() -> None:
        with os_errors():
            write_files(path, bridge, is_writer=groups.all.is_first)
            if groups.all.is_first:
                _write_config(path, model, bridge)
            if groups.is_source and groups.data.is_first:
                _write_heads(path, heads)

    groups.all.on_all(write, "exporting a model")


def _write_config(path: Path, model: Model, bridge: Bridge) -> None:
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(model.path, revision=model.revision)
    config.dtype = next(iter(bridge.metadata.values()))[1]
    if SCORE in bridge.metadata:
        _describe_classifier(config, model)
    config.save_pretrained(path)


def _describe_classifier(config: Any, model: Model) -> None:
    """Let `config` be that of a classifier with one label; that of a language model becomes one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    name = KNOWN[config.model_type]
    if name not in (config.architectures or ()):
        config.architectures, config.num_labels, config.pad_token_id = [name], 1, pad_token_of(model)


def _write_heads(path: Path, heads: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    for name, head in _own(heads).items():
        save_file({key: value.cpu() for key, value in head.state_dict().items()}, head_file(path, name))


def read_heads(path: Path, heads: Mapping[str, nn.Linear], *, seed: int) -> None:
    """Read each head from its file in `path`, if `export` has written one, or draw it as the hf trainer with `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, head in _own(heads).items():
            head.load_state_dict(build_head(name, head.weight, path).state_dict())


def _own(heads: Mapping[str, Any]) -> dict[str, Any]:
    """The heads of `heads` that have files of their own; that of a classifier is among the weights of the model."""
    return {name: head for name, head in heads.items() if name in HEADS}


def new_score(hidden: int, *, seed: int) -> Tensor:
    """[1, hidden] the head of a language model that becomes a classifier, drawn as the hf trainer with `seed`."""
    head = nn.Linear(hidden, 1, bias=False, dtype=torch.float64)
    initialize_head(head, seed)
    return head.weight.detach()
