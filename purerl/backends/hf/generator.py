"""The generator in this process, for causal language models of transformers: its plugin, and building it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from purerl.backends.hf.settings import GeneratorConfig as Config
from purerl.backends.hf.settings import TrainerConfig, same_device, with_dtype
from purerl.settings import Model

if TYPE_CHECKING:
    from purerl.backends.hf.sampling.engine import HFGenerator
    from purerl.backends.hf.training.engine import HFTrainer
    from purerl.protocols import Capabilities
    from purerl.system.memory_use import MemoryUse

__all__ = ["Config", "build", "build_shared", "capabilities", "copy_reason", "memory", "preview"]


def capabilities() -> Capabilities:
    """The capabilities of a generator with any model. The model limits the length of sequences."""
    from purerl.backends.hf.sampling.capabilities import CAPABILITIES

    return CAPABILITIES


def build(config: Config, *, model: Model, seed: int) -> HFGenerator:
    """A generator of `model`. `seed` has no effect, because each request has its own seed.

    Raises: ConfigError for a device that does not exist, for a model that cannot be loaded or has layers that store
    anything other than keys and values, and for `return_routes` with one whose routers cannot be recorded.
    """
    from purerl.backends.hf.decoder.loading import load_model
    from purerl.backends.hf.sampling.engine import HFGenerator
    from purerl.system.devices.accelerator import device_of

    device_of(config.device)
    causal = load_model(with_dtype(config, model)).requires_grad_(requires_grad=False)
    generator = HFGenerator(config, causal, model)
    generator.probe()
    return generator


def copy_reason(config: Config, *, model: Model, trainer: Any) -> str | None:
    """Why a generator has a copy of the weights of the policy; None: it can sample with those of the trainer.

    model    as the generator loads it
    trainer  settings of the trainer
    """
    if not isinstance(trainer, TrainerConfig):
        return "the trainer is another engine"
    dtype, device, routes = config.dtype, config.device, trainer.replay_routes
    reasons = {
        "generator.copy_weights is true": config.copy_weights,
        f"generator.dtype is {dtype}, and the trainer computes in {model.dtype}": dtype not in (None, model.dtype),
        f"generator.device is {device}, and trainer.device is {trainer.device}": not same_device(
            device, trainer.device
        ),
        "trainer.compile is true": trainer.compile,
        f"trainer.replay_routes is {routes}": routes != "off",
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def build_shared(config: Config, *, trainer: HFTrainer, model: Model, seed: int) -> HFGenerator:
    """A generator that samples with the weights of `trainer`. The other arguments are those of `build`.

    Raises: ConfigError as `build`.
    """
    from purerl.backends.hf.sampling.engine import HFGenerator
    from purerl.backends.hf.weights.shared import SharedWeights

    generator = HFGenerator(config, trainer.decoding_model(), model, SharedWeights(trainer.parameters))
    generator.probe()
    return generator


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of a generator of `model`, which is not loaded. Raises ConfigError as `build`, where it can."""
    from purerl.backends.hf.decoder.images import reads_images
    from purerl.backends.hf.decoder.limits import check_layers, limits_of
    from purerl.backends.hf.decoder.preview import without_weights
    from purerl.backends.hf.sampling.expert_recorder import RouteRecorder

    module = without_weights(model, device=config.device)
    check_layers(module)
    if config.return_routes:
        RouteRecorder(module)
    limit = limits_of(module).max_sequence_length
    images = reads_images(module)
    return evolve(capabilities(), max_sequence_length=limit, images=images, routes=config.return_routes)


def memory(config: Config, **arguments: Any) -> MemoryUse:
    """The memory of a generator on each rank, which is not built; the arguments are those of `memory_of_generator`."""
    from purerl.backends.hf.memory.generator import memory_of_generator

    return memory_of_generator(config, **arguments)
