"""Fields and arguments that earlier versions of TRL and transformers had under other names, or that are removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NOT_NEEDED", "argument_of_config", "current_argument", "current_field"]

_FIELDS = {
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
    "torch_dtype": "dtype",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "reward_model_path": "reward_model_name_or_path",
}
_ARGUMENTS = {"tokenizer": "processing_class"}
_OF_CONFIG = (
    *("max_seq_length", "max_length", "max_prompt_length", "packing", "dataset_text_field"),
    *("beta", "label_smoothing", "loss_type", "neftune_noise_alpha"),
)

NOT_NEEDED = {
    "overwrite_output_dir": "`purerl train --fresh` replaces the run in a directory",
    "group_by_length": "rows of similar length are in the same micro-batch",
    "vllm_device": "`generator.server.devices` are those of the servers, if they have devices of their own",
    "logging_dir": "the files of a run are in its directory",
}
"""Fields of earlier versions that have no counterpart in TRL 1.16, and why none is needed."""


def current_field(name: str) -> str:
    """The field of today with the old or the current `name`.

    >>> current_field("evaluation_strategy"), current_field("seed")
    ('eval_strategy', 'seed')
    """
    return _FIELDS.get(name, name)


def current_argument(name: str) -> str:
    """The argument of a trainer with the old or the current `name`."""
    return _ARGUMENTS.get(name, name)


def argument_of_config(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those `arguments` of a trainer that are fields of its configuration today, by their names there."""
    return {current_field(name): value for name, value in arguments.items() if name in _OF_CONFIG}
