"""The capabilities of a trainer of Megatron-core for a model, from the configuration of the model alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from purerl.backends.hf.mesh import check_divides
from purerl.backends.megatron.settings import TrainerConfig
from purerl.backends.training import OUTPUTS
from purerl.errors import ConfigError
from purerl.settings import Model

if TYPE_CHECKING:
    from purerl.backends.megatron.shape import Shape
    from purerl.protocols import Capabilities

__all__ = ["divided_shape", "preview"]


def preview(config: TrainerConfig, *, model: Model) -> Capabilities:
    """The capabilities of a trainer of `model`, which is not loaded. Raises ConfigError as `build`, where it can."""
    from purerl.protocols import Capabilities

    shape, _ = divided_shape(config, model)
    return Capabilities(max_sequence_length=shape.max_sequence_length, outputs=frozenset(OUTPUTS))


def divided_shape(config: TrainerConfig, model: Model) -> tuple[Shape, Any]:
    """The shape of `model` and its configuration. Raises ConfigError if it is not supported, or cannot be divided."""
    from purerl.backends.megatron.shape import shape_of
    from purerl.models.pretrained import config_of

    own = config_of(model)
    shape, mesh = shape_of(own), config.mesh
    check_divides("tensor", mesh.tensor, "key and value heads", shape.key_heads)
    check_divides("tensor", mesh.tensor, "rows of an MLP", math.gcd(shape.ffn, shape.expert_ffn))
    check_divides("context", mesh.context, "attention heads of a tensor rank", shape.heads // mesh.tensor)
    check_divides("pipeline", mesh.pipeline, "layers", shape.layers)
    if mesh.expert > 1 and not shape.experts:
        raise ConfigError("mesh.expert", got=mesh.expert, need="1 for a model without experts", do="leave it out")
    check_divides("expert", mesh.expert, "experts", shape.experts)
    if shape.experts and mesh.tensor > 1 and not mesh.sequence_parallel:
        need = "true with mesh.tensor above 1 and a mixture of experts, which would get each token more than once"
        raise ConfigError("mesh.sequence_parallel", got=False, need=need)
    return shape, own
