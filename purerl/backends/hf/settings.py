"""Settings of the trainer and of the generator for models of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from attrs import evolve, fields_dict, frozen
from attrs.converters import optional

from purerl.backends import training
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.backends.mismatch_growth import growth_setting
from purerl.errors import ConfigError
from purerl.settings import Model, at_least, boolean, check_strings, count, no_effect, one_of, setting, switch
from purerl.system.devices.kinds import DEVICE

__all__ = [
    "OPTIMIZER_ARGUMENTS",
    "GeneratorConfig",
    "OptimizerSettings",
    "TrainerConfig",
    "check_rounding",
    "check_settings",
    "check_together",
    "same_device",
    "to_optimizer",
    "with_dtype",
]

OPTIMIZER_ARGUMENTS = {"lr": "trainer.lr", "weight_decay": "trainer.weight_decay"}
"""Arguments of optimizers that are settings of their own."""


@frozen
class OptimizerSettings:
    """An optimizer in place of AdamW. In settings a string stands for the class with that address."""

    factory: str = setting("the class of the optimizer, as package.module:Class or file.py:Class", short=True)
    kwargs: Mapping[str, Any] = setting(
        "arguments of the class. Its learning rate and its weight decay are trainer.lr and trainer.weight_decay",
        factory=dict,
        hash=False,
    )
    parameters: Literal["all", "matrices"] = setting(
        "what it trains; matrices: weight matrices except embeddings and heads, as Muon needs. AdamW, with betas and "
        "eps, trains the others",
        default="all",
        **one_of("all", "matrices"),
    )

    def __attrs_post_init__(self) -> None:
        check_strings("factory", [self.factory])
        for name in self.kwargs.keys() & OPTIMIZER_ARGUMENTS.keys():
            got, need = repr(self.kwargs[name]), f"{OPTIMIZER_ARGUMENTS[name]} instead"
            raise ConfigError(f"kwargs.{name}", got=got, need=need)


def to_optimizer(value: str | OptimizerSettings) -> OptimizerSettings:
    """The address of a class as the section that it stands for."""
    return OptimizerSettings(value) if isinstance(value, str) else value


@frozen(kw_only=True)
class TrainerConfig(training.Config):
    """Settings of the trainer.

    Large micro-batches suit an accelerator. On a CPU nothing is gained beyond about a thousand tokens, and rows of more
    different lengths share a micro-batch, which costs padding.
    """

    PLUGIN: ClassVar[str] = "purerl.backends.hf.trainer"

    optimizer: OptimizerSettings | None = setting(
        "an optimizer in place of AdamW, by the address of its class, such as torch.optim:Adafactor",
        default=None,
        converter=optional(to_optimizer),
    )
    max_tokens_per_microbatch: int | None = setting(
        "maximum of rows times tokens of the longest row in one forward pass; with packing, of the tokens of its rows; "
        "with mesh.sequence, of all its ranks; if neither this nor max_rows_per_microbatch is given, 2048",
        default=None,
        unit="tokens",
        may_change="rounding",
        **at_least(1),
    )
    mixed_precision: Literal["off", "bfloat16"] = setting(
        "bfloat16: autocast of the backbone, with the weights in their own dtype",
        default="off",
        **one_of("off", "bfloat16"),
    )
    rounding: Literal["compensated", "stochastic"] | None = setting(
        "how updates are stored in bfloat16 weights; compensated: the 16 bits that these lack are kept beside them, 2 "
        "bytes for each weight; stochastic: rounded up or down at random, so that nothing is lost on average; if not "
        "given, compensated",
        default=None,
        **one_of("compensated", "stochastic"),
    )
    lora: Lora | None = setting(
        "train an adapter, with the weights frozen in model.dtype; if not given, all weights are trained", default=None
    )
    freeze: tuple[str, ...] = setting(
        "parameters that are not trained: vision, which is all of a vision-language model but its language model; or "
        "patterns of names, such as visual.blocks.*",
        default=(),
        need="names that are not empty",
        valid=all,
    )
    mesh: Mesh = setting("how the ranks of a run divide the work", factory=Mesh, may_change="rounding")
    recompute: Literal["none", "layers", "selective"] = setting(
        "activations that are computed again in the backward pass, to save memory; layers: all of them; selective: not "
        "those of matrix products and attention",
        default="none",
        may_change="rounding",
        **one_of("none", "layers", "selective"),
    )
    compile: bool = switch(
        "compile each layer with torch.compile; the first steps take minutes, and rows (with packing, their pack) are "
        "padded to multiples of 64 tokens"
    )
    cpu_offload: bool = switch("keep parameters, gradients and moments in the memory of the CPU, if mesh divides them")
    reshard_after_forward: bool = switch(
        "free the gathered parameters of a layer after its forward pass, and gather them again for its backward pass, "
        "if mesh divides them; false: faster, with a whole model in memory",
        default=True,
    )
    share_prefixes: bool | None = switch(
        "compute the common prefix of a group's rows once; if not given, true without packing, mesh.sequence and "
        "replay_routes, if the model allows it",
        default=None,
    )
    packing: bool = switch(
        "read the rows of a micro-batch as one pack, with attention within each row, so that nothing is computed for "
        "padding; common prefixes are then computed for each row"
    )
    replay_routes: Literal["off", "old_logp", "generator"] = setting(
        "old_logp: in optimizer steps, each token goes through the experts that its router chose in the forward pass "
        "that computed old_logp; generator: through those that the generator has recorded, also in that pass; common "
        "prefixes are then computed for each row",
        default="off",
        **one_of("off", "old_logp", "generator"),
    )
    device: str = setting(DEVICE, default="auto", need="a device", valid=bool, may_change="rounding")

    def __attrs_post_init__(self) -> None:
        check_settings(self)
        super().__attrs_post_init__()
        check_together(self)

    @property
    def keeps_remainders(self) -> bool:
        """Whether the bits that bfloat16 weights lack are kept."""
        return self.rounding != "stochastic"

    @property
    def optimizer_address(self) -> str | None:
        """The address of the class in `optimizer`; None for AdamW."""
        return None if self.optimizer is None else self.optimizer.factory


def check_settings(config: TrainerConfig) -> None:
    """Refuse settings of `config` that have no effect with its optimizer, or do not fit it. Raises ConfigError."""
    if config.optimizer is None:
        return
    if config.mesh.is_divided:
        need = "AdamW with parameters that are divided among ranks"
        raise ConfigError("optimizer", got=config.optimizer.factory, need=need, do="leave optimizer or mesh out")
    for name in ("betas", "eps") if config.optimizer.parameters == "all" else ():
        if getattr(config, name) != fields_dict(type(config))[name].default:
            need = "AdamW, which optimizer replaces for all parameters"
            raise no_effect(name, getattr(config, name), need, f"set optimizer.kwargs.{name}, if the class has it")


def check_together(config: TrainerConfig) -> None:
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


def _check_share_prefixes(config: TrainerConfig) -> None:
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


def check_rounding(config: TrainerConfig, *, has_narrow_weights: bool) -> None:
    """Raise ConfigError if `rounding` is set and no weight that is trained is in bfloat16."""
    if config.rounding is not None and not has_narrow_weights:
        need = "weights that are trained in bfloat16: model.dtype, and no lora, whose matrices are in float32"
        raise no_effect("rounding", config.rounding, need)


@frozen(kw_only=True)
class GeneratorConfig:
    """Settings of the in-process generator."""

    PLUGIN: ClassVar[str] = "purerl.backends.hf.generator"

    max_num_seqs: int = count("sequences that are decoded together; further requests wait", 256)
    max_prefill_tokens: int = count("prompt tokens in one forward pass, padding included", 8192, unit="tokens")
    max_cached_tokens: int = count(
        "tokens of finished turns whose keys and values are kept for the next turns of their episodes; 0: none",
        262144,
        minimum=0,
        unit="tokens",
    )
    dtype: str | None = setting(
        "of the weights, and of keys and values: float32, bfloat16 or float16; if not given, the one that the trainer "
        "computes with, which is bfloat16 with trainer.mixed_precision and otherwise model.dtype",
        default=None,
        **one_of("float32", "bfloat16", "float16"),
    )
    copy_weights: bool = switch(
        "keep a copy of the weights of the policy where it could sample with those of the trainer; with trainer.lora "
        "the adapter is merged into the copy, which samples faster"
    )
    return_routes: bool = setting(
        "record the experts of each token, for trainer.replay_routes=generator", default=False, **boolean()
    )
    max_mismatch_growth: float | None = growth_setting()
    device: str = setting(DEVICE, default="auto", may_change="rounding")


def same_device(first: str, second: str) -> bool:
    """Whether two settings name one device: they are equal, or one of them is the default device."""
    from purerl.system.devices.accelerator import default_device

    names = {default_device().type if name == "auto" else name for name in (first, second)}
    return first == second or len(names) == 1


def with_dtype(config: GeneratorConfig, model: Model) -> Model:
    """`model` with `config.dtype`, if that is set."""
    return model if config.dtype is None else evolve(model, dtype=config.dtype)
