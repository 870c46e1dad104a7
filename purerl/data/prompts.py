"""A data set of prompts that are given as text, not in a file."""

from __future__ import annotations

from collections.abc import Sequence

from purerl.data.columns import ExampleFormat, PromptFormat
from purerl.data.examples import DataSet
from purerl.errors import DataError

__all__ = ["prompts_as_data"]


def prompts_as_data(texts: Sequence[str], prompt_format: PromptFormat) -> DataSet:
    """The data set with these prompts: each of them plain text, or a conversation of one message of the user.

    Raises: DataError for an empty text.

    >>> data = prompts_as_data(["Hello"], "messages")
    >>> data.tables[0].to_pylist()
    [{'prompt': [{'role': 'user', 'content': 'Hello'}]}]
    """
    import pyarrow as pa

    if not all(texts):
        raise DataError("a prompt", got="an empty text", need="at least one character")
    rows = [{"prompt": [{"role": "user", "content": text}] if prompt_format == "messages" else text} for text in texts]
    example_format = ExampleFormat("prompts", prompt_format, ("prompt",))
    return DataSet(("prompts",), (pa.Table.from_pylist(rows),), example_format, (range(len(rows)),), (1.0,))
