"""The trainer for causal language models of Hugging Face's transformers: its plugin, and building it.

`build` loads the model, makes it parallel (`parallel.py`), and only then creates the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from purerl.backends import training
from purerl.backends.hf.lora import check_lora, notes_of
from purerl.backends.hf.settings import TrainerConfig as Config
from purerl.backends.hf.settings import check_rounding
from purerl.backends.hf.training.custom_optimizer import check_custom
from purerl.backends.training import OUTPUTS
from purerl.errors import ConfigError
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.training.engine import HFTrainer
    from purerl.protocols import Capabilities
    from purerl.system.memory_use import MemoryUse

__all__ = [
    "Config",
    "adapter_rank",
    "build",
    "capabilities",
    "check",
    "check_model",
    "check_ranks",
    "compute_dtype",
    "memory",
    "preview",
]


def capabilities() -> Capabilities:
    """The capabilities of a trainer with any model. A trainer that was built has the outputs that it was built for."""
    from purerl.protocols import Capabilities

    return Capabilities(outputs=frozenset(OUTPUTS))


def compute_dtype(config: Config) -> str | None:
    """The dtype of matrix products, if it is not that of the weights."""
    return None if config.mixed_precision == "off" else config.mixed_precision


def adapter_rank(config: Config) -> int | None:
    """The rank of the adapter that is trained; None if the weights of the model are."""
    return None if config.lora is None else config.lora.rank


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
    from purerl.backends.hf.model.fit import reads_shapes
    from purerl.backends.hf.moe.replay import hook_routers
    from purerl.models.pretrained import dtype_of

    dtype = dtype_of(model) if is_trained else model.dtype
    _check_dtype(dtype, model, is_trained=is_trained)
    if is_trained and {"logp", "classifier_score"}.intersection(outputs):  # other models have the policy's settings
        check_rounding(config, has_narrow_weights=dtype in ("bfloat16", "auto") and config.lora is None)
    architecture = architecture_of(model, outputs, is_trained=is_trained)
    if reads_shapes(config, is_trained=is_trained):
        shapes = without_weights(model, device=config.device, architecture=architecture)
        _check_fit(shapes, model, config, outputs=outputs, is_trained=is_trained)
    if config.replay_routes != "off" and is_trained and "logp" in outputs:
        hook_routers(decoder_of(without_weights(model, device=config.device)))


def _check_fit(
    shapes: PreTrainedModel, model: Model, config: Config, *, outputs: Sequence[str], is_trained: bool
) -> None:
    """Refuse settings that the model with these `shapes`, on the meta device, does not fit.

    Raises: ConfigError as `check_shapes`, and as `frozen_names`, `freeze` and `add_adapter` if the model is trained.
    """
    import torch

    from purerl.backends.hf.model.fit import check_shapes
    from purerl.backends.hf.model.freeze import freeze, frozen_names
    from purerl.backends.hf.model.token_model import TokenModel
    from purerl.backends.hf.training.adapter import add_adapter

    check_shapes(shapes, model, config)
    if not is_trained or not (config.lora or config.freeze):
        return
    with torch.random.fork_rng(devices=[]):
        module = TokenModel(shapes, outputs, path=Path(model.path), top_k=config.top_k)
    frozen = frozen_names(module, config.freeze)
    if config.lora is None:
        freeze(module, frozen)
    else:
        lora = evolve(config.lora, initial=None)
        add_adapter(module, lora, path=model.path, device=torch.device("meta"), seed=0, frozen=frozen)


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
    from purerl.backends.hf.model.self_test import verify
    from purerl.backends.hf.moe.router import coefficient_of
    from purerl.backends.hf.training.engine import HFTrainer
    from purerl.backends.hf.training.rounding import is_narrow
    from purerl.system.allocator import disable_malloc_trim
    from purerl.system.devices.accelerator import device_of

    check(config, role=role, outputs=outputs, updates=updates)
    if role != "policy" or not updates:  # other models have the settings of the policy
        config = evolve(config, replay_routes="off")
    device = device_of(config.device)
    _check_dtype(model.dtype, model, is_trained=updates > 0)
    mesh = open_mesh(config.mesh, device)
    if device.type == "cpu":
        disable_malloc_trim()
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
    may_share = config.share_prefixes is not False and config.replay_routes == "off"
    with eager, refused_by_code(config, type(causal)):
        share = module.gathered(partial(verify, causal, share=may_share))
    if config.share_prefixes and updates and role == "policy" and not share:
        need = "a model that reads a prefix and then the suffixes after it as it reads whole rows"
        got = f"true, and {type(causal).__name__}"
        raise ConfigError("share_prefixes", got=got, need=need, do="leave share_prefixes out")
    options = {"share": share, "router_coefficient": coefficient, "adapter": adapter, "seed": seed}
    return HFTrainer(config, module, model=model, updates=updates, mesh=mesh, **options)


def _check_dtype(dtype: str, model: Model, *, is_trained: bool) -> None:
    """Refuse to train float16 weights: squared gradients underflow in AdamW, and its steps become far too large."""
    if dtype == "float16" and is_trained:
        need = "float32 with trainer.mixed_precision=bfloat16, or bfloat16, for weights that are trained"
        raise ConfigError("dtype", got=f"{dtype}, of {model.path!r}", need=need, do="set it to float32")
