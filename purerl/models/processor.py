"""The processor of a vision-language model: the tokens that stand for an image, and the tensors that the model reads.

A chat template renders one placeholder for each image. The processor of transformers replaces it by an expansion, such
as one ``<|image_pad|>`` for each feature that the vision tower computes. It depends only on the size of the image.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.errors import ConfigError, ImageError
from purerl.images import Image, check_pillow, decode
from purerl.models.pretrained import config_of, loading
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Processor", "copy_processor", "has_processor", "load_processor", "merged"]

_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""The files of a processor, beside those of its tokenizer."""

_TRIED = ((56, 84), (168, 112))
"""Sizes of images on which the two ways to count the tokens of an image are compared."""


def has_processor(model: Model) -> bool:
    """Whether transformers has a class for the processor of `model`: it is a vision-language model."""
    return _class_of(model) is not None


def load_processor(model: Model) -> Processor:
    """The processor of `model`.

    Raises: ConfigError if the model has none, if it has no placeholder for images, or if a package is missing.
    """
    check_pillow()
    cls = _class_of(model)
    if cls is None:
        need = "a vision-language model of transformers, with the files of its processor"
        raise ConfigError("model", got=f"{model.path!r}, and images in its prompts", need=need)
    with loading("processor", model):
        try:
            processor = _images_only(cls).from_pretrained(
                model.path, revision=model.revision or "main", trust_remote_code=model.trust_remote_code
            )
        except ImportError as error:
            got, do = str(error).strip().splitlines()[0], "install the package"
            raise ConfigError(f"the processor of {model.path!r} cannot be loaded", got=got, do=do) from error
    if getattr(processor, "image_token", None) is None or getattr(processor, "image_processor", None) is None:
        need = "a processor of transformers with an image processor, and a token that stands for an image"
        raise ConfigError("model", got=f"{model.path!r}, with {cls.__name__}", need=need)
    return Processor(processor, load_tokenizer(model))


def copy_processor(model: Model, folder: Path) -> None:
    """Copy the files of the processor of `model` into `folder`, if it is a vision-language model."""
    from transformers.utils.hub import cached_file

    options: dict[str, Any] = {"revision": model.revision, "_raise_exceptions_for_missing_entries": False}
    for name in _FILES if has_processor(model) else ():
        if (file := cached_file(model.path, name, **options)) is not None:
            shutil.copyfile(file, folder / name)


def _class_of(model: Model) -> Any:
    """The class of transformers for the processor of `model`; None if there is none, or no configuration."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    try:
        return PROCESSOR_MAPPING.get(type(config_of(model)), None)
    except ConfigError:  # loading the model reports the problem
        return None


def _images_only(cls: Any) -> Any:
    """The class `cls` of processors without the part for videos, which cannot be loaded without torchvision."""

    class ImagesOnly(cls):
        """A processor of texts and images."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in super().get_attributes() if "video" not in name]

        @classmethod
        def from_args_and_dict(cls, args: Any, processor_dict: dict[str, Any], **kwargs: Any) -> Any:
            loaded = dict(zip(cls.get_attributes(), args, strict=True))
            parts = [loaded.get(name) for name in super().get_attributes()]  # None for that of videos
            return super().from_args_and_dict(parts, processor_dict, **kwargs)

    return ImagesOnly


