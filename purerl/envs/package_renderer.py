"""Conversations rendered by the package `renderers`, which knows the exact tokens of many model families.

For these models it replaces the chat template. It renders messages to tokens, finds the tokens that follow a turn, and
reads the thinking in a turn. Tool calls are read by `purerl.envs.tool_formats`, if it has the format in which the
package writes them, and by the package otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

from attrs import frozen

from purerl.data.chat import Chat, Messages, Prompt, add_system_prompt
from purerl.data.messages import with_functions
from purerl.data.turn_tokens import Tools, Turns, open_turns
from purerl.envs.protocol import Message, ToolCall
from purerl.envs.tool_formats import ToolFormat, detect_format, parse_calls
from purerl.envs.turn import Turn, text_of, turn_of
from purerl.errors import ConfigError, DataError
from purerl.protocols import FinishReason
from purerl.system.installation import install_command

__all__ = ["PackageRenderer", "open_package_renderer"]

_QUESTION = {"role": "user", "content": "a question"}


@frozen
class PackageRenderer:
    """Conversations that a renderer of the package `renderers` renders.

    package  the object of the package
    opening  the tokens of a short prompt: its end tells whether a turn starts with thinking
    turns    the additions of the chat template, for turns after which the package adds nothing, such as one that ends
             in the middle of thinking; None if the template cannot do it
    tool_format  the format in which the package writes calls; None if it is unknown, or there are no tools
    """

    chat: Chat
    package: Any
    tools: tuple[Mapping[str, Any], ...]
    opening: tuple[int, ...]
    turns: Turns | None
    tool_format: ToolFormat | None = None

    def prompt(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        tokens = _prompt_tokens(self.chat, self.package, messages, self.tools if tools is None else tools)
        if not tokens:
            raise DataError("a conversation", got="no tokens", need="at least one token")
        return Prompt(self.chat.tokenizer.decode(tokens), tokens)

    def rerendered(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        return self.prompt(messages, tools)

    def following(
        self, before: Messages, turn_tokens: Sequence[int], new: Messages, tools: Tools | None = None
    ) -> list[int]:
        shown = self.tools if tools is None else tools
        tokens = _following(self.chat, self.package, before, turn_tokens, new, shown)
        if tokens is None and self.turns is not None:
            return self.turns.following(before, turn_tokens, new, shown)
        if tokens is None:
            got = f"a turn that ends with {self.chat.tokenizer.decode(list(turn_tokens[-8:]))!r}"
            raise DataError("the package renderers cannot continue the conversation", got=got)
        return tokens

    def parse(self, tokens: Sequence[int], finish: FinishReason, *, turn: int = 0) -> Turn:
        tools, written = list(self.tools) or None, text_of(self.chat, tokens)
        parsed = self.package.parse_response(list(tokens), tools=tools, prompt_ids=list(self.opening))
        calls, content = [_call(call) for call in parsed.tool_calls], parsed.content
        if self.tool_format is not None:
            content_of_format, calls = parse_calls(self.tool_format, written, self.tools)
            if len(calls) != len(parsed.tool_calls):
                content = content_of_format.rpartition("</think>")[2] if parsed.reasoning_content else content_of_format
        calls = calls if self.tools else []
        reasoning = {"reasoning_content": parsed.reasoning_content} if parsed.reasoning_content else {}
        is_read = bool(calls or not parsed.tool_calls) and not any(call.error for call in calls)
        contents = {"content": content, **reasoning} if is_read else {"content": written}
        return turn_of(self.chat, tokens, finish, turn, contents, calls)


def open_package_renderer(chat: Chat, tools: Tools, family: str = "auto") -> PackageRenderer | None:
    """The renderer of `family`; for "auto", of the model's family, or None if the package cannot be used for it.

    Raises: ConfigError if a named family cannot be used.
    """
    try:
        return _opened(chat, tools, family)
    except ConfigError:
        if family != "auto":
            raise
        return None


def _opened(chat: Chat, tools: Tools, family: str) -> PackageRenderer:
    if (spec := find_spec("renderers")) is None or spec.origin is None:
        raise ConfigError(
            f"renderer = {family!r}",
            need="the package renderers, which is not installed",
            do=install_command("renderers"),
        )
    if chat.escapes:
        need = 'special_tokens = "keep": the package reads text that spells a special token as this token'
        raise ConfigError(f"renderer = {family!r}", got='special_tokens = "escape"', need=need)
    from renderers.base import MODEL_RENDERER_MAP  # pyright: ignore[reportMissingImports]

    names = sorted(set(MODEL_RENDERER_MAP.values()))
    name = MODEL_RENDERER_MAP.get(chat.tokenizer.name_or_path, "") if family == "auto" else family
    if name not in names:
        raise ConfigError(f"renderer = {family!r}", need=f"auto, template, or one of: {', '.join(names)}")
    try:
        package = _created(chat, name)
    except Exception as error:  # the package also raises AssertionError and errors of pydantic
        if "vocab file" in str(error):  # openai_harmony downloads it
            raise ConfigError(
                f"the renderer {name!r} needs the vocabulary of harmony, which it cannot download",
                got=str(error),
                need="a network, or the file o200k_base.tiktoken in the folder TIKTOKEN_ENCODINGS_BASE",
                do='copy the file there, or use renderer = "template"',
            ) from error
        raise ConfigError(f"the renderer {name!r} does not fit the model", got=str(error)) from error
    opening = _prompt_tokens(chat, package, [_QUESTION], tools)
    result = {"role": "tool", "content": "an answer", "tool_call_id": "call00000", "name": "tool"}
    stop_tokens = package.get_stop_token_ids()
    end = next((token for token in stop_tokens if token in chat.stop_tokens), stop_tokens[0])
    new = [result if tools else _QUESTION]
    turns_to_try = ([end], [*chat.tokenizer("</think>", add_special_tokens=False)["input_ids"], end])
    if all(_following(chat, package, [_QUESTION], turn, new, tools) is None for turn in turns_to_try):
        raise ConfigError(f"the renderer {name!r} cannot continue a conversation after a turn")
    turns = None
    with suppress(ConfigError):
        turns = open_turns(chat, tools)
    tool_format = _tool_format(chat, package, tools) if tools else None
    return PackageRenderer(chat, package, tuple(tools), tuple(opening), turns, tool_format)


def _tool_format(chat: Chat, package: Any, tools: Tools) -> ToolFormat | None:
    """The format in which the package writes calls."""
    prompt, stop_tokens = _prompt_tokens(chat, package, [_QUESTION], tools), {*package.get_stop_token_ids()}

    def render(turn: Message) -> str:
        tokens = package.render_ids([_QUESTION, with_functions(turn)], tools=list(tools))
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, tokens, strict=False)))
        return chat.tokenizer.decode(list(takewhile(lambda token: token not in stop_tokens, tokens[common:])))

    return detect_format(render, tools)


def _created(chat: Chat, name: str) -> Any:
    """The object of the package. It continues a conversation whatever the next message is, if the family allows it."""
    from renderers import config_from_name, create_renderer  # pyright: ignore[reportMissingImports]

    config = config_from_name(name)
    kwargs = dict(chat.chat_template_kwargs) or None
    with suppress(ValueError):
        keeps_thinking = type(config)(thinking_retention="all")  # type: ignore[call-arg]
        return create_renderer(chat.tokenizer, keeps_thinking, chat_template_kwargs=kwargs)
    return create_renderer(chat.tokenizer, config, chat_template_kwargs=kwargs)


def _prompt_tokens(chat: Chat, package: Any, messages: Messages, tools: Tools) -> list[int]:
    prepared = [with_functions(message) for message in add_system_prompt(chat, messages)]
    options = {"tools": list(tools) or None, "add_generation_prompt": True}
    try:
        return list(package.render_ids(prepared, **options))
    except (ValueError, TypeError, KeyError, AssertionError) as error:
        got = "messages with the roles " + ", ".join(str(message["role"]) for message in messages)
        raise DataError(f"the package renderers raised an error: {error}", got=got) from error


def _following(
    chat: Chat, package: Any, before: Messages, turn: Sequence[int], new: Messages, tools: Tools
) -> list[int] | None:
    """The tokens that the package adds after the turn, or None if it adds none."""
    sampled = [*_prompt_tokens(chat, package, before, tools), *turn]
    prepared, options = [with_functions(message) for message in new], {"tools": list(tools) or None}
    result = package.bridge_to_next_turn(sampled[: len(sampled) - len(turn)], list(turn), prepared, **options)
    tokens = [] if result is None else list(result.token_ids)
    return tokens[len(sampled) :] if tokens[: len(sampled)] == sampled and len(tokens) > len(sampled) else None


def _call(parsed: Any) -> ToolCall:
    if str(parsed.status) == "ok" and parsed.name and isinstance(parsed.arguments, Mapping):
        return ToolCall(parsed.name, parsed.arguments, parsed.id or "")
    reason = str(parsed.status).replace("_", " ")
    return ToolCall(parsed.name or "", error=f"the call cannot be read ({reason}): {parsed.raw}")
