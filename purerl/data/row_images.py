"""Images in the rows of a data set, in the formats of Hugging Face, TRL, verl and OpenAI.

    images, image   a column with the images of a row: bytes, a path, ``{"bytes": ..., "path": ...}``, or a list
    content parts   ``{"type": "image"}``: the next image of that column; ``{"type": "image", "image": ...}`` and
                    ``{"type": "image_url", "image_url": {"url": ...}}``: an image of its own
    <image>         in a text: the next image of the column (verl). Without any place for them, all images of a row are
                    at the start of the first message of the user (TRL)

The content of a message with images becomes a list of parts, with an `Image` in each part of the type "image". The
content of any other message is a string.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from purerl.data.columns import ExampleFormat
from purerl.data.nested import iterate_values, shaped
from purerl.errors import DataError, ImageError
from purerl.images import Image, hex_id

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "IMAGE_COLUMNS",
    "as_json",
    "as_parts",
    "has_images",
    "images_of",
    "located",
    "placed",
    "text_of",
    "to_image",
    "with_images",
    "with_places",
]

Message = Mapping[str, Any]

IMAGE_COLUMNS = ("images", "image")
"""The columns that have the images of a row: the first one that there is."""

_PLACEHOLDER = "<image>"
_IMAGE_TYPES = ("image", "image_url")
_SOURCES = ("image", "bytes", "path", "url")  # keys of a part that is an image
_PATHS = ("image", "path", "url", "image_url")


def has_images(table: pa.Table, example_format: ExampleFormat, path: str) -> bool:
    """Whether rows of `table`, the contents of the file at `path`, have images.

    A column of strings has images only if messages have a place for them: it may be something else, such as the name of
    an image of a container.

    Raises: DataError for images beside prompts that are plain text.
    """
    column = next((name for name in IMAGE_COLUMNS if name in table.column_names), None)
    is_typed = column is not None and _holds_images(shaped(table.schema.field(column)))
    if example_format.prompt_format == "text":
        if is_typed:
            got, need = f"a column {column!r} of images, and prompts that are plain text", "chat messages"
            do = f"make {example_format.columns[0]!r} messages, or remove {column!r}"
            raise DataError(f"data set {path!r}", got=got, need=need, do=do)
        return False
    return is_typed or any(_mentions_images(table, name, column) for name in example_format.columns)


def _holds_images(arrow_type: Any) -> bool:
    """Whether a column of this type has encoded images, and not only text that may name files."""
    from pyarrow import types

    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        return _holds_images(arrow_type.value_type)
    if types.is_struct(arrow_type):
        return "bytes" in {field.name for field in arrow_type}
    return types.is_binary(arrow_type) or types.is_large_binary(arrow_type)


def _mentions_images(table: pa.Table, name: str, images: str | None) -> bool:
    """Whether a message in the column `name` has a part that is an image, or a placeholder for one of `images`."""
    contents = (message and message.get("content") for value in iterate_values(table, name) for message in value or ())
    return any(
        images is not None and _PLACEHOLDER in content
        if isinstance(content, str)
        else any(part.get("type") not in (None, "text") for part in content or ())
        for content in contents
    )


def located(example_format: ExampleFormat, row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`row` of a file in `folder` with absolute paths of images."""
    changed = {name: _located(row[name], folder) for name in IMAGE_COLUMNS if row.get(name) is not None}
    messages = {name: row[name] for name in example_format.columns if row[name] is not None}
    changed |= {name: [_located_message(message, folder) for message in each] for name, each in messages.items()}
    return {**row, **changed}


def _located_message(message: Any, folder: Path) -> Any:
    content = message and message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_located(part, folder) for part in content]}


def _located(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_located(each, folder) for each in value]
    if isinstance(value, dict):
        return {key: _located(each, folder) if key in _PATHS else each for key, each in value.items()}
    if not isinstance(value, str) or not value or urlparse(value).scheme:
        return value
    return str(folder.absolute() / value)


