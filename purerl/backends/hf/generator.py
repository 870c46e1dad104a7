"""The generator in this process, for causal language models of transformers: its plugin, and building it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from purerl.backends.hf.settings import GeneratorConfig as Config
from purerl.backends.hf.settings import with_dtype
from purerl.settings import Model

if TYPE_CHECKING:
    from purerl.backends.hf.sampling.engine import HFGenerator
    from purerl.protocols import Capabilities
    from purerl.system.memory_use import MemoryUse, Workload

__all__ = ["Config", "build", "capabilities", "memory", "preview"]


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
    generator = HFGenerator(config, load_model(with_dtype(config, model)), model)
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


def memory(config: Config, *, model: Model, workload: Workload) -> MemoryUse:
    """The memory of a generator of `model` on each rank, which is not built. Raises ConfigError as `preview`."""
    from purerl.backends.hf.memory.generator import memory_of_generator

    return memory_of_generator(config, model=model, workload=workload)
