"""Images in prompts: what an image is, and a store from which every process of a run reads its bytes.

An image is the bytes of a file: PNG, JPEG, ... Its content id is a digest of these bytes. Batches and requests have
content ids only. An engine that needs the pixels of an image asks the `ImageStore` of the run for its bytes.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import define, field, frozen

from purerl.errors import ConfigError, ImageError
from purerl.system.files import create, sync
from purerl.system.installation import install_command

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["Cache", "Image", "ImageStore", "check_pillow", "content_id", "decode", "hex_id", "is_hex_id"]

_CACHE_BYTES = 256 * 2**20
_SYNC_THREADS = 16
_HEX_ID = re.compile("[0-9a-f]{16}")
_SIDEWAYS = range(5, 9)
"""EXIF orientations in which width and height are exchanged."""


def check_pillow() -> None:
    """Raise ConfigError if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        do = install_command("images")
        raise ConfigError("images", got="no package Pillow", need="Pillow, which decodes them", do=do) from error


def content_id(data: bytes) -> int:
    """The content id of an image with these bytes: from 1 to 2^63 - 1.

    >>> content_id(b"a") == content_id(b"a"), content_id(b"a") == content_id(b"b")
    (True, False)
    """
    return max(1, int.from_bytes(blake2b(data, digest_size=8).digest()) >> 1)


def hex_id(value: int) -> str:
    """A content id as text: the name of a file in an `ImageStore`.

    >>> hex_id(255)
    '00000000000000ff'
    """
    return f"{value:016x}"


def is_hex_id(text: str) -> bool:
    """Whether `text` is a content id as `hex_id` writes it.

    >>> is_hex_id(hex_id(255)), is_hex_id("../a")
    (True, False)
    """
    return bool(_HEX_ID.fullmatch(text))


class _Facts(NamedTuple):
    """The content id and the size of an image, width and height, as it is shown."""

    id: int
    size: tuple[int, int]


@frozen(eq=False, repr=False)
class Image:
    """An encoded image: its bytes, or the file that has them. Nothing is read before it is needed.

    Images with the same bytes are equal.
    """

    source: bytes | Path

    def read(self) -> bytes:
        """The bytes. Raises ImageError if the file cannot be read."""
        if isinstance(self.source, bytes):
            return self.source
        try:
            return self.source.read_bytes()
        except OSError as error:
            raise ImageError(f"image {str(self.source)!r}", got=error.strerror, need="a file that exists") from error

    @cached_property
    def _facts(self) -> _Facts:
        data = self.read()
        try:
            return _Facts(content_id(data), _size_of(data))
        except ImageError as error:
            raise self._named(error) from None

    @property
    def id(self) -> int:
        """The content id. Raises ImageError as `size`."""
        return self._facts.id

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels.

        Raises: ImageError if the file cannot be read, is no image that Pillow knows, or has more pixels than Pillow
        accepts (``PIL.Image.MAX_IMAGE_PIXELS``). Only its header is decoded.
        """
        return self._facts.size

    def check(self) -> None:
        """Decode the whole image. Raises ImageError as `decode`, and if its file has changed since its id is known."""
        data, expected = self.read(), self.id
        if content_id(data) != expected:
            raise self._named(ImageError("an image", got="a file that has changed during the run"))
        try:
            decode(data)
        except ImageError as error:
            raise self._named(error) from None

    def _named(self, error: ImageError) -> ImageError:
        name = f"{len(self.source):,} bytes" if isinstance(self.source, bytes) else repr(str(self.source))
        return ImageError(f"image, {name}: {error}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        try:
            return f"Image({hex_id(self.id)})"
        except ImageError:
            return f"Image({self.source!r:.100})"


def decode(data: bytes) -> Picture:
    """The pixels of an encoded image in RGB, turned as its EXIF orientation says, on white if it is transparent.

    Of several frames it is the first one.

    Raises: ImageError if it is truncated or damaged, is no image, or has too many pixels.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    try:
        with _opened(data) as picture:
            picture.load()
            turned = ImageOps.exif_transpose(picture)
            if not turned.has_transparency_data:
                return turned.convert("RGB")
            turned = turned.convert("RGBA")
            white = Pillow.new("RGBA", turned.size, "white")
            return Pillow.alpha_composite(white, turned).convert("RGB")
    except ImageError:
        raise
    except Exception as error:  # decoders of Pillow raise many kinds, such as OSError, SyntaxError and struct.error
        raise _cannot_decode(error) from error


