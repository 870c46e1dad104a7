"""Settings of a row for its own chat template: columns that TRL and verl define.

    tools                 JSON schemas of the tools that its prompt shows (TRL, verl)
    chat_template_kwargs  arguments of the chat template (TRL)
    enable_thinking       one of them (verl)

They take precedence over ``data.chat_template_kwargs``. Each may be JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from purerl.data.chat import Chat
from purerl.data.nested import iterate_values, parse_json
from purerl.data.template_arguments import RESERVED_KWARGS, find_invalid_switch
from purerl.data.turn_tokens import tool_function
from purerl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROW_SETTINGS", "chat_of_row", "check_row_settings", "kwargs_of_row", "with_tools_of_row"]

ROW_SETTINGS = ("tools", "chat_template_kwargs", "enable_thinking")
"""The columns with arguments of the chat template."""


def chat_of_row(chat: Chat, example: Mapping[str, Any]) -> Chat:
    """`chat` with the arguments of the chat template that the row `example` has; of plain text, `chat` itself.

    Raises: DataError as `kwargs_of_row`.
    """
    kwargs = kwargs_of_row(example) if chat.prompt_format == "messages" else {}
    return evolve(chat, chat_template_kwargs={**chat.chat_template_kwargs, **kwargs}, base=chat) if kwargs else chat


def with_tools_of_row(chat: Chat, example: Mapping[str, Any]) -> Chat:
    """`chat` of another model than the policy, with the tools of the row `example`. Raises DataError for no tools."""
    tools = _tools(example.get("tools")) if chat.prompt_format == "messages" else []
    kwargs = {**chat.chat_template_kwargs, "tools": tools}
    return evolve(chat, chat_template_kwargs=kwargs, base=chat) if tools else chat


def kwargs_of_row(example: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the chat template in the columns of `example`.

    Raises: DataError for tools that are no list of schemas with names, for arguments that are no object with names, for
    those that purerl sets itself, and for a switch such as `enable_thinking` that is neither true nor false.

    >>> kwargs_of_row({"prompt": "", "tools": '[{"name": "add"}]', "chat_template_kwargs": {"enable_thinking": False}})
    {'enable_thinking': False, 'tools': [{'name': 'add'}]}
    """
    thinking, kwargs, tools = (example.get(name) for name in ("enable_thinking", "chat_template_kwargs", "tools"))
    kwargs = _parsed("chat_template_kwargs", kwargs)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise _invalid("chat_template_kwargs", kwargs, "an object: arguments of the chat template by name")
    reserved = [name for name in kwargs or () if name in (*RESERVED_KWARGS, "tools")]
    if reserved:
        raise _invalid("chat_template_kwargs", reserved[0], "other arguments: purerl sets this one", "remove it")
    _check_json("chat_template_kwargs", kwargs)
    given = {} if thinking is None else {"enable_thinking": thinking}
    for column, values in (("enable_thinking", given), ("chat_template_kwargs", kwargs or {})):
        if name := find_invalid_switch(values):
            raise _invalid(column, values[name], f"true or false as {name}, no text and no number")
    schemas = _tools(tools)
    return {**given, **(kwargs or {}), **({"tools": schemas} if schemas else {})}


def _tools(value: Any) -> list[Any]:
    tools = _parsed("tools", value)
    schemas = [_parsed("tools", tool) for tool in tools] if isinstance(tools, list) else tools
    if schemas is None:
        return []
    is_list = isinstance(schemas, list) and all(isinstance(tool, Mapping) for tool in schemas)
    functions = map(tool_function, schemas) if is_list else ()
    if not is_list or not all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in functions):
        do = "correct it; a column with another meaning needs another name: data.columns.other_tools=tools"
        raise _invalid("tools", value, "a list of JSON schemas, each with the name of a function", do)
    _check_json("tools", schemas)
    return schemas


def _check_json(name: str, value: Any) -> None:
    """Raise DataError for values that JSON does not have: transformers would show a template their type instead."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _invalid(name, value, f"values that JSON has; {error}") from error


def _parsed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value) if value.strip() else None
    except ValueError as error:
        raise _invalid(name, value, f"JSON text; {error}") from error


def _invalid(name: str, value: Any, need: str, do: str = "correct the row, or remove it") -> DataError:
    return DataError(f"column {name!r}", got=f"{value!r:.200}", need=need, do=do)


def check_row_settings(table: pa.Table, path: str) -> None:
    """Check the arguments of the chat template in every row of the file at `path`. Raises DataError with the row."""
    columns = [name for name in ROW_SETTINGS if name in table.column_names]
    rows = zip(*(iterate_values(table, name) for name in columns), strict=True) if columns else ()
    for row, values in enumerate(rows):
        try:
            kwargs_of_row(dict(zip(columns, values, strict=True)))
        except DataError as error:
            raise DataError(f"row {row} of {path!r}: {error}") from error
