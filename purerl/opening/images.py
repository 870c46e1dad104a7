"""Images in a run: the processor that reads them, and the engines that must."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from purerl.data.chat import Chat
from purerl.data.examples import DataSet
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.models.processor import Processor, load_processor
from purerl.protocols import Capabilities, Generator, SupportsImages, Trainer
from purerl.settings import Model

__all__ = ["check_images", "open_processor", "use_images"]


def open_processor(model: Model, data: Iterable[DataSet], environment: EnvironmentSettings | None) -> Processor | None:
    """The processor of `model` if there are images in `data`, or in observations of `environment`.

    Raises: ConfigError as `load_processor`.
    """
    observes = environment is not None and environment.images
    if not observes and not any(each.example_format.has_images for each in data):
        return None
    return load_processor(model)


def use_images(chat: Chat, engines: Mapping[str, Trainer | Generator | None]) -> None:
    """Let `engines`, by what they are called in messages, read the images of `chat`, if it has any.

    Raises: ConfigError for one that cannot.
    """
    if chat.store is None:
        return
    opened = {name: engine for name, engine in engines.items() if engine is not None}
    check_images(chat, {name: engine.capabilities for name, engine in opened.items()})
    for engine in opened.values():
        cast(SupportsImages, engine).use_images(chat.store)


def check_images(chat: Chat, capabilities: Mapping[str, Capabilities]) -> None:
    """Refuse engines that cannot read the images of `chat`, by what they are called in messages.

    Raises: ConfigError.
    """
    unable = [name for name, each in capabilities.items() if not each.images]
    if chat.processor is not None and unable:
        need = "an engine and a model that read images"
        do = "see docs/how-to/images.md, or remove the images from the data"
        raise ConfigError(f"the {unable[0]}", got="prompts with images", need=need, do=do)