def _size_of(data: bytes) -> tuple[int, int]:
    """Width and height, from the header."""
    from PIL.ExifTags import Base

    with _opened(data) as picture:
        try:
            is_sideways = picture.getexif().get(Base.Orientation) in _SIDEWAYS
        except Exception:  # noqa: BLE001 - damaged metadata; `decode` refuses what it cannot decode
            is_sideways = False
        width, height = picture.size
        return (height, width) if is_sideways else (width, height)


def _opened(data: bytes) -> Picture:
    """The image with its header decoded. Raises ImageError."""
    from PIL import Image as Pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)  # an error below
            picture = Pillow.open(BytesIO(data))
    except Pillow.UnidentifiedImageError as error:
        raise ImageError("an image", got="no image in a format that Pillow reads", need="PNG, JPEG, ...") from error
    except Exception as error:  # a header may be anything
        raise _cannot_decode(error) from error
    limit = Pillow.MAX_IMAGE_PIXELS
    if limit is not None and picture.width * picture.height > limit:
        got, need = f"{picture.width:,} x {picture.height:,} pixels", f"at most {limit:,}, PIL.Image.MAX_IMAGE_PIXELS"
        raise ImageError("an image", got=got, need=need, do="make it smaller")
    return picture


def _cannot_decode(error: Exception) -> ImageError:
    return ImageError("an image", got=str(error) or type(error).__name__, need="a whole image that Pillow can decode")


# --- the store -----------------------------------------------------------------------------------------------------


@define(eq=False)
class Cache:
    """Values by key, of at most `max_bytes` together; those that were used last are kept."""

    max_bytes: int
    _values: OrderedDict[Hashable, tuple[Any, int]] = field(factory=OrderedDict, init=False)
    _bytes: int = field(default=0, init=False)
    _lock: Any = field(factory=Lock, init=False)

    def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """The value of `key`; if there is none, what `make` returns, whose size in bytes is ``size(value)``."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        with self._lock:
            if key not in self._values:
                self._values[key] = value, size(value)
                self._bytes += self._values[key][1]
            while self._bytes > self.max_bytes:
                _, (_, removed) = self._values.popitem(last=False)
                self._bytes -= removed
        return value


@frozen(eq=False)
class ImageStore:
    """Encoded images by their content ids: a file for each of them in `folder`, which all processes of a run see.

    Every image in it can be decoded. `cache` is for what engines of this process compute of them.
    """

    folder: Path
    cache: Cache = field(factory=lambda: Cache(_CACHE_BYTES))
    _unsynced: deque[Path] = field(factory=deque, init=False)

    def add(self, images: Iterable[Image]) -> None:
        """Add `images`, each of which is decoded before it is written. Raises ImageError for one that cannot be."""
        for image in images:
            path = self.path(image.id)
            # After a power failure, a file that was not flushed may be empty.
            if not path.exists() or not path.stat().st_size:
                image.check()
                self._write(path, image.read())

    def _write(self, path: Path, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # several ranks may write the same image
        with create(partial) as file:
            file.write(data)
        os.replace(partial, path)
        self._unsynced.append(path)

    def sync(self) -> None:
        """Flush the images that were added to the disk, several at a time, because each waits for the disk."""
        from concurrent.futures import ThreadPoolExecutor

        paths = [self._unsynced.popleft() for _ in range(len(self._unsynced))]
        if paths:
            with ThreadPoolExecutor(_SYNC_THREADS) as threads:
                deque(threads.map(sync, paths), maxlen=0)
            sync(self.folder)

    def path(self, image: int) -> Path:
        """The file of the image with this content id."""
        return self.folder / hex_id(image)

    def read(self, image: int) -> bytes:
        """The bytes of the image with this content id.

        Raises: ImageError if it is not in the store, or if its file has changed.
        """
        try:
            data = self.path(image).read_bytes()
        except OSError as error:
            got, need = f"{str(self.path(image))!r}: {error.strerror}", "the images of the run"
            raise ImageError(f"image {hex_id(image)}", got=got, need=need, do="restore the directory") from error
        if content_id(data) != image:
            got, do = f"{str(self.path(image))!r} with another content", "restore the file"
            raise ImageError(f"image {hex_id(image)}", got=got, do=do)
        return data
