"""Capabilities of a model, from its config alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from purerl.backends.hf.decoder.architecture import CAUSAL, Architecture
from purerl.backends.hf.decoder.loading import attention_errors, no_progress_bars
from purerl.models.pretrained import loading
from purerl.settings import Model
from purerl.system.devices.accelerator import device_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["without_weights"]

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def without_weights(model: Model, *, device: str, architecture: Architecture = CAUSAL) -> PreTrainedModel:
    """The module of `model` with its shapes and no weights.

    Raises: ConfigError if there is no such model, if a directory has no file with weights, if transformers has no such
    model of this `architecture` or attention implementation, and for a `device` that torch cannot use.
    """
    from transformers import AutoConfig

    device_of(device)
    kwargs = {"trust_remote_code": model.trust_remote_code}
    with loading("model", model):
        config = AutoConfig.from_pretrained(model.path, revision=model.revision, **kwargs, **architecture.options)
        _check_files(Path(model.path))
        with torch.device("meta"), no_progress_bars(), torch.random.fork_rng(devices=[]), attention_errors(model):
            return architecture.auto(config).from_config(config, attn_implementation=model.attention, **kwargs)


def _check_files(path: Path) -> None:
    if path.is_dir() and not any(file for pattern in _WEIGHTS for file in path.glob(pattern)):
        raise OSError(f"no file named model.safetensors, and no other file with weights, in directory {path}")
