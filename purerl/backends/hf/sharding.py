"""A model that was sharded from outside by FSDP2's `fully_shard`: the settings that training needs, and its state.

FSDP2 averages gradients by default. After a forward pass without gradient, the outermost part of the model keeps full
copies of its parameters: the module shows the copies instead of the shards until the next backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from purerl.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

__all__ = ["check_sharding", "fsdp_parts", "restore_shards", "sum_gradients"]


def check_sharding(parameters: Mapping[str, Tensor]) -> bool:
    """Whether `parameters` are sharded. Raises ConfigError if only some of them are."""
    sharded = {name for name, parameter in parameters.items() if isinstance(parameter, DTensor)}
    if 0 < len(sharded) < len(parameters):
        plain = next(name for name in parameters if name not in sharded)
        raise ConfigError(
            "a model that is sharded in part",
            got=f"{len(sharded)} of {len(parameters)} trained parameters are sharded, and {plain!r} is not",
            need="all trained parameters, or none",
            do="also call fully_shard on the whole module, after its layers",
        )
    return bool(sharded)


def fsdp_parts(module: nn.Module) -> Sequence[FSDPModule]:
    """The parts of `module` that `fully_shard` was called on."""
    if not any(isinstance(parameter, DTensor) for parameter in module.parameters()):
        return ()
    from torch.distributed.fsdp import FSDPModule

    return tuple(part for part in module.modules() if isinstance(part, FSDPModule))


def sum_gradients(parts: Iterable[FSDPModule]) -> None:
    """Have `parts` sum gradients over ranks, by a plain sum, which every backend of torch.distributed has."""
    for part in parts:
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def restore_shards(parts: Iterable[FSDPModule]) -> None:
    """Free the full copies, so that the parameters of `parts` are their shards again."""
    for part in parts:
        part.reshard()