class Processor:
    """The parts of transformers' `processor` that purerl needs; its tokens are those of `tokenizer`.

    image_token     the text of the placeholder of an image, in a rendered prompt
    image_token_id  its token
    """

    def __init__(self, processor: Any, tokenizer: Any) -> None:
        self._processor = processor
        self.image_token: str = processor.image_token
        self.image_token_id: int = tokenizer.convert_tokens_to_ids(self.image_token)
        self._expansions: dict[tuple[int, int], tuple[int, ...]] = {}

    @property
    def chat_template(self) -> str | None:
        """The chat template of the processor, for a tokenizer that has none."""
        return getattr(self._processor, "chat_template", None)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the settings of the image processor: with a content id, the key of what it computes."""
        settings = (
            f"{type(self._processor.image_processor).__name__} {self._processor.image_processor.to_json_string()}"
        )
        return blake2b(settings.encode(), digest_size=8).hexdigest()

    def expansion(self, image: Image) -> tuple[int, ...]:
        """The tokens that stand for `image`.

        Raises: ImageError as `Image.size`, and if the image processor refuses the size.
        """
        size = image.size
        if size not in self._expansions:
            try:
                count = self._count(size) if self._counts else None
                tokens = self._expand(size) if count is None else (self.image_token_id,) * count
            except (ValueError, ZeroDivisionError) as error:
                need = "a size that the image processor of the model accepts"
                raise ImageError(f"{image!r}", got=f"{size[0]} x {size[1]} pixels: {error}", need=need) from error
            self._expansions[size] = tokens
        return self._expansions[size]

    @cached_property
    def _counts(self) -> bool:
        """Whether an expansion is `_count` times the placeholder. Otherwise an image of the size must be processed."""
        try:
            return all(self._expand(size) == (self.image_token_id,) * self._count(size) for size in _TRIED)
        except (AttributeError, KeyError, NotImplementedError, TypeError):  # not every processor has the method
            return False

    def _count(self, size: tuple[int, int]) -> int:
        width, height = size
        counts = self._processor._get_num_multimodal_tokens(image_sizes=[(height, width)])  # noqa: SLF001 - for vLLM
        return int(counts["num_image_tokens"][0])

    def _expand(self, size: tuple[int, int]) -> tuple[int, ...]:
        """The expansion of an empty image of this size."""
        from PIL import Image as Pillow

        images = [Pillow.new("RGB", size)]
        encoded = self._processor(text=[self.image_token], images=images, add_special_tokens=False)
        return tuple(map(int, encoded["input_ids"][0]))

    def tensors(self, data: bytes) -> dict[str, Tensor]:
        """The tensors of an encoded image: its pixels, and for some models the shape of their grid.

        Raises: ImageError as `decode`.
        """
        return dict(self._processor.image_processor([decode(data)], return_tensors="pt"))

    def with_expansions(self, tokens: Sequence[int], images: Sequence[Image]) -> list[int]:
        """`tokens` with the expansion of each of `images`, in order, in place of its placeholder.

        Raises: ImageError unless there are as many placeholders as images.
        """
        places = [k for k, token in enumerate(tokens) if token == self.image_token_id]
        if len(places) != len(images):
            got = f"{len(places)} placeholders {self.image_token} in the rendered text, and {len(images)} images"
            need = "as many of both"
            do = "use a chat template that shows images, and no text that spells the placeholder"
            raise ImageError("the images of a conversation", got=got, need=need, do=do)
        expanded, start = list[int](), 0
        for place, image in zip(places, images, strict=True):
            expanded += [*tokens[start:place], *self.expansion(image)]
            start = place + 1
        return [*expanded, *tokens[start:]]

    def image_ids(self, tokens: Sequence[int], images: Sequence[Image]) -> list[int]:
        """For each of `tokens`, which have the expansions of `images` in order, the id of its image; 0: none."""
        ids, start = [0] * len(tokens), 0
        for image in images:
            expansion = list(self.expansion(image))
            start = tokens.index(expansion[0], start)
            while list(tokens[start : start + len(expansion)]) != expansion:
                start = tokens.index(expansion[0], start + 1)
            ids[start : start + len(expansion)] = [image.id] * len(expansion)
            start += len(expansion)
        return ids


def merged(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of several images as those of one call of the model.

    Most have the images along the first axis. Those with five axes have the tiles of an image along the second one.
    """
    import torch

    return {
        name: torch.cat([part[name] for part in parts], 1 if value.ndim == 5 or name == "pixel_attention_mask" else 0)
        for name, value in parts[0].items()
    }
