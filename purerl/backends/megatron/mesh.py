"""The division of a model for Megatron-core among the ranks of a run: the settings, and the groups of ranks.

    ranks = pipeline x data x context x tensor, the last one counting fastest

    data      different rows, each with all weights but those of experts
    context   the same rows, each rank a part of the positions, with all weights but those of experts
    tensor    the same rows, each rank a part of every layer's matrices
    pipeline  the same rows, each rank a part of the layers

The ranks of an expert group are neighbors in one stage, and may be tensor, context and data ranks: each has other
experts, as whole matrices, and they exchange tokens. Without expert groups, tensor ranks split the matrices of experts
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import count, no_effect, switch

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from purerl.ranks import Ranks

__all__ = ["Groups", "MegatronMesh", "current_device", "open_device", "open_groups"]


@frozen(kw_only=True)
class MegatronMesh:
    """Sizes of groups of ranks. Data ranks are as many as the product of tensor, context and pipeline leaves."""

    tensor: int = count("ranks among which the matrices of each layer are split")
    context: int = count(
        "ranks among which the positions of each row are divided; attention exchanges heads for positions (Ulysses)"
    )
    pipeline: int = count("ranks among which the layers are divided, the same number for each")
    expert: int = count(
        "ranks among which the experts of each layer are divided; tensor then does not split the matrices of experts"
    )
    sequence_parallel: bool = switch(
        "split activations between the matrices of a layer among the tensor ranks, by positions; experts need it with "
        "tensor above 1"
    )

    def __attrs_post_init__(self) -> None:
        if self.sequence_parallel and self.tensor == 1:
            raise no_effect("mesh.sequence_parallel", True, "mesh.tensor above 1")  # noqa: FBT003 - the value

    @property
    def expert_tensor(self) -> int:
        """Ranks among which the matrices of experts are split."""
        return self.tensor if self.expert == 1 else 1

    def data(self, ranks: int) -> int:
        """The number of data ranks among this number of ranks. Raises ConfigError if the sizes do not fit them."""
        model = self.tensor * self.context * self.pipeline
        if ranks % model:
            product = f"tensor {self.tensor} x context {self.context} x pipeline {self.pipeline}"
            got = f"{product} = {model}, with {_number(ranks)}"
            do = f"start a multiple of {model} ranks (with Ray placement.trainers.count), or change trainer.mesh"
            raise ConfigError("mesh", got=got, need="a product that divides the number of ranks", do=do)
        stage = ranks // self.pipeline
        if stage % self.expert:
            got = f"{self.expert}, with {_number(stage)} in each stage of the pipeline"
            raise ConfigError("mesh.expert", got=got, need="a number that divides that of these ranks")
        return ranks // model


def _number(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


class Groups(NamedTuple):
    """The groups that this rank belongs to.

    all            every rank
    data           the ranks that read different rows
    tensor         the ranks that split the matrices of this rank's layers
    context        the ranks that have the other positions of its rows, in their order
    positions      the ranks that may have other positions of its rows between matrices: tensor and context ranks
    pipeline       the ranks that have the other layers, in their order
    expert         the ranks that have the other experts
    expert_tensor  the ranks that split the matrices of this rank's experts
    device         of the computation
    """

    all: Ranks
    data: Ranks
    tensor: ProcessGroup
    context: ProcessGroup
    positions: ProcessGroup
    pipeline: ProcessGroup
    expert: ProcessGroup
    expert_tensor: ProcessGroup
    device: torch.device

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank has the last layers, and with them the outputs of the model."""
        return self.pipeline.rank() == self.pipeline.size() - 1

    @property
    def is_source(self) -> bool:
        """Whether this rank is the one that reports the outputs of its rows."""
        return self.is_last_stage and self.positions.rank() == 0


_opened: list[tuple[object, MegatronMesh]] = []  # the process group of Megatron's groups, and their mesh


def open_groups(mesh: MegatronMesh) -> Groups:
    """The groups of this rank. Collective when they are opened first.

    Megatron-core has one set of groups in a process, which all trainers share.

    Raises: ConfigError if `mesh` does not fit the ranks, if another trainer has another one, and without a GPU.
    """
    from megatron.core import parallel_state  # pyright: ignore[reportMissingImports]
    from torch import distributed as dist

    from purerl.ranks import Ranks, check_members, current_ranks
    from purerl.system.loopback import loopback_variables, with_variables

    ranks = current_ranks()
    mesh.data(ranks.size)
    device = open_device(ranks)
    if not dist.is_initialized():
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - torch documents it
        with with_variables(loopback_variables()):
            dist.init_process_group(store=store, rank=0, world_size=1)
    if not _opened or _opened[0][0] is not dist.group.WORLD:
        _initialize(mesh)
        for group in [*dist.distributed_c10d._world.pg_map]:  # noqa: SLF001 - Megatron-core has no list of its groups
            check_members(group)
        _opened[:] = [(dist.group.WORLD, mesh)]
    if _opened[0][1] != mesh:
        need = f"{_opened[0][1]}: all roles that Megatron-core trains have one mesh"
        raise ConfigError("mesh", got=str(mesh), need=need, do="write the same mesh for every role")
    data = parallel_state.get_data_parallel_group()
    return Groups(
        all=ranks,
        data=Ranks(data.rank(), data.size(), data),
        tensor=parallel_state.get_tensor_model_parallel_group(),
        context=parallel_state.get_context_parallel_group(),
        positions=parallel_state.get_tensor_and_context_parallel_group(),
        pipeline=parallel_state.get_pipeline_model_parallel_group(),
        expert=parallel_state.get_expert_model_parallel_group(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_group(),
        device=device,
    )


def current_device() -> torch.device:
    """The GPU that Megatron-core uses in this process."""
    import torch

    return torch.device(torch.cuda.current_device())


def open_device(ranks: Ranks) -> torch.device:
    """The GPU of this rank, which Megatron-core uses from now on. Raises ConfigError if there is none."""
    import os

    import torch

    try:
        torch.cuda.init()
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", ranks.rank)))
        return current_device()
    except (RuntimeError, AssertionError) as error:
        need, do = "a GPU for each rank: megatron-core has no layers for a CPU", "set trainer.kind to hf"
        raise ConfigError("kind", got=f"megatron: {str(error).splitlines()[0]}", need=need, do=do) from error


def _initialize(mesh: MegatronMesh) -> None:
    from megatron.core import parallel_state, tensor_parallel  # pyright: ignore[reportMissingImports]

    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=mesh.tensor,
        pipeline_model_parallel_size=mesh.pipeline,
        context_parallel_size=mesh.context,
        expert_model_parallel_size=mesh.expert,
        expert_tensor_parallel_size=mesh.expert_tensor,
        create_gloo_process_groups=False,
    )
    # Dropout is off and weights are read from files, but some of Megatron's layers fork these states.
    tensor_parallel.model_parallel_cuda_manual_seed(0)
