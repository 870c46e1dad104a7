"""The settings of LoRA: low-rank matrices that are trained beside frozen weights.

This file imports no torch, so that a mistake in a configuration is reported quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from purerl.errors import ConfigError, PurerlError
from purerl.settings import above_zero, at_least, boolean, one_of, setting
from purerl.system.installation import install_command
from purerl.system.nesting import read_json

__all__ = ["ALL_LINEAR", "CONFIG_FILE", "WEIGHTS_FILE", "Lora", "check_lora", "check_supported", "notes_of", "scale_of"]

ALL_LINEAR = "all-linear"
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter in peft's format."""


@frozen(kw_only=True)
class Lora:
    """An adapter is trained instead of the whole model: W + scale * B A in place of the frozen matrix W.

    Source: Hu et al. 2021, LoRA (2106.09685). The defaults are those of Schulman et al. 2025, LoRA Without Regret.
    """

    rank: int = setting("number of rows of A and of columns of B", default=32, **at_least(1))
    alpha: float = setting("scale * rank, or scale * sqrt(rank) with rank_stabilized", default=32.0, **above_zero())
    rank_stabilized: bool = setting(
        "scale = alpha / sqrt(rank) instead of alpha / rank (rsLoRA)", default=False, **boolean()
    )
    target_modules: tuple[str, ...] = setting(
        "linear layers that get an adapter, by the ends of their names, such as q_proj; all-linear: all except the "
        "output head",
        default=(ALL_LINEAR,),
        need=f"names of layers, or {ALL_LINEAR} alone",
        valid=lambda names: all(names) and bool(names) and (ALL_LINEAR not in names or len(names) == 1),
    )
    initial: str | None = setting(
        "directory of an adapter in peft's format that training starts from; if not given, B is 0 at the start",
        default=None,
    )
    export: Literal["merged", "adapter"] = setting(
        "what is written at the end and by purerl export; merged: a whole model; adapter: peft's format",
        default="merged",
        **one_of("merged", "adapter"),
    )


def check_lora(lora: Lora, *, role: str, outputs: Sequence[str]) -> None:
    """Refuse `lora` if peft is missing, if its adapter does not exist or differs, and for a reference with `initial`.

    The adapter of a classifier cannot be written alone, because its head is trained too.

    Raises: ConfigError.
    """
    if find_spec("peft") is None:
        raise ConfigError("lora", got="peft is not installed", need="peft", do=install_command("lora"))
    if lora.export == "adapter" and "classifier_score" in outputs:
        need = "merged: the head of a classifier is trained too, and is no part of an adapter"
        raise ConfigError("lora.export", got="adapter", need=need, do="leave it out")
    if lora.initial is None:
        return
    if role == "reference":
        got = "an adapter that the run starts from: the model without it is not where the run starts"
        do = "merge it into the model, and leave lora.initial out; or set roles.reference.model, and its trainer"
        raise ConfigError("lora.initial with a reference", got=got, need="a new adapter", do=do)
    settings = _read_settings(Path(lora.initial))
    check_supported(settings, ConfigError, f"lora.initial {lora.initial!r}")
    own = {"rank": lora.rank, "alpha": lora.alpha, "rank_stabilized": lora.rank_stabilized}
    saved = {"rank": settings["r"], "alpha": settings["lora_alpha"]}
    saved["rank_stabilized"] = bool(settings.get("use_rslora"))
    for name, value in saved.items():
        if value != own[name]:
            need, do = f"{value}, as in {lora.initial!r}", f"set lora.{name}={value}"
            raise ConfigError(f"lora.{name}", got=own[name], need=need, do=do)


def _read_settings(path: Path) -> dict[str, Any]:
    """The settings of the adapter in the directory `path`. Raises ConfigError if there is none."""
    try:
        return read_json((path / CONFIG_FILE).read_text())
    except (OSError, ValueError) as error:
        need = f"a directory with {CONFIG_FILE} and {WEIGHTS_FILE}, as peft writes them"
        raise ConfigError("lora.initial", got=str(error), need=need) from error


# Settings of an adapter that are read here, or that change nothing once its matrices are in a file. `lora_dropout` is
# in the notes.
_HARMLESS = {"r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform"}
_HARMLESS |= {"layers_pattern", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"}
_HARMLESS |= {"inference_mode", "megatron_core", "megatron_config", "loftq_config", "eva_config", "corda_config"}
_HARMLESS |= {"lora_ga_config", "qalora_group_size", "runtime_config", "lora_dropout", "ensure_weight_tying"}
# Values that settings have in an adapter that is only W + scale * B A. The initializations named here leave W as it is.
_PLAIN = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, "gaussian", "orthogonal", "eva")}


def check_supported(settings: Mapping[str, Any], error: type[PurerlError], what: str) -> None:
    """Raise `error` if an adapter with these `settings` is more than W + scale * B A for some linear layers.

    Some initializations, such as PiSSA, OLoRA, LoftQ and CorDA, also change W. peft changes it again when it loads such
    an adapter, by a decomposition whose result depends on the machine.
    """
    others = {name: value for name, value in settings.items() if value and name not in _HARMLESS}
    problems = [f"{name} {value}" for name, value in others.items() if value not in _PLAIN.get(name, ())]
    problems += [f"no {name}" for name in ("r", "lora_alpha") if name not in settings]
    if problems:
        is_changed = settings.get("init_lora_weights", True) not in (*_PLAIN["init_lora_weights"], False)
        raise error(
            what,
            got=", ".join(problems),
            need="LoRA of linear layers, with one rank and one alpha, beside weights that it leaves as they are",
            do="let peft save it with path_initial_model_for_weight_conversion, or merge it" if is_changed else None,
        )


def notes_of(lora: Lora | None) -> tuple[str, ...]:
    """Sentences about `lora.initial` that a user has to know: what its file says, and this trainer does not do."""
    if lora is None or lora.initial is None:
        return ()
    dropout = _read_settings(Path(lora.initial)).get("lora_dropout")
    return (f"lora_dropout {dropout} of {lora.initial!r} is not used: dropout is off in training",) if dropout else ()


def scale_of(settings: Mapping[str, Any]) -> float:
    """The factor of B A in an adapter with these `settings`: alpha / rank, or alpha / sqrt(rank) with rsLoRA.

    >>> scale_of({"r": 16, "lora_alpha": 32}), scale_of({"r": 16, "lora_alpha": 32, "use_rslora": True})
    (2.0, 8.0)
    """
    rank = settings["r"]
    return settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