def with_images(example_format: ExampleFormat, example: Mapping[str, Any]) -> dict[str, Any]:
    """`example` with an `Image` in place of each image of its messages, in the columns of `example_format`.

    The images of a row are taken in the order of the columns; a rejected answer takes the same ones as the chosen one.

    Raises: ImageError if a row has more or fewer images than places for them, for a part that is neither text nor an
    image, and as `to_image`.
    """
    columns = example_format.columns
    given = _images_of_row(example) if example_format.has_images else []
    places = {name: sum(_count_places(message, given) for message in example[name]) for name in columns}
    after_prompt = places[columns[0]] if columns[0] == "prompt" else 0
    starts = {name: after_prompt if name != columns[0] else 0 for name in columns}
    needed = max(starts[name] + places[name] for name in columns)
    if given and any(_has_own(message) for name in columns for message in example[name]):
        need = "images in one of them"
        raise ImageError("images", got="some in a column of their own, and some in messages", need=need)
    if given and not needed:
        names = columns[:1] if columns[0] == "prompt" else columns
        return {**example, **{name: _at_start([*map(_without_lists, example[name])], given) for name in names}}
    if needed != len(given):
        got = f"{len(given)} in the row, and {needed} places for them in its messages"
        raise ImageError("images", got=got, need="as many of both", do="fix the row, or remove it")
    taken = {name: iter(given[starts[name] :]) for name in columns}
    return {**example, **{name: [_placed(message, taken[name]) for message in example[name]] for name in columns}}


def _images_of_row(example: Mapping[str, Any]) -> list[Image]:
    value = next((example[name] for name in IMAGE_COLUMNS if example.get(name) is not None), [])
    return [to_image(each) for each in (value if isinstance(value, list) else [value])]


def _count_places(message: Message, given: Sequence[Image]) -> int:
    """The places in `message` for images of the row; text is one only if the row has any."""
    content = message.get("content")
    if isinstance(content, str):
        return content.count(_PLACEHOLDER) if given else 0
    empty = sum(_kind(part) in _IMAGE_TYPES and _source_of(part) is None for part in content or ())
    return empty + (text_of(content).count(_PLACEHOLDER) if given else 0)


def _has_own(message: Message) -> bool:
    """Whether `message` has an image that is not one of the row."""
    content = message.get("content")
    is_list = isinstance(content, list)
    return is_list and any(_kind(part) in _IMAGE_TYPES and _source_of(part) is not None for part in content)


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", *_IMAGE_TYPES):
        raise ImageError("a part of a message", got=f"{part!r:.100}", need="the type text, image or image_url")
    return kind


