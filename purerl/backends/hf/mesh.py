"""The division of the work on one model among the ranks of a run: the settings, and the groups of ranks.

    ranks = replicate x shard x sequence x tensor, the last one counting fastest

    replicate, shard   different rows: these are the data ranks
    sequence           the same rows, each rank a part of every sequence
    tensor             the same rows, each rank a part of every layer's matrices

Parameters, gradients and AdamW's moments are divided among shard x sequence x tensor ranks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import at_least, count, setting

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from purerl.ranks import Ranks

__all__ = ["Mesh", "RankMesh", "check_divides", "open_mesh"]


@frozen(kw_only=True)
class Mesh:
    """The sizes of the groups of ranks. Their product is the number of ranks."""

    shard: int = count(
        "ranks that read different rows, with parameters, gradients and moments divided among them (FSDP2)"
    )
    replicate: int | None = setting(
        "ranks, or groups of them, that read different rows, each with a copy of the model; if not given, as many as "
        "the other sizes leave",
        default=None,
        may_change="rounding",
        **at_least(1),
    )
    tensor: int = count(
        "ranks among which the matrices of each layer are split, by the model's own plan in transformers"
    )
    sequence: int = count("ranks among which each sequence is split; attention exchanges heads for positions (Ulysses)")

    @property
    def is_divided(self) -> bool:
        """Whether a rank holds only a part of each parameter."""
        return self.shard * self.sequence * self.tensor > 1

    def replicas(self, ranks: int) -> int:
        """The size of `replicate` with this number of ranks. Raises ConfigError if the sizes do not fit them."""
        rest = self.shard * self.sequence * self.tensor
        replicas = self.replicate or max(1, ranks // rest)
        if replicas * rest == ranks:
            return replicas
        sizes = {"shard": self.shard, "replicate": self.replicate, "tensor": self.tensor, "sequence": self.sequence}
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size and (size > 1 or self.replicate))
        number = "1 rank" if ranks == 1 else f"{ranks} ranks"
        need = "a product that is the number of ranks" if self.replicate else "a product that divides it"
        do = f"start {replicas * rest} ranks (with Ray placement.trainers.count), or change trainer.mesh"
        raise ConfigError("mesh", got=f"{product} = {replicas * rest}, with {number}", need=need, do=do)


def check_divides(name: str, size: int, what: str, number: int) -> None:
    """Raise ConfigError if the `size` of `name` in a mesh does not divide the `number` of `what` in a model."""
    if number % size:
        divisors = ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
        raise ConfigError(f"mesh.{name}", got=f"{size}, and {number} {what}", need=f"one of: {divisors}")


class RankMesh(NamedTuple):
    """The groups that this rank belongs to.

    all         every rank
    data        the ranks that read different rows, one for each group of ranks that read the same ones
    device      of the computation
    parameters  the ranks among which FSDP2 divides parameters, and those with copies; None: nothing is divided
    tensor      the ranks among which matrices are split; None if there is no `parameters`
    sequence    the ranks that read parts of the same sequences; None: sequences are not split
    """

    all: Ranks
    data: Ranks
    device: torch.device
    parameters: DeviceMesh | None = None
    tensor: DeviceMesh | None = None
    sequence: ProcessGroup | None = None


def open_mesh(mesh: Mesh, device: torch.device) -> RankMesh:
    """The groups of this rank. Collective if something is divided. Raises ConfigError if `mesh` does not fit."""
    from purerl.ranks import Ranks, current_ranks, value_of_group

    ranks = current_ranks()
    replicas = mesh.replicas(ranks.size)
    if not mesh.is_divided:
        return RankMesh(ranks, ranks, device)
    sizes = (replicas, mesh.shard, mesh.sequence, mesh.tensor)
    create = partial(_device_meshes, sizes, device.type)
    of_parameters, of_rows = value_of_group(("meshes", sizes, device.type), create)
    data = of_rows["data"]
    return RankMesh(
        all=ranks,
        data=Ranks(data.get_local_rank(), data.size(), data.get_group()),
        device=device,
        parameters=of_parameters["replicate", "shard"] if replicas > 1 else of_parameters["shard"],
        tensor=of_parameters["tensor"],
        sequence=of_rows["sequence"].get_group() if mesh.sequence > 1 else None,
    )


def _device_meshes(sizes: tuple[int, int, int, int], device_type: str) -> tuple[DeviceMesh, DeviceMesh]:
    """The ranks by what they hold, and by what they read. Trainers of one process group share them. Collective."""
    from torch.distributed.device_mesh import init_device_mesh

    from purerl.ranks import check_members

    replicas, shard, sequence, tensor = sizes
    names, of_rows = ("replicate", "shard", "tensor"), ("data", "sequence", "copies")
    meshes = (
        init_device_mesh(device_type, (replicas, shard * sequence, tensor), mesh_dim_names=names),
        init_device_mesh(device_type, (replicas * shard, sequence, tensor), mesh_dim_names=of_rows),
    )
    for group in (group for mesh in meshes for group in mesh.get_all_groups()):
        check_members(group)
    return meshes
