"""The trainer for causal language models of Hugging Face's transformers: its settings, and how it is built.

`build` loads the model, makes it parallel (`parallel.py`), and only then creates the optimizer.

Parts that need torch or transformers are imported when a trainer is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, frozen
from attrs.converters import optional

from purerl.backends import training
from purerl.backends.hf.combinations import check_rounding, check_together
from purerl.backends.hf.lora import Lora, check_lora, notes_of
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.training.custom_optimizer import OptimizerSettings, check_custom, check_settings, to_optimizer
from purerl.errors import ConfigError
from purerl.settings import Model, at_least, boolean, one_of, setting
from purerl.system.devices.kinds import DEVICE

if TYPE_CHECKING:
    from purerl.backends.hf.training.engine import HFTrainer
    from purerl.protocols import Capabilities
    from purerl.system.memory_use import MemoryUse

__all__ = [
    "OUTPUTS",
    "Config",
    "adapter_rank",
    "build",
    "capabilities",
    "check",
    "check_model",
    "check_ranks",
    "compute_dtype",
    "depends_on_length",
    "memory",
    "preview",
    "replayed_routes",
]

OUTPUTS = (
    *("logp", "entropy", "sum_pi_squared", "topk_logp", "topk_tokens", "value", "log_partition"),
    "classifier_score",
)
"""Outputs that a trainer can be built for."""


@frozen(kw_only=True)
class Config(training.Config):
    """How a model is trained.

    Large micro-batches suit an accelerator. On a CPU nothing is gained beyond about a thousand tokens, and rows of more
    different lengths share a micro-batch, which costs padding.
    """

    optimizer: OptimizerSettings | None = setting(
        "an optimizer in place of AdamW, by the address of its class, such as torch.optim:Adafactor",
        default=None,
        converter=optional(to_optimizer),
    )
    max_tokens_per_microbatch: int = setting(
        "maximum of rows times tokens of the longest row in one forward pass; with packing, of the tokens of its rows; "
        "with mesh.sequence, of all its ranks",
        default=2048,
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
    compile: bool = setting(
        "compile each layer with torch.compile; the first steps take minutes, and rows (with packing, their line) are "
        "padded to multiples of 64 tokens",
        default=False,
        may_change="rounding",
        **boolean(),
    )
    cpu_offload: bool = setting(
        "keep parameters, gradients and moments in the memory of the CPU, if mesh divides them",
        default=False,
        may_change="rounding",
        **boolean(),
    )
    reshard_after_forward: bool = setting(
        "free the gathered parameters of a layer after its forward pass, and gather them again for its backward pass, "
        "if mesh divides them; false: faster, with a whole model in memory",
        default=True,
        may_change="rounding",
        **boolean(),
    )
    share_prefixes: bool | None = setting(
        "compute the common prefix of a group's rows once; if not given, true without packing, mesh.sequence and "
        "replay_routes, if the model allows it",
        default=None,
        may_change="rounding",
        **boolean(),
    )
    packing: bool = setting(
        "read the rows of a micro-batch in one line, with attention within each row, so that nothing is computed for "
        "padding; common prefixes are then computed for each row",
        default=False,
        may_change="rounding",
        **boolean(),
    )
    replay_routes: Literal["off", "old_logp", "generator"] = setting(
        "old_logp: in optimizer steps, each token goes through the experts that its router chose in the forward pass "
        "that computed old_logp; generator: through those that the generator has recorded, also in that pass; common "
        "prefixes are then computed for each row",
        default="off",
        **one_of("off", "old_logp", "generator"),
    )
    device: str = setting(
        DEVICE,
        default="auto",
        need="a device",
        valid=bool,
        may_change="rounding",
    )

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


def capabilities() -> Capabilities:
    """What a trainer can do with any model. A trainer that was built has the outputs that it was built for."""
    from purerl.protocols import Capabilities

    return Capabilities(outputs=frozenset(OUTPUTS))


def depends_on_length(config: Config) -> bool:
    """Whether learning rates depend on the number of optimizer steps of the run."""
    return config.depends_on_run


def compute_dtype(config: Config) -> str | None:
    """The dtype of matrix products, if it is not that of the weights."""
    return None if config.mixed_precision == "off" else config.mixed_precision


def adapter_rank(config: Config) -> int | None:
    """The rank of the adapter that is trained; None if the weights of the model are."""
    return None if config.lora is None else config.lora.rank


def replayed_routes(config: Config) -> str:
    """Who records the experts that the policy replays, as `purerl.config.replayed_routes.replayed_routes`."""
    return config.replay_routes


def check(config: Config, *, role: str, outputs: Sequence[str], updates: int | None) -> None:
    """Refuse settings that do not fit a run, before a model is loaded.

    outputs  what the algorithm needs of the model in `role`
    updates  optimizer steps of the run; 0 for a model that is not trained; None if it is not known yet

    Raises: ConfigError for an output that does not exist, a warm-up as long as the run, a decay that is longer than the
    schedule, and `top_k` without effect; and as `check_lora`.
    """
    if config.optimizer is not None and updates != 0:
        check_custom(config)
    if config.lora is not None:
        check_lora(config.lora, role=role, outputs=outputs if updates != 0 else ())
    training.check_outputs(outputs, OUTPUTS, role=role)
    training.check_steps(config, updates)
    training.check_top_k(config, outputs)


def check_ranks(config: Config, ranks: int) -> None:
    """Raise ConfigError if the mesh does not fit this number of ranks."""
    config.mesh.replicas(ranks)


def check_model(config: Config, *, model: Model, outputs: Sequence[str], is_trained: bool) -> None:
    """Refuse a model that has no such `outputs`, or that a setting does not fit, without loading it.

    Raises: ConfigError.
    """
    from purerl.backends.hf.decoder.architecture import architecture_of
    from purerl.backends.hf.decoder.backbone import decoder_of
    from purerl.backends.hf.decoder.preview import without_weights
    from purerl.backends.hf.model.fit import check_fit, reads_shapes
    from purerl.backends.hf.moe.replay import hook_routers
    from purerl.models.pretrained import dtype_of

    dtype = dtype_of(model) if is_trained else model.dtype
    _check_dtype(dtype, model, is_trained=is_trained)
    if is_trained and {"logp", "classifier_score"}.intersection(outputs):  # other models have the policy's settings
        check_rounding(config, has_narrow_weights=dtype in ("bfloat16", "auto") and config.lora is None)
    architecture = architecture_of(model, outputs, is_trained=is_trained)
    if reads_shapes(config, is_trained=is_trained):
        shapes = without_weights(model, device=config.device, architecture=architecture)
        check_fit(shapes, model, config, outputs=outputs, is_trained=is_trained)
    if config.replay_routes != "off" and is_trained and "logp" in outputs:
        hook_routers(decoder_of(without_weights(model, device=config.device)))


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of a trainer of `model`, which is not loaded. Raises ConfigError as `build`, where it can."""
    from purerl.backends.hf.decoder.images import reads_images
    from purerl.backends.hf.decoder.limits import attention_of, limits_of
    from purerl.backends.hf.decoder.preview import without_weights
    from purerl.backends.hf.model.fit import check_shapes
    from purerl.backends.hf.moe.router import coefficient_of
    from purerl.protocols import Capabilities

    module = without_weights(model, device=config.device)
    check_shapes(module, model, config)
    coefficient_of(config.router_aux_loss_coef, module.config)
    return Capabilities(
        **limits_of(module)._asdict(),
        outputs=frozenset(OUTPUTS),
        attention=attention_of(module),
        notes=notes_of(config.lora),
        images=reads_images(module) and config.mesh.tensor == 1,
    )


