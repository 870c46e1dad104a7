"""The trainer for models that Megatron-core divides: its settings, and how it is built.

Parts that need torch, transformers or Megatron-core are imported when a trainer is built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from purerl.backends.hf.schedules import NAMES, UNENDING, check_schedule, learning_rate
from purerl.backends.megatron.mesh import MegatronMesh
from purerl.devices.kinds import ANY_ACCELERATOR
from purerl.errors import ConfigError, nearest
from purerl.settings import Model, at_least, between, boolean, check_alternatives, one_of, setting

if TYPE_CHECKING:
    from purerl.backends.megatron.engine import MegatronTrainer
    from purerl.backends.megatron.shape import Shape
    from purerl.protocols import Capabilities
    from purerl.resources.memory import MemoryUse

__all__ = [
    "OUTPUTS",
    "Config",
    "build",
    "capabilities",
    "check",
    "check_installed",
    "check_model",
    "depends_on_length",
    "memory",
    "preview",
]

OUTPUTS = ("logp", "entropy", "sum_pi_squared", "topk_logp", "topk_tokens", "value", "log_partition")
"""Outputs that a trainer can be built for."""

_DTYPES = ("float32", "bfloat16", "float64", "auto")


@frozen(kw_only=True)
class Config:
    """How a model is trained.

    Weights in bfloat16 (`model.dtype`) have copies in float32, which the optimizer changes, and gradients in float32.
    """

    lr: float = setting("learning rate, at its maximum", default=1e-6, **between(0, 1))
    betas: tuple[float, float] = setting(
        "decay rates of AdamW's two moments",
        default=(0.9, 0.999),
        need="two numbers from 0 to below 1",
        valid=lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
    )
    eps: float = setting(
        "added to the root of AdamW's second moment", default=1e-8, need="above 0", valid=lambda x: 0 < x < math.inf
    )
    weight_decay: float = setting("decay of weight matrices, except embeddings", default=0.0, **between(0, 1e3))
    lr_scheduler: str = setting(
        "learning rate after the warm-up, by transformers' names",
        default="constant",
        need=f"one of: {', '.join(NAMES)}",
    )
    lr_scheduler_kwargs: Mapping[str, Any] = setting(
        "arguments of the schedule, as of the hf trainer",
        factory=dict,
        hash=False,  # a dict has no hash, and the settings are a key in `purerl.planning`
    )
    warmup_steps: int | None = setting(
        "optimizer steps in which the learning rate rises; if neither this nor warmup_ratio is given, none",
        default=None,
        unit="optimizer steps",
        **at_least(0),
    )
    warmup_ratio: float | None = setting(
        "the same as a fraction of all optimizer steps of the run",
        default=None,
        need="from 0 to below 1",
        valid=lambda x: 0 <= x < 1,
    )
    min_lr_ratio: float = setting("final learning rate, as a fraction of lr", default=0.0, **between(0, 1))
    max_grad_norm: float = setting(
        "a gradient with a larger norm is scaled down to it; inf: no clipping",
        default=1.0,
        need="above 0",
        valid=lambda x: x > 0,
    )
    max_tokens_per_microbatch: int = setting(
        "maximum of rows times tokens of the longest row in one forward pass",
        default=2048,
        unit="tokens",
        may_change="rounding",
        **at_least(1),
    )
    mesh: MegatronMesh = setting("how the ranks of a run divide the model", factory=MegatronMesh, may_change="rounding")
    distributed_optimizer: bool = setting(
        "divide the moments, and the copies of bfloat16 weights in float32, among the data ranks",
        default=False,
        may_change="rounding",
        **boolean(),
    )
    recompute: Literal["none", "layers", "selective"] = setting(
        "activations that are computed again in the backward pass, to save memory; layers: all of them; selective: "
        "those of attention",
        default="none",
        may_change="rounding",
        **one_of("none", "layers", "selective"),
    )
    router_aux_loss_coef: float | None = setting(
        "weight of the loss that balances the load of experts; if not given, the model's own if its configuration sets "
        "output_router_logits, otherwise 0",
        default=None,
        **between(0, 1e3),
    )
    top_k: int | None = setting(
        "number of most likely tokens in topk_tokens and topk_logp; if not given, 16, or the whole vocabulary",
        default=None,
        **at_least(1),
    )

    def __attrs_post_init__(self) -> None:
        check_schedule(self.lr_scheduler, self.lr_scheduler_kwargs, min_lr_ratio=self.min_lr_ratio)
        check_alternatives(self, "warmup_steps", "warmup_ratio")

    @property
    def device(self) -> str:
        """Where it computes: Megatron-core has no layers for a CPU."""
        return ANY_ACCELERATOR

    @property
    def has_length(self) -> bool:
        """Whether the learning rate depends on the number of optimizer steps of the run."""
        return self.lr_scheduler not in UNENDING or bool(self.warmup_ratio)

    def learning_rate(self, position: int, updates: int) -> float:
        """The learning rate of optimizer step `position` (from 0) in a run of `updates` optimizer steps."""
        ratio = round((self.warmup_ratio or 0.0) * updates)
        return learning_rate(
            position,
            lr=self.lr,
            lr_scheduler=self.lr_scheduler,
            warmup_steps=ratio if self.warmup_steps is None else self.warmup_steps,
            min_lr_ratio=self.min_lr_ratio,
            updates=updates,
            arguments=self.lr_scheduler_kwargs,
        )


def capabilities() -> Capabilities:
    """What a trainer can do with any model. A trainer that was built has the outputs that it was built for."""
    from purerl.protocols import Capabilities

    return Capabilities(outputs=frozenset(OUTPUTS))


def depends_on_length(config: Config) -> bool:
    """Whether learning rates depend on the number of optimizer steps of the run."""
    return config.has_length


def check(config: Config, *, role: str, outputs: Sequence[str], updates: int | None) -> None:
    """Refuse settings that do not fit a run, before a model is loaded.

    outputs  what the algorithm needs of the model in `role`
    updates  optimizer steps of the run; 0 for a model that is not trained; None if it is not known yet

    Raises: ConfigError for an output that does not exist, for a warm-up as long as the run, and for `top_k` without
    effect.
    """
    for name in outputs:
        if name not in OUTPUTS:
            got = f"the algorithm needs the output {name!r} of the {role}"
            do = "set the trainer's kind to hf" if name == "classifier_score" else nearest(name, OUTPUTS)
            raise ConfigError("kind", got=got, need=f"one of: {', '.join(OUTPUTS)}", do=do)
    if updates and config.warmup_steps and updates <= config.warmup_steps:
        need = f"less than the {updates} optimizer steps of the run"
        do = "lower it, use warmup_ratio, or make the run longer"
        raise ConfigError("warmup_steps", got=config.warmup_steps, need=need, do=do)
    if config.top_k is not None and outputs and "topk_tokens" not in outputs:
        need, do = "a role that reports its most likely tokens, such as a teacher", "set it in roles.teacher.trainer"
        raise ConfigError("top_k has no effect", got=config.top_k, need=need, do=do)


def check_installed(config: Config) -> None:
    """Raise ConfigError if megatron-core is not installed."""
    if find_spec("megatron") is None:
        need, do = "the library megatron-core", "pip install 'purerl[megatron]', or set trainer.kind to hf"
        raise ConfigError("kind", got="megatron, which is not installed", need=need, do=do)


def check_model(config: Config, *, model: Model, outputs: Sequence[str], is_trained: bool) -> None:
    """Refuse a model that is not supported, or that the mesh cannot divide, from its configuration alone."""
    _shape(config, model)


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of a trainer of `model`, which is not loaded. Raises ConfigError as `build`, where it can."""
    from purerl.protocols import Capabilities

    shape, _ = _shape(config, model)
    return Capabilities(max_sequence_length=shape.max_sequence_length, outputs=frozenset(OUTPUTS))


