"""The trainer for causal language models of Hugging Face's transformers: its settings, and how it is built.

`build` loads the model as a plain module, applies `parallelize` to it, and only then creates the optimizer. So the
model can be sharded from outside:

    def shard(module):
        for layer in layers_of(module):
            fully_shard(layer)
        fully_shard(module)

    build(config, model=model, role="policy", outputs=("logp",), updates=100, seed=0, parallelize=shard)

Parts that need torch or transformers are imported when a trainer is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from attrs import frozen

from purerl.errors import ConfigError, nearest
from purerl.settings import Model, at_least, between, boolean, check_alternatives, no_effect, one_of, setting

if TYPE_CHECKING:
    from torch import nn

    from purerl.backends.hf.engine import HFTrainer
    from purerl.protocols import Capabilities

__all__ = ["OUTPUTS", "Config", "build", "capabilities", "check", "depends_on_length", "preview"]

LRScheduler = Literal["constant", "linear", "cosine"]
OUTPUTS = ("logp", "entropy", "sum_pi_squared", "topk_logp", "topk_tokens", "value", "log_partition")
"""Outputs that a trainer can be built for."""


@frozen(kw_only=True)
class Config:
    """How a model is trained.

    Small updates vanish in bfloat16 weights (`model.dtype`), but not in float32 weights with `mixed_precision`. Large
    micro-batches suit an accelerator. On a CPU nothing is gained beyond about a thousand tokens, and rows of more
    different lengths share a micro-batch, which costs padding.
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
    weight_decay: float = setting("AdamW's decay of weight matrices, except embeddings", default=0.0, **between(0, 1e3))
    lr_scheduler: LRScheduler = setting(
        "learning rate after the warm-up", default="constant", **one_of(*get_args(LRScheduler))
    )
    lr_scheduler_steps: int | None = setting(
        "optimizer steps after which the schedule has reached its end; if not given, those of the run. With it, the "
        "learning rate does not depend on the length of the run",
        default=None,
        unit="optimizer steps",
        **at_least(1),
    )
    warmup_steps: int | None = setting(
        "optimizer steps in which the learning rate rises; if neither this nor warmup_ratio is given, none",
        default=None,
        unit="optimizer steps",
        **at_least(0),
    )
    warmup_ratio: float | None = setting(
        "the same as a fraction of all optimizer steps of the schedule, which fits a run of any length",
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
    mixed_precision: Literal["off", "bfloat16"] = setting(
        "bfloat16: autocast of the backbone, with the weights in their own dtype",
        default="off",
        **one_of("off", "bfloat16"),
    )
    gradient_checkpointing: bool = setting(
        "recompute the activations of each layer in the backward pass, to save memory",
        default=False,
        may_change="rounding",
        **boolean(),
    )
    share_prefixes: bool = setting(
        "compute the common prefix of a group's rows once, if the model allows it",
        default=True,
        may_change="rounding",
        **boolean(),
    )
    top_k: int | None = setting(
        "number of most likely tokens in topk_tokens and topk_logp; if not given, 16, or the whole vocabulary",
        default=None,
        **at_least(1),
    )
    device: str = setting(
        "cpu, cuda:0, ...; auto: the accelerator if there is one",
        default="auto",
        need="a device",
        valid=bool,
        may_change="rounding",
    )

    def __attrs_post_init__(self) -> None:
        if self.lr_scheduler == "constant" and self.min_lr_ratio:
            need = "lr_scheduler linear or cosine: a constant learning rate stays at lr"
            raise ConfigError("min_lr_ratio has no effect", got=self.min_lr_ratio, need=need, do="leave it out")
        check_alternatives(self, "warmup_steps", "warmup_ratio")
        if self.lr_scheduler_steps is not None and not self.has_length:
            need = "lr_scheduler linear or cosine, or warmup_ratio: nothing else depends on the length of the schedule"
            raise no_effect("lr_scheduler_steps", self.lr_scheduler_steps, need)
        if self.lr_scheduler_steps is not None and self.lr_scheduler_steps <= (self.warmup_steps or 0):
            need = f"less than lr_scheduler_steps, {self.lr_scheduler_steps}"
            raise ConfigError("warmup_steps", got=self.warmup_steps, need=need)

    @property
    def has_length(self) -> bool:
        """Whether the learning rate depends on the number of optimizer steps of the schedule."""
        return self.lr_scheduler != "constant" or bool(self.warmup_ratio)

    def schedule_steps(self, updates: int) -> int:
        """The number of optimizer steps of the schedule in a run of `updates` optimizer steps."""
        return self.lr_scheduler_steps or updates

    def warmup(self, updates: int) -> int:
        """The number of warm-up steps in a run of `updates` optimizer steps."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round((self.warmup_ratio or 0.0) * self.schedule_steps(updates))


def capabilities() -> Capabilities:
    """What a trainer can do with any model. A trainer that was built has the outputs that it was built for."""
    from purerl.protocols import Capabilities

    return Capabilities(outputs=frozenset(OUTPUTS))


def depends_on_length(config: Config) -> bool:
    """Whether learning rates depend on the number of optimizer steps of the run."""
    return config.has_length and config.lr_scheduler_steps is None


def check(config: Config, *, role: str, outputs: Sequence[str], updates: int | None) -> None:
    """Refuse settings that do not fit a run, before a model is loaded.

    outputs  what the algorithm needs of the model in `role`
    updates  optimizer steps of the run; 0 for a model that is not trained; None if it is not known yet

    Raises: ConfigError for an output that does not exist, a warm-up as long as the run, and `top_k` without effect.
    """
    for name in outputs:
        if name not in OUTPUTS:
            got = f"the algorithm needs the output {name!r} of the {role}"
            raise ConfigError("kind", got=got, need=f"one of: {', '.join(OUTPUTS)}", do=nearest(name, OUTPUTS))
    if updates and config.warmup_steps and updates <= config.warmup_steps:
        need = f"less than the {updates} optimizer steps of the run"
        do = "lower it, use warmup_ratio, or make the run longer"
        raise ConfigError("warmup_steps", got=config.warmup_steps, need=need, do=do)
    if config.top_k is not None and outputs and "topk_tokens" not in outputs:
        need, do = "a role that reports its most likely tokens, such as a teacher", "set it in roles.teacher.trainer"
        raise ConfigError("top_k has no effect", got=config.top_k, need=need, do=do)


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of a trainer of `model`, which is not loaded. Raises ConfigError as `build`, where it can."""
    from purerl.backends.hf.limits import limits_of
    from purerl.backends.hf.preview import without_weights
    from purerl.protocols import Capabilities

    module = without_weights(model, device=config.device)
    return Capabilities(max_sequence_length=limits_of(module).max_sequence_length, outputs=frozenset(OUTPUTS))


def _unchanged(module: nn.Module) -> object:
    return module


def build(
    config: Config,
    *,
    model: Model,
    role: str,
    outputs: Sequence[str],
    updates: int,
    seed: int,
    parallelize: Callable[[nn.Module], object] = _unchanged,
) -> HFTrainer:
    """A trainer of `model` in `role` that computes `outputs`, for a run of `updates` optimizer steps.

    With 0 `updates` the model is not trained and has no optimizer. `seed` initializes heads; nothing else is random.
    `parallelize` changes the module in place before the optimizer is created, for example by `fully_shard`.

    Raises: ConfigError as `check`; for a model that cannot be loaded, whose logits cannot be reproduced, that is to be
    trained with float16 weights, or that `parallelize` has sharded only in part.
    """
    import torch

    from purerl.backends.hf.allocator import keep_freed_memory
    from purerl.backends.hf.device import device_of
    from purerl.backends.hf.engine import HFTrainer
    from purerl.backends.hf.model import load_model
    from purerl.backends.hf.module import LANGUAGE_OUTPUTS, TokenModel, logit_shape, recompute_layers
    from purerl.backends.hf.prefix import can_share
    from purerl.backends.hf.probe import probe
    from purerl.ranks import current_ranks

    check(config, role=role, outputs=outputs, updates=updates)
    device = device_of(config.device)
    if device.type == "cpu":
        keep_freed_memory()
    _check_dtype(model.dtype, model, updates)
    autocast = None if config.mixed_precision == "off" else torch.bfloat16
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        causal = load_model(model, headless=not set(outputs) & set(LANGUAGE_OUTPUTS))
        _check_dtype(str(causal.dtype).removeprefix("torch."), model, updates)  # "auto" is now known
        causal = causal.to(device).eval()
        probe(causal, logit_shape(causal.config))
        share = config.share_prefixes and can_share(causal)
        top_k = _top_k(config.top_k, causal.get_output_embeddings().weight.shape[0])
        module = TokenModel(causal, outputs, path=Path(model.path), autocast=autocast, top_k=top_k)
    if config.gradient_checkpointing:
        recompute_layers(module)
    module = module.to(device).requires_grad_(updates > 0)
    parallelize(module)
    return HFTrainer(config, module, updates=updates, ranks=current_ranks(), share=share)


def _top_k(top_k: int | None, vocab_size: int) -> int:
    if top_k is not None and top_k > vocab_size:
        raise ConfigError("trainer.top_k", got=top_k, need=f"at most {vocab_size}, the size of the vocabulary")
    return top_k or min(16, vocab_size)


def _check_dtype(dtype: str, model: Model, updates: int) -> None:
    """Refuse to train float16 weights: squared gradients underflow in AdamW, and its steps become far too large."""
    if dtype == "float16" and updates:
        need = "float32 with trainer.mixed_precision=bfloat16, or bfloat16, for weights that are trained"
        raise ConfigError("model.dtype", got=f"{dtype}, of {model.path!r}", need=need, do="set model.dtype to float32")