def _at_start(messages: Sequence[Message], images: Sequence[Image]) -> list[Message]:
    """`messages` with `images` before the content of the first message of the user."""
    first = next((k for k, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise ImageError("images", got="no message of the user", need="a message that has them", do="remove the row")
    content = [*map(_image_part, images), *_parts(messages[first]["content"])]
    return [*messages[:first], {**messages[first], "content": content}, *messages[first + 1 :]]


def _placed(message: Message, images: Iterator[Image]) -> Message:
    """`message` with the next of `images` in each of its places."""
    if message.get("content") is None:
        return message
    parts = [placed for part in _parts(message["content"]) for placed in _placed_part(part, images)]
    return _without_lists({**message, "content": parts})


def _placed_part(part: Mapping[str, Any], images: Iterator[Image]) -> Iterator[dict[str, Any]]:
    if _kind(part) in _IMAGE_TYPES:
        source = _source_of(part)
        yield _image_part(next(images) if source is None else to_image(source))
        return
    before, *others = re.split(re.escape(_PLACEHOLDER), part.get("text") or "")
    yield _text_part(before)
    for text in others:
        image = next(images, None)
        yield _text_part(_PLACEHOLDER) if image is None else _image_part(image)
        yield _text_part(text)


def _without_lists(message: Message) -> Message:
    """`message` with its content as a string, if it has no images."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if any(part["type"] in _IMAGE_TYPES for part in content):
        return {**message, "content": [part for part in content if part["type"] != "text" or part["text"]]}
    return {**message, "content": "".join(part["text"] for part in content)}


def _parts(content: Any) -> list[Mapping[str, Any]]:
    return [_text_part(content)] if isinstance(content, str) else list(content or ())


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image_part(image: Image) -> dict[str, Any]:
    return {"type": "image", "image": image}


def _source_of(part: Mapping[str, Any]) -> Any:
    """The source of an image that its part names; None: it takes the next image of the row."""
    if part["type"] == "image_url":
        return part.get("image_url") or part.get("url")
    if (base64_text := part.get("base64")) is not None:
        return f"data:;base64,{base64_text}"
    return next((part[key] for key in _SOURCES if part.get(key) is not None), None)


def to_image(value: Any) -> Image:
    """The image that `value` is or names: bytes, a path, a data URL, a picture of Pillow, or a structure with these.

    Raises: ImageError for anything else, such as the URL of another computer.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, bytes | Path):
        return Image(value)
    if isinstance(value, Mapping):
        inner = next((value[key] for key in ("bytes", "path", "url") if value.get(key) is not None), None)
        if inner is not None:
            return to_image(inner)
    if (save := getattr(value, "save", None)) is not None:
        save(file := BytesIO(), format="PNG")
        return Image(file.getvalue())
    if not isinstance(value, str) or not value:
        raise ImageError("an image", got=f"{value!r:.100}", need="bytes, a path, or {bytes, path} with one of them")
    return Image(_from_text(value))


def _from_text(text: str) -> bytes | Path:
    """The bytes in a data URL, or the path that `text` is."""
    if text.startswith("data:"):
        try:
            return base64.b64decode(text.partition(",")[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ImageError("an image", got=f"a data URL that is not valid: {error}", need="base64") from error
    if text.startswith("file://"):
        return Path(unquote(urlparse(text).path))
    if "://" in text[:20]:
        do = "download it, and name the file"
        raise ImageError("an image", got=f"the URL {text[:100]!r}", need="a file, or bytes in the data set", do=do)
    return Path(text)


def with_places(messages: Sequence[Message], number: int) -> list[Message]:
    """`messages` of an environment with a part ``{"type": "image"}`` for each of its `number` images.

    If they have none, all images come before the content of the first message.

    Raises: ImageError if they have another number, or a part that is neither text nor an image.
    """
    kinds = [_kind(part) for message in messages for part in _parts(message["content"])]
    places = sum(kind != "text" for kind in kinds)
    if places == number:
        return [*messages]
    if places or not messages:
        raise ImageError("an observation", got=f"{number} images, and {places} places for them", need="as many of both")
    first = {**messages[0], "content": [*[{"type": "image"}] * number, *_parts(messages[0]["content"])]}
    return [first, *messages[1:]]


def placed(messages: Sequence[Message], images: Sequence[Any]) -> list[Message]:
    """`messages` with the next of `images` in each part ``{"type": "image"}``; there are as many of both."""
    remaining = map(to_image, images)
    return [_placed(message, remaining) for message in messages]


def images_of(messages: Sequence[Message]) -> list[Image]:
    """The images in `messages`, in order."""
    contents = (message.get("content") for message in messages)
    return [
        part["image"]
        for content in contents
        if isinstance(content, list | tuple)
        for part in content
        if part["type"] == "image"
    ]


def text_of(content: Any) -> str:
    """The text of the content of a message, without images."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())


def as_parts(message: Message) -> Message:
    """`message` as the chat template of a vision-language model takes it: its content is a list of parts."""
    content = message.get("content")
    if content is None:
        return message
    parts = [part if part["type"] == "text" else {"type": "image"} for part in _parts(content)]
    return {**message, "content": parts}


def as_json(message: Message) -> dict[str, Any]:
    """`message` with the content ids of its images as text, in place of the images.

    >>> as_json({"role": "user", "content": "a"})
    {'role': 'user', 'content': 'a'}
    """
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    shown = [{**part, "image": hex_id(part["image"].id)} if part["type"] == "image" else dict(part) for part in content]
    return {**message, "content": shown}