def memory(config: Config, **arguments: Any) -> MemoryUse:
    """The memory of a trainer on one rank, which is not built; the arguments are those of `memory_of_trainer`."""
    from purerl.backends.megatron.memory import memory_of_trainer

    return memory_of_trainer(config, **arguments)


def build(
    config: Config, *, model: Model, role: str, outputs: Sequence[str], updates: int, seed: int
) -> MegatronTrainer:
    """A trainer of `model` in `role` that computes `outputs`, for a run of `updates` optimizer steps.

    With 0 `updates` the model is not trained and has no optimizer. `seed` initializes heads; nothing else is random.

    Raises: ConfigError as `check` and `check_installed`; for a mesh that does not fit the ranks or the model; for a
    model that is not supported, whose files cannot be read, or that has float16 weights; and without a GPU.
    """
    import torch

    check(config, role=role, outputs=outputs, updates=updates)
    check_installed(config)
    shape, own = _shape(config, model)
    dtype = _dtype(config, model, own)

    from purerl.backends.hf.router import coefficient_of
    from purerl.backends.megatron.bridge import Bridge
    from purerl.backends.megatron.engine import MegatronTrainer
    from purerl.backends.megatron.export import read_heads
    from purerl.backends.megatron.files import WeightFiles
    from purerl.backends.megatron.mesh import open_groups
    from purerl.backends.megatron.model import build_model, has_vocabulary, mark_split, named_parameters
    from purerl.backends.megatron.names import weights_of
    from purerl.backends.megatron.schedule import Reader

    coefficient = coefficient_of(config.router_aux_loss_coef, own) if updates else 0.0
    groups = open_groups(config.mesh)
    module = build_model(shape, config.mesh, groups, dtype=dtype, recompute=config.recompute, outputs=outputs)
    parameters = named_parameters(module, config.mesh, groups)
    parameters = {name: parameter for name, parameter in parameters.items() if not name.startswith("heads.")}
    table = weights_of(shape, has_head=has_vocabulary(outputs))
    mark_split(parameters, table)
    bridge = Bridge(table, parameters, groups, layers=shape.layers, experts=shape.experts, dtype=dtype)
    with torch.no_grad():
        groups.all.on_all(lambda: bridge.read(WeightFiles(model)), "reading the weights of a model")
        read_heads(Path(model.path), getattr(module, "heads", {}), seed=seed)
    reader = Reader(module, module, shape, groups, top_k=_top_k(config.top_k, shape))
    options = {"model": model, "outputs": _outputs(outputs), "updates": updates}
    return MegatronTrainer(config, reader, bridge, **options, router_coefficient=coefficient)


