"""Images in the rows that a vision-language model reads.

    features     what the vision tower makes of an image: one vector for each of its tokens
    slot         of a token: 0 for text, otherwise 1 + the index of its feature among those of all images
    embeddings   of the tokens, with features in the place of those of images; some models add further features after
                 each of their first layers
    position     of a token. Qwen2-VL and its successors have three numbers: the image at position p has p + its own
                 time, row and column, and the text after it continues at p + the larger one of its height and width

Each image goes through the vision tower once in a forward pass, however many rows have it. Trainer and generator read
images by the functions of this file, so both compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import signature
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from purerl.backends.hf.decoder.inputs import Inputs, Part
from purerl.errors import BatchError
from purerl.images import Image, ImageStore, hex_id
from purerl.models.processor import Processor, load_processor, merged
from purerl.settings import Model
from purerl.types import TokenInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ImageBatch", "ImageReader", "LoadedImage", "identities", "image_inputs", "reads_images"]

_BLANK = (56, 56)
"""Size of the image that a model reads where other ranks read images, and this one has none."""


class ImageBatch(NamedTuple):
    """The images of rows, as a model reads them.

    slot      [rows, time]
    position  [3, rows, time], of models that have three positions; None: positions are those of text
    pixels    what the vision tower reads, of all images together
    """

    slot: Tensor
    position: Tensor | None
    pixels: dict[str, Tensor]

    def to(self, device: torch.device) -> ImageBatch:
        """The same on `device`."""
        position, pixels = self.position, {name: value.to(device) for name, value in self.pixels.items()}
        return ImageBatch(self.slot.to(device), None if position is None else position.to(device), pixels)


def reads_images(model: PreTrainedModel) -> bool:
    """Whether `model` is a vision-language model."""
    return hasattr(model, "get_image_features") and hasattr(model.config, "vision_config")


def identities(tokens: TokenInt, image: TokenInt | None) -> TokenInt:
    """`tokens`, with the content id of the image in the place of each token of an image: the same content, no other."""
    return tokens if image is None else torch.where(image > 0, image, tokens)


# --- the model -----------------------------------------------------------------------------------------------------


def image_inputs(model: Any, tokens: TokenInt, images: ImageBatch) -> Inputs:
    """The inputs of the decoder of `model` for rows with these `tokens` [rows, time] and `images`."""
    features, deep = _features(model, images.pixels)
    embed = model.get_input_embeddings()

    def inputs(part: Part) -> dict[str, Any]:
        slot, embeddings = part(images.slot), embed(part(tokens))
        where = slot.flatten().nonzero()[:, 0]
        index = slot.flatten()[where] - 1
        flat = embeddings.flatten(0, 1).index_copy(0, where, features.index_select(0, index).to(embeddings.dtype))
        read: dict[str, Any] = {"inputs_embeds": flat.view_as(embeddings)}
        if images.position is not None:
            read["position_ids"] = part(images.position)
        if deep:
            layers = [layer.index_select(0, index) for layer in deep]
            read |= {"visual_pos_masks": slot > 0, "deepstack_visual_embeds": layers}
        return read

    return inputs


def _features(model: Any, pixels: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The features [n, d] of all images, and further ones that are added after the first layers of the decoder."""
    known = signature(model.get_image_features).parameters
    output = model.get_image_features(**{name: pixels[name] for name in pixels if name in known}, return_dict=True)
    deep = getattr(output, "deepstack_features", None) or ()
    return _joined(output.pooler_output), [_joined(layer) for layer in deep]


def _joined(features: Any) -> Tensor:
    """Features [n, d], from a tensor [..., d] or a sequence of tensors, one for each image."""
    if isinstance(features, Tensor):
        return features.flatten(0, -2)
    return torch.cat([part.flatten(0, -2) for part in features])


# --- rows ----------------------------------------------------------------------------------------------------------


class LoadedImage(NamedTuple):
    """An image: what its model reads, and the number of its features."""

    pixels: dict[str, Tensor]
    count: int


