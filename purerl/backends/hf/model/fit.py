"""Whether a model fits the settings of a trainer: known from its configuration, before its weights are loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from purerl.backends.hf.decoder.backbone import layers_of
from purerl.backends.hf.decoder.limits import attention_of, unsupported_layers
from purerl.backends.hf.mesh import Mesh, check_divides
from purerl.errors import ConfigError, PurerlError
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["OF_DIVISION", "check_divisible", "check_shapes", "joined", "reads_shapes", "refused_by_code"]

_OWN_ATTENTION = "whose code has an attention of its own"
_ONLY_ATTENTION = "layers of full or sliding-window attention only"

OF_DIVISION = "DTensor|DeviceMesh|sharding strategy|conversion of the weights|The size of tensor|overlapping meshes"
"""Matches errors that a model's code raises because of its division."""

_WRONG_PLANS = {
    "apertus": "gives other gradients: ranks do not add up those of its activation function",
    "apertus1p5_text": "gives other gradients: ranks do not add up those of its activation function",
    "gemma3n_text": "gives other logits",
    "llama4_text": "fails in the backward pass: scores of experts are changed in place",
}
"""Types of models with a plan for tensor parallelism in transformers that is wrong, as tests/families/ has shown."""

_UNDIVIDED = {
    "inkling2_loop_text": "whose files have parameters in another form",
    "hy_v4": "whose code fills parameters in a way that divided ones do not support",
    "rwkv": "whose code uses parameters of a layer outside of it",
    "zamba": "whose layers share parameters",
    "zamba2": "whose layers share parameters",
}
"""Types of models that FSDP2 cannot divide, as tests/families/ has shown."""


def reads_shapes(config: TrainerConfig, *, is_trained: bool) -> bool:
    """Whether `config` has a setting that some models do not fit."""
    changed = is_trained and (config.lora is not None or bool(config.freeze))
    layers = config.compile or config.recompute != "none"
    return changed or layers or config.packing or bool(config.share_prefixes) or config.mesh.is_divided


def check_shapes(shapes: PreTrainedModel, model: Model, config: TrainerConfig) -> None:
    """Refuse settings that the layers of the model with these `shapes` do not fit. Raises ConfigError."""
    _check_layers(shapes, config)
    check_divisible(shapes, model, config.mesh)
    if config.packing:
        _check_packing(shapes, model)
    if config.share_prefixes and (unsupported := unsupported_layers(shapes)):
        got = f"{type(shapes).__name__} with {', '.join(unsupported)}"
        raise ConfigError("share_prefixes", got=got, need=_ONLY_ATTENTION, do="leave share_prefixes out")


def _check_layers(shapes: PreTrainedModel, config: TrainerConfig) -> None:
    """Refuse what is applied to each layer, if transformers does not mark the layers of the model."""
    mesh = next((f"mesh.{name}" for name, size in _sizes(config.mesh) if size > 1), None)
    asked = {mesh: mesh, "compile": config.compile, "recompute": config.recompute != "none"}
    for name in (name for name, is_asked in asked.items() if is_asked and not any(layers_of(shapes))):
        got = f"{type(shapes).__name__}, whose layers are not marked as layers"
        need = "a model whose layers transformers marks (GradientCheckpointingLayer)"
        raise ConfigError(str(name), got=got, need=need, do=f"leave {name} out")


def _sizes(mesh: Mesh) -> Iterator[tuple[str, int]]:
    return ((name, getattr(mesh, name)) for name in ("shard", "sequence", "tensor"))


def check_divisible(shapes: PreTrainedModel, model: Model, mesh: Mesh) -> None:
    """Refuse a `mesh` that the model with these `shapes` cannot be divided by. Raises ConfigError."""
    for name in (name for name, size in _sizes(mesh) if size > 1):
        _check_shards(shapes, name, getattr(mesh, name))
    if mesh.tensor > 1:
        _check_tensor(shapes, mesh)
    if mesh.sequence > 1:
        _check_sequence(shapes, model, mesh)


def _check_tensor(shapes: PreTrainedModel, mesh: Mesh) -> None:
    name, text = type(shapes).__name__, shapes.config.get_text_config(decoder=True)
    if not shapes.tp_plan:
        raise _refused("tensor", mesh.tensor, f"{name}, for which transformers has no plan", "a model with a plan")
    if reason := _WRONG_PLANS.get(text.model_type):
        got = f"{name}, whose plan in transformers {reason}"
        raise _refused("tensor", mesh.tensor, got, "a model that is trained the same if its matrices are split")
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    check_divides("tensor", mesh.tensor, "key and value heads", heads)


def _check_sequence(shapes: PreTrainedModel, model: Model, mesh: Mesh) -> None:
    name, text = type(shapes).__name__, shapes.config.get_text_config(decoder=True)
    if unsupported := unsupported_layers(shapes):
        raise _refused("sequence", mesh.sequence, f"{name} with {', '.join(unsupported)}", _ONLY_ATTENTION)
    if not shapes.is_backend_compatible():
        need = "a model that calls the attention functions of transformers"
        raise _refused("sequence", mesh.sequence, f"{name}, {_OWN_ATTENTION}", need)
    if (attention := attention_of(shapes)) != "sdpa":
        got, need = f"{name} with attention {attention}", "a model that supports sdpa, with sdpa"
        raise _refused("sequence", mesh.sequence, got, need, do=_other_attention(shapes, model))
    heads = text.num_attention_heads // mesh.tensor
    check_divides("sequence", mesh.sequence, "heads of each tensor-parallel rank", heads)


