"""The images of rows: they are stored, and the field `image` says which tokens stand for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from purerl.data.chat import Chat, image_ids
from purerl.images import Image, hex_id
from purerl.system.strict_json import to_json

__all__ = ["NO_IMAGES", "RowImages"]


@frozen
class RowImages:
    """Stores the images of a run whose conversations have the settings `chat`; None: its rows have no images."""

    chat: Chat | None = None

    def store(self, images: Iterable[Image]) -> None:
        """Make sure that engines can read `images`. Raises ImageError for one that cannot be decoded."""
        if self.chat is not None and self.chat.store is not None:
            self.chat.store.add(images)

    def ids(self, tokens: Sequence[int], images: Sequence[Image]) -> list[int]:
        """For each of `tokens` the content id of its image, 0 for text; empty if the run has no images."""
        return [] if self.chat is None else image_ids(self.chat, tokens, images)

    def texts(self, images: Sequence[Image]) -> dict[str, Any]:
        """The text `images` of a row, for people: content ids as JSON; nothing if the run has no images."""
        if self.chat is None or self.chat.processor is None:
            return {}
        return {"images": to_json([hex_id(image.id) for image in images])}


NO_IMAGES = RowImages()
