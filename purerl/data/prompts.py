"""A data set of prompts that are given as values, not in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purerl.data.chat import TextOrMessages
from purerl.data.columns import ExampleFormat, PromptFormat
from purerl.data.examples import DataSet
from purerl.data.nested import make_column, uniform_contents
from purerl.data.row_images import has_images
from purerl.errors import DataError

__all__ = ["prompts_as_data"]


def prompts_as_data(prompts: Sequence[TextOrMessages], prompt_format: PromptFormat) -> DataSet:
    """The data set with these prompts. In the format "messages", a text is a conversation of one message of the user.

    Messages may have images, see `purerl.data.row_images`.

    Raises: DataError for an empty prompt, and for messages in the format "text".

    >>> from purerl.data.examples import rows_at
    >>> data = prompts_as_data(["Hello"], "messages")
    >>> rows_at(data, [0])
    [{'prompt': [{'role': 'user', 'content': 'Hello'}]}]
    """
    import pyarrow as pa

    if not all(prompts):
        raise DataError("a prompt", got="an empty text", need="at least one character")
    if prompt_format == "text" and not all(isinstance(prompt, str) for prompt in prompts):
        do = "use a model with a chat template, or prompts without images"
        raise DataError("a prompt", got="messages", need="plain text, the format of the other prompts", do=do)
    is_chat = prompt_format == "messages"
    values: list[Any] = [
        [{"role": "user", "content": prompt}] if is_chat and isinstance(prompt, str) else prompt for prompt in prompts
    ]
    try:
        column, field = make_column(values, "prompt")
        table = pa.Table.from_arrays([column], schema=pa.schema([field]))
    except TypeError:  # images as bytes, which JSON does not have
        table = pa.table({"prompt": pa.array(uniform_contents(values))})
    has_parts = is_chat and any(isinstance(message.get("content"), list) for value in values for message in value)
    example_format = ExampleFormat("prompts", prompt_format, ("prompt",), has_parts=has_parts)
    example_format = example_format._replace(has_images=has_images(table, example_format, "prompts"))
    return DataSet(("prompts",), (table,), example_format, (range(len(values)),), (1.0,))