def _check_shards(shapes: PreTrainedModel, name: str, size: int) -> None:
    """Refuse to divide what FSDP2 cannot, and matrices of which a rank would load other parts than its own."""
    cls, do = type(shapes).__name__, f"leave mesh.{name} out"
    if reason := _UNDIVIDED.get(shapes.config.model_type):
        need = "a model whose parameters can be divided"
        raise ConfigError(f"mesh.{name}", got=f"{size}, and {cls}, {reason}", need=need, do=do)
    matrices = [path for path in joined(shapes, name) if name == "tensor" or shapes.get_parameter(path).ndim == 2]
    if matrices:
        got = f"{size}, and {cls}, whose files have {matrices[0]} in another form, joined or split"
        raise ConfigError(f"mesh.{name}", got=got, need="files with each matrix as the model has it", do=do)


def joined(shapes: PreTrainedModel, axis: str) -> list[str]:
    """The names of parameters that transformers joins or splits along the dimension that `axis` of a mesh divides.

    FSDP2 divides the first dimension. Of experts that a plan for tensor parallelism splits, transformers reads parts of
    joined tensors, but not of interleaved ones.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    names: list[str] = []
    for conversion in get_model_conversion_mapping(shapes):
        if isinstance(conversion, WeightConverter) and any(_divides(each, axis) for each in conversion.operations):
            pattern = _pattern(conversion.target_patterns)
            names += [name for name, _ in shapes.named_parameters() if pattern.search(name)]
    if axis != "tensor":
        return names
    return [name for name in names if any(fnmatchcase(name.removesuffix(".weight"), each) for each in shapes.tp_plan)]


def _divides(operation: Any, axis: str) -> bool:
    kind, dim = type(operation).__name__, getattr(operation, "dim", None)
    is_joining = kind in ("Chunk", "Concatenate", "Interleave", "Split")
    return (is_joining and dim == 0) or (kind == "Interleave" and axis == "tensor")


def _pattern(patterns: str | Sequence[str]) -> re.Pattern[str]:
    """One regular expression for `patterns` of transformers, in which a star stands for anything."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    return re.compile("|".join(each.replace("*", ".*") for each in listed))


def _check_packing(shapes: PreTrainedModel, model: Model) -> None:
    """Refuse to pack rows for the model with these `shapes` if it cannot read them so. Raises ConfigError."""
    from purerl.backends.hf.model.packed_attention import SUPPORTED

    name, do = type(shapes).__name__, "leave packing out"
    if unsupported := unsupported_layers(shapes):
        raise ConfigError("packing", got=f"{name} with {', '.join(unsupported)}", need=_ONLY_ATTENTION, do=do)
    if not shapes.is_backend_compatible():
        need = "a model that calls the attention functions of transformers"
        raise ConfigError("packing", got=f"{name}, {_OWN_ATTENTION}", need=need, do=do)
    if (attention := attention_of(shapes)) not in SUPPORTED:
        got, need = f"{name} with attention {attention}", "a model that supports sdpa or eager, with one of them"
        raise ConfigError("packing", got=got, need=need, do=_other_attention(shapes, model) or do)


def _other_attention(shapes: PreTrainedModel, model: Model) -> str | None:
    """A remedy, if the attention that `model` names is the reason, and not the model with these `shapes`."""
    supports_sdpa = shapes.is_backend_compatible() and shapes._supports_sdpa  # noqa: SLF001 - there is no public name
    return "leave model.attention out, which is then sdpa" if model.attention and supports_sdpa else None


def _refused(name: str, size: int, got: str, need: str, *, do: str | None = None) -> ConfigError:
    do = do or f"leave mesh.{name} out, and use mesh.shard"
    return ConfigError(f"mesh.{name}", got=f"{size}, and {got}", need=need, do=do)


@contextmanager
def refused_by_code(config: TrainerConfig, cls: type) -> Iterator[None]:
    """Name the setting of the mesh if code of transformers or torch for the model class `cls` fails with its division.

    Raises: ConfigError in place of an error that says that a tensor is divided, or has another shape.
    """
    try:
        yield
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ConfigError) as error:
        axis = next((name for name, size in (*_sizes(config.mesh),)[::-1] if size > 1), None)
        cause = error.__cause__ if isinstance(error, ConfigError) else error  # while a model is loaded
        if axis is None or cause is None or isinstance(cause, PurerlError) or not re.search(OF_DIVISION, str(cause)):
            raise
        first = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        need = "a model whose code can compute with divided parameters"
        got = f"{getattr(config.mesh, axis)}, and {cls.__name__}: {first}"
        raise ConfigError(f"mesh.{axis}", got=got, need=need, do=f"leave mesh.{axis} out") from error