def _outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """What a trainer that was built for `outputs` computes: with one of the vocabulary, all of them."""
    from purerl.backends.hf.module import HEADS, LANGUAGE_OUTPUTS

    language = LANGUAGE_OUTPUTS if any(name not in HEADS for name in outputs) else ()
    return (*language, *(name for name in outputs if name in HEADS))


def _shape(config: Config, model: Model) -> tuple[Shape, Any]:
    """The shape of `model` and its configuration. Raises ConfigError if it is not supported, or cannot be divided."""
    from transformers import AutoConfig

    from purerl.backends.megatron.shape import shape_of
    from purerl.backends.tokenizer import cannot_load

    try:
        own = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise cannot_load("model", model, error) from error
    shape, mesh = shape_of(own), config.mesh
    _check_divides("tensor", mesh.tensor, "key and value heads", shape.key_heads)
    _check_divides("tensor", mesh.tensor, "rows of an MLP", math.gcd(shape.ffn, shape.expert_ffn))
    _check_divides("pipeline", mesh.pipeline, "layers", shape.layers)
    if mesh.expert > 1 and not shape.experts:
        raise ConfigError("mesh.expert", got=mesh.expert, need="1 for a model without experts", do="leave it out")
    _check_divides("expert", mesh.expert, "experts", shape.experts)
    if shape.experts and mesh.tensor > 1 and not mesh.sequence_parallel:
        need = "true with mesh.tensor above 1 and a mixture of experts, which would get each token more than once"
        raise ConfigError("mesh.sequence_parallel", got=False, need=need)
    return shape, own


def _check_divides(name: str, size: int, what: str, number: int) -> None:
    if number % size:
        divisors = ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
        raise ConfigError(f"mesh.{name}", got=f"{size}, and {number} {what}", need=f"one of: {divisors}")


def _dtype(config: Config, model: Model, own: Any) -> Any:
    """The dtype of the weights. Raises ConfigError if Megatron-core has no optimizer for it."""
    import torch

    name = str(own.dtype or "float32").removeprefix("torch.") if model.dtype == "auto" else model.dtype
    if name not in _DTYPES:
        raise ConfigError("model.dtype", got=f"{name}, of {model.path!r}", need=f"one of: {', '.join(_DTYPES)}")
    if name == "float64" and config.distributed_optimizer:
        need = "float32 or bfloat16 with trainer.distributed_optimizer"
        raise ConfigError("model.dtype", got=name, need=need)
    return getattr(torch, name)


def _top_k(top_k: int | None, shape: Shape) -> int:
    if top_k is not None and top_k > shape.vocab_size:
        need = f"at most {shape.vocab_size}, the size of the vocabulary"
        raise ConfigError("top_k", got=top_k, need=need)
    return top_k or min(16, shape.vocab_size)