class ImageReader:
    """Reads the images of rows for the model at `model`, whose transformers class is that of `causal`, from `store`.

    Raises: ConfigError as `load_processor`.
    """

    def __init__(self, model: Model, causal: Any, store: ImageStore) -> None:
        self.processor: Processor = load_processor(model)
        self._store = store
        self._token: int = causal.config.image_token_id
        has_grid = hasattr(causal.base_model, "get_rope_index")
        self._merge: int | None = causal.config.vision_config.spatial_merge_size if has_grid else None

    def rows(self, tokens: TokenInt, image: TokenInt, ids: Sequence[int] | None = None) -> ImageBatch:
        """The images of rows with these `tokens` and content ids of images, both [rows, time].

        ids  the distinct content ids in `image`, sorted; None: they are looked for. If there are none, the model reads
             an image that no row has

        Raises: BatchError for a row that has a part of an image; ImageError for an image that is not in the store.
        """
        ids = image[image > 0].unique().tolist() if ids is None else ids
        return self.rows_of(tokens, image, {number: self._cached(number) for number in ids} or {0: self._blank})

    def rows_of(self, tokens: TokenInt, image: TokenInt, loaded: Mapping[int, LoadedImage]) -> ImageBatch:
        """As `rows`, with the images by their content ids."""
        ids = sorted(loaded)
        pixels = merged([loaded[number].pixels for number in ids])
        slot = _slots(tokens == self._token, image, ids, [loaded[number].count for number in ids])
        position = None if self._merge is None else _positions(slot, pixels["image_grid_thw"], self._merge)
        return ImageBatch(slot, position, pixels)

    def _cached(self, number: int) -> LoadedImage:
        """The image with this content id."""
        key = number, self.processor.fingerprint
        return self._store.cache.get(key, lambda: self.load(self._store.read(number)), _size)

    def load(self, data: bytes) -> LoadedImage:
        """The image with these bytes. Raises ImageError if they cannot be decoded."""
        count = self.processor.expansion(Image(data)).count(self._token)
        return LoadedImage(self.processor.tensors(data), count)

    @cached_property
    def _blank(self) -> LoadedImage:
        from PIL import Image as Pillow

        Pillow.new("RGB", _BLANK).save(file := BytesIO(), format="PNG")
        return self.load(file.getvalue())

    def next_positions(self, images: ImageBatch, lengths: Tensor) -> Tensor:
        """[rows] the position of the token after the first `lengths` tokens of each row."""
        if images.position is None:
            return lengths
        last = (lengths - 1).clamp(min=0)
        before = torch.arange(images.slot.shape[1]) <= last[:, None]
        return torch.where(before & (lengths > 0)[:, None], images.position.amax(0) + 1, 0).amax(-1)


def _size(loaded: LoadedImage) -> int:
    return sum(tensor.nbytes for tensor in loaded.pixels.values())


def _slots(is_placeholder: Tensor, image: Tensor, ids: Sequence[int], counts: Sequence[int]) -> Tensor:
    """The slot [rows, time] of each token.

    is_placeholder  [rows, time] the token stands for a feature if it belongs to an image
    image           [rows, time] content id of the image of the token, 0 for text
    ids, counts     of all images, in the order of their features: content id, and number of features

    An image may be several times in a row: its tokens take its features again from the first one on.

    Raises: BatchError for a row that has not all tokens of an image.
    """
    slot = torch.zeros_like(image)
    rows, times = ((image > 0) & is_placeholder).nonzero(as_tuple=True)
    if not len(rows):
        return slot
    number = torch.searchsorted(torch.tensor(ids), image[rows, times])
    count = torch.tensor(counts)
    key = rows * len(ids) + number  # the same for the tokens of an image in a row
    order = key.argsort(stable=True)
    sorted_key = key[order]
    rank = torch.empty_like(key)
    rank[order] = torch.arange(len(key)) - torch.searchsorted(sorted_key, sorted_key)
    _check_whole(rows, number, ids, count, key, rank)
    first = count.cumsum(0) - count
    slot[rows, times] = 1 + first[number] + rank % count[number]
    return slot


def _check_whole(rows: Tensor, number: Tensor, ids: Sequence[int], count: Tensor, key: Tensor, rank: Tensor) -> None:
    """Raise BatchError if a row has a number of tokens of an image that is no multiple of its number of features."""
    _, member, total = key.unique(return_inverse=True, return_counts=True)
    partial = total[member] % count[number] != 0
    if partial.any():
        k = int(partial.nonzero()[0])
        got = f"{int(total[member[k]])} tokens of the image {hex_id(ids[int(number[k])])}"
        need = f"{int(count[number[k]])}, one for each of its features"
        do = "use models whose image processors have the same settings"
        raise BatchError(f"row {int(rows[k])} of a micro-batch", got=got, need=need, do=do)


def _positions(slot: Tensor, grid: Tensor, merge: int) -> Tensor:
    """The three positions [3, rows, time] of each token.

    slot   [rows, time]
    grid   [images, 3] patches of each image along time, height and width
    merge  patches along height and width that are one feature

    The tokens of an image are one after the other, so only the last one moves the text after it.
    """
    time, height, width = (grid // torch.tensor([1, merge, merge])).unbind(-1)
    count = time * height * width
    size, area, columns = (value.repeat_interleave(count) for value in (count, height * width, width))
    rank = torch.arange(len(size)) - (count.cumsum(0) - count).repeat_interleave(count)
    offset = torch.stack([rank // area, rank % area // columns, rank % columns])
    advance = torch.where(rank == size - 1, torch.maximum(height, width).repeat_interleave(count), 0)
    is_image, feature = slot > 0, (slot - 1).clamp(min=0)
    step = torch.where(is_image, advance[feature], 1)
    return step.cumsum(-1) - step + torch.where(is_image, offset[:, feature], 0)
