"""Small copies of images, which the page shows. They are embedded once, however many rows have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.errors import ConfigError, DataError, ImageError
from purerl.images import ImageStore, check_pillow, decode, is_hex_id

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["Thumbnails", "parse_images"]

_MAX_SIDE = 320  # pixels


def parse_images(text: str) -> list[str]:
    """The content ids in the text `images` of a row.

    Raises: DataError if it is not a JSON list of content ids.

    >>> parse_images('["00000000000000ff"]')
    ['00000000000000ff']
    """
    need = "a JSON list of content ids"
    try:
        ids = json.loads(text)
    except ValueError as error:
        raise DataError("the text 'images' of a row", got=f"no JSON: {error}", need=need) from error
    if not isinstance(ids, list) or not all(isinstance(each, str) and is_hex_id(each) for each in ids):
        raise DataError("the text 'images' of a row", got=f"{ids!r:.60}", need=need)
    return ids


class Thumbnails:
    """The images of groups of a run as data URLs, with sides of at most 320 pixels.

    shown    those that the page has, by their content ids
    skipped  a message if images cannot be shown
    """

    def __init__(self, run: Path) -> None:
        self._store, self._made = ImageStore(run / "images"), dict[str, str | None]()
        self.shown: dict[str, str] = {}
        self.skipped: list[str] = []
        if self._store.folder.is_dir():
            try:
                check_pillow()
            except ConfigError as error:
                self.skipped = [str(error)]

    def size(self, group: Mapping[str, Any]) -> int:
        """The bytes in the page of the images of `group` that it does not have yet."""
        return sum(len(name) + len(url) + len('"":"",') for name, url in self._new(group))

    def show(self, group: Mapping[str, Any]) -> None:
        """Add the images of `group` to those that the page has."""
        self.shown.update(self._new(group))

    def _new(self, group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in dict.fromkeys(_images_of(group)):
            if name not in self._made:
                self._made[name] = None if self.skipped else self._make(name)
            url = self._made[name]
            if url is not None and name not in self.shown:
                yield name, url

    def _make(self, name: str) -> str | None:
        """The data URL of an image; None if the run does not have it."""
        try:
            picture = decode(self._store.read(int(name, 16)))
        except ImageError:
            return None
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
        return min((_data_url(picture, kind) for kind in ("PNG", "JPEG")), key=len)


def _images_of(group: Mapping[str, Any]) -> Iterator[str]:
    for row in (group, *group["rows"]):
        yield from row.get("images", ())
        for message in row.get("messages", ()):
            yield from message.get("images", ())


def _data_url(picture: Picture, kind: str) -> str:
    picture.save(file := BytesIO(), format=kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
