"""Conversations of several turns as tokens: the prompt, what the model said in a turn, and what follows a turn.

Tokens in, tokens out: a row of an episode consists of the tokens of the prompt, the tokens that were sampled, and the
tokens that the chat template adds after each turn. Sampled tokens are never rendered or tokenized again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from attrs import frozen

from purerl.data.chat import Chat, Messages, Prompt
from purerl.data.turn_tokens import Tools, Turns, open_turns
from purerl.envs.tool_formats import ToolFormat, find_tool_format, parse_calls
from purerl.envs.turn import Turn, text_of, turn_of
from purerl.errors import ConfigError
from purerl.protocols import FinishReason

__all__ = ["TemplateRenderer", "TurnRenderer", "open_renderer"]


class TurnRenderer(Protocol):
    """Rendering for a workflow of several turns. `tools` are JSON schemas; None: those given to `open_renderer`."""

    def prompt(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        """The conversation so far, up to and including the header of the next assistant turn.

        Raises: DataError if the conversation cannot be rendered or has no tokens.
        """
        ...

    def parse(self, tokens: Sequence[int], finish: FinishReason, *, turn: int = 0) -> Turn:
        """Parse the sampled `tokens`. Their calls get ids from `turn`, the index of the turn in its episode."""
        ...

    def following(
        self, before: Messages, turn_tokens: Sequence[int], new: Messages, tools: Tools | None = None
    ) -> list[int]:
        """The tokens after the sampled tokens `turn_tokens`, up to and including the header of the next turn.

        `before` is the conversation before the turn, and `new` are the messages after it.

        Raises: DataError if the conversation cannot be rendered.
        """
        ...

    def rerendered(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        """The whole conversation rendered again, which may leave out thinking of earlier turns.

        Its tokens may differ from those that were sampled.

        Raises: DataError if the conversation cannot be rendered.
        """
        ...


def open_renderer(
    chat: Chat, tools: Tools = (), *, renderer: str = "auto", tool_format: ToolFormat | Literal["auto"] = "auto"
) -> TurnRenderer:
    """The renderer of conversations with these settings and `tools`.

    renderer     "template": the chat template, or plain text. The name of a model family, such as "qwen3": the
                 renderer of this family in the package `renderers`. "auto": the renderer of that package if it is
                 installed and knows the model, if special tokens are not escaped, and if `tool_format` is "auto";
                 otherwise "template"
    tool_format  the format of tool calls. "auto": the format in which the chat template renders them; "plain" for
                 plain text

    Raises: ConfigError if the chat template cannot show the tools, or cannot continue a conversation after a turn; if
    the format of tool calls is not known; if a setting has no effect; if the package `renderers` is not installed or
    does not know the family.
    """
    _check(chat, tools, renderer, tool_format)
    is_package = renderer != "template" and tool_format == "auto" and chat.prompt_format == "messages"
    if is_package and chat.processor is None:
        from purerl.envs.package_renderer import open_package_renderer

        if package_renderer := open_package_renderer(chat, tools, renderer):
            return package_renderer
    turns = open_turns(chat, tools)
    if not tools:
        return TemplateRenderer(chat, turns)
    found = find_tool_format(chat, tools) if tool_format == "auto" else tool_format
    return TemplateRenderer(chat, turns, tuple(tools), found)


def _check(chat: Chat, tools: Tools, renderer: str, tool_format: str) -> None:
    if tool_format != "auto" and not tools:
        raise ConfigError("tool_format has no effect", got="an environment without tools", do="remove tool_format")
    if renderer in ("auto", "template"):
        return
    if chat.processor is not None:
        need = "template or auto with images: the chat template has the places of images"
        raise ConfigError("renderer", got=repr(renderer), need=need, do="leave it out")
    if chat.prompt_format == "text":
        got, need = "plain-text prompts", "chat messages"
        raise ConfigError("renderer has no effect", got=got, need=need, do="remove renderer")
    if tool_format != "auto":
        got = f"renderer = {renderer!r}, which reads the calls of this model family"
        raise ConfigError("tool_format has no effect", got=got, do="remove tool_format")


@frozen
class TemplateRenderer:
    """Conversations that the chat template renders, or conversations in plain text.

    tool_format  of the calls in a turn; None: there are no tools, and nothing is a call
    """

    chat: Chat
    turns: Turns
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_format: ToolFormat | None = None

    def prompt(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        return self.turns.prompt(messages, self.tools if tools is None else tools)

    def rerendered(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        return self.prompt(messages, tools)

    def following(
        self, before: Messages, turn_tokens: Sequence[int], new: Messages, tools: Tools | None = None
    ) -> list[int]:
        return self.turns.following(before, turn_tokens, new, self.tools if tools is None else tools)

    def parse(self, tokens: Sequence[int], finish: FinishReason, *, turn: int = 0) -> Turn:
        written = text_of(self.chat, tokens)
        read = self.tool_format
        content, calls = (written, ()) if read is None else parse_calls(read, written, self.tools)
        is_text = self.chat.prompt_format == "text"  # its messages are joined to the conversation as they are
        return turn_of(self.chat, tokens, finish, turn, {"content": written if is_text else content}, calls)
