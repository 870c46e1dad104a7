"""Settings of the HF trainer that do not fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purerl.errors import ConfigError
from purerl.settings import no_effect

if TYPE_CHECKING:
    from purerl.backends.hf.trainer import Config as HFTrainerConfig

__all__ = ["check_rounding", "check_together"]


def check_together(config: HFTrainerConfig) -> None:
    """Raise ConfigError for settings that exclude each other, and for one without effect beside the others."""
    if config.compile and config.recompute == "selective":
        need = "layers or none with compile: single operations of a compiled layer cannot be kept"
        raise ConfigError("recompute", got="selective", need=need, do="set it to layers")
    if config.lora is not None and config.mesh.tensor > 1:
        need = "1 with lora: matrices that are split have no adapter"
        raise ConfigError("mesh.tensor", got=config.mesh.tensor, need=need, do="use mesh.shard, or leave lora out")
    _check_share_prefixes(config)
    changed = {"cpu_offload": config.cpu_offload, "reshard_after_forward": not config.reshard_after_forward}
    for name in (name for name, is_changed in changed.items() if is_changed and not config.mesh.is_divided):
        need = "parameters that are divided among ranks: trainer.mesh.shard, tensor or sequence above 1"
        raise no_effect(name, getattr(config, name), need)


def _check_share_prefixes(config: HFTrainerConfig) -> None:
    if config.packing and config.share_prefixes:
        need = "false with packing, which reads each row as a whole"
        do = "leave packing out if groups have long common prompts, otherwise leave share_prefixes out"
        raise ConfigError("share_prefixes", got=True, need=need, do=do)
    if config.mesh.sequence > 1 and config.share_prefixes:
        need = "false with mesh.sequence, whose ranks read parts of whole rows"
        raise ConfigError("share_prefixes", got=True, need=need, do="leave share_prefixes out")
    if config.replay_routes != "off" and config.share_prefixes:
        need = "false with replay_routes: each row has its own record of the experts of its prefix"
        raise ConfigError("share_prefixes", got=True, need=need, do="leave share_prefixes out")


def check_rounding(config: HFTrainerConfig, *, has_narrow_weights: bool) -> None:
    """Raise ConfigError if `rounding` is set and no weight that is trained is in bfloat16."""
    if config.rounding is not None and not has_narrow_weights:
        need = "weights that are trained in bfloat16: model.dtype, and no lora, whose matrices are in float32"
        raise no_effect("rounding", config.rounding, need)