def memory(config: Config, **arguments: Any) -> MemoryUse:
    """The memory of a trainer on each rank, which is not built; the arguments are those of `memory_of_trainer`."""
    from purerl.backends.hf.memory.trainer import memory_of_trainer

    return memory_of_trainer(config, **arguments)


def build(config: Config, *, model: Model, role: str, outputs: Sequence[str], updates: int, seed: int) -> HFTrainer:
    """A trainer of `model` in `role` that computes `outputs`, for a run of `updates` optimizer steps.

    With 0 `updates` the model is not trained and has no optimizer. `seed` initializes heads; nothing else is random.

    Raises: ConfigError as `check`; for a mesh that does not fit the ranks or the model; for a model that cannot be
    loaded, whose logits cannot be reproduced, or that is to be trained with float16 weights.
    """
    import torch

    from purerl.backends.hf.mesh import open_mesh
    from purerl.backends.hf.model.fit import refused_by_code
    from purerl.backends.hf.model.freeze import freeze, frozen_names
    from purerl.backends.hf.model.load import load
    from purerl.backends.hf.moe.router import coefficient_of
    from purerl.backends.hf.training.allocator import keep_freed_memory
    from purerl.backends.hf.training.engine import HFTrainer
    from purerl.backends.hf.training.rounding import is_narrow
    from purerl.system.devices.accelerator import device_of

    check(config, role=role, outputs=outputs, updates=updates)
    if role != "policy" or not updates:  # other models have the settings of the policy
        config = evolve(config, replay_routes="off")
    device = device_of(config.device)
    _check_dtype(model.dtype, model, is_trained=updates > 0)
    mesh = open_mesh(config.mesh, device)
    if device.type == "cpu":
        keep_freed_memory()
    causal, module = load(config, model, mesh, outputs=outputs, is_trained=updates > 0, seed=seed)
    _check_dtype(str(causal.dtype).removeprefix("torch."), model, is_trained=updates > 0)  # "auto" is now known
    coefficient = coefficient_of(config.router_aux_loss_coef, causal.config) if updates else 0.0
    module, adapter = module.requires_grad_(updates > 0), None
    frozen = frozen_names(module, config.freeze) if updates else set[str]()
    if config.lora is not None and updates:
        from purerl.backends.hf.training.adapter import add_adapter

        adapter = add_adapter(module, config.lora, path=model.path, device=mesh.device, seed=seed, frozen=frozen)
    elif frozen:
        freeze(module, frozen)
    if updates and role == "policy":
        check_rounding(config, has_narrow_weights=any(p.requires_grad and is_narrow(p) for p in module.parameters()))
    eager = torch.compiler.set_stance("force_eager") if config.compile else nullcontext()
    with eager, refused_by_code(config, type(causal)):
        share = module.verify(causal, share=config.share_prefixes is not False and config.replay_routes == "off")
    if config.share_prefixes and updates and role == "policy" and not share:
        need = "a model that reads a prefix and then the suffixes after it as it reads whole rows"
        got = f"true, and {type(causal).__name__}"
        raise ConfigError("share_prefixes", got=got, need=need, do="leave share_prefixes out")
    return HFTrainer(
        config,
        module,
        model=model,
        updates=updates,
        mesh=mesh,
        share=share,
        router_coefficient=coefficient,
        adapter=adapter,
        seed=seed,
    )


def _check_dtype(dtype: str, model: Model, *, is_trained: bool) -> None:
    """Refuse to train float16 weights: squared gradients underflow in AdamW, and its steps become far too large."""
    if dtype == "float16" and is_trained:
        need = "float32 with trainer.mixed_precision=bfloat16, or bfloat16, for weights that are trained"
        raise ConfigError("dtype", got=f"{dtype}, of {model.path!r}", need=need, do="set it to float32")
