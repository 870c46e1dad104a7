"""Settings of the trainer for models that Megatron-core divides."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from purerl.backends import training
from purerl.backends.megatron.mesh import MegatronMesh
from purerl.settings import one_of, setting, switch
from purerl.system.devices.kinds import ANY_ACCELERATOR

__all__ = ["TrainerConfig"]


@frozen(kw_only=True)
class TrainerConfig(training.Config):
    """Settings of the trainer.

    Weights in bfloat16 (`model.dtype`) have copies in float32, which the optimizer changes, and gradients in float32.
    """

    PLUGIN: ClassVar[str] = "purerl.backends.megatron.trainer"

    mesh: MegatronMesh = setting("how the ranks of a run divide the model", factory=MegatronMesh, may_change="rounding")
    distributed_optimizer: bool = switch(
        "divide the moments, and the copies of bfloat16 weights in float32, among the data and context ranks"
    )
    optimizer_offload: bool = switch(
        "keep the moments, and the copies of bfloat16 weights in float32, in the memory of the CPU, and compute AdamW "
        "there"
    )
    recompute: Literal["none", "layers", "selective"] = setting(
        "activations that are computed again in the backward pass, to save memory; layers: all of them; selective: "
        "those of attention",
        default="none",
        may_change="rounding",
        **one_of("none", "layers", "selective"),
    )
    replay_routes: Literal["off", "old_logp", "generator"] = setting(
        "old_logp: in optimizer steps, each token goes through the experts that its router chose in the forward pass "
        "that computed old_logp; generator: through those that the generator has recorded, also in that pass",
        default="off",
        **one_of("off", "old_logp", "generator"),
    )

    @property
    def device(self) -> str:
        """The device that it computes on: Megatron-core has no layers for a CPU."""
        return ANY_ACCELERATOR
