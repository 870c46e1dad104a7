"""The tokens of a conversation of several turns, without rendering or tokenizing again what the model has sampled.

What follows a turn is what the chat template adds: the remaining tokens that end the turn, the new messages, and the
header of the next assistant turn. To find it, the messages before the first turn are rendered with a placeholder as the
assistant's turn, and the new messages. The text after the placeholder follows the sampled tokens::

    ...<|im_start|>assistant⏎  12 + 30 = 42<|im_end|>  ⏎<|im_start|>user⏎and 3?<|im_end|>⏎<|im_start|>assistant⏎
    prompt                     sampled                 what follows the turn
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Protocol

from attrs import frozen

from purerl.data.chat import Chat, Messages, Prompt, add_system_prompt, render, tokenize_prompts, with_expansions
from purerl.data.encoding import encode_continuation, encode_rendered
from purerl.data.row_images import images_of, text_of
from purerl.data.special_tokens import mark, unmark
from purerl.data.template_arguments import template_variables
from purerl.errors import ConfigError, DataError

__all__ = [
    "TemplateTurns",
    "TextTurns",
    "Tools",
    "Turns",
    "open_turns",
    "rendered_turn",
    "tool_function",
    "without_stop_tokens",
]

Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of tools, as `purerl.envs.schema.tool_schema` makes them."""

_PLACEHOLDER, _ANSWER = "purerl placeholder 5d1c", "purerl answer 5d1c"
_QUESTION = {"role": "user", "content": "a question"}


class Turns(Protocol):
    """The tokens of conversations. `TemplateTurns` and `TextTurns` are the two kinds."""

    def prompt(self, messages: Messages, tools: Tools = ()) -> Prompt:
        """The whole conversation, up to and including the header of the next assistant turn.

        Raises: DataError if the conversation cannot be rendered or has no tokens.
        """
        ...

    def following(self, before: Messages, turn: Sequence[int], new: Messages, tools: Tools = ()) -> list[int]:
        """The tokens that follow the sampled tokens `turn`, up to and including the header of the next turn.

        `before` is the conversation before the turn, and `new` are the messages after it. What a template adds may
        depend on the messages before the first turn, but not on earlier turns. If the turn ends with a stop
        token, this token takes the place of the end token of the template. Otherwise, for example after a stop string,
        the result begins with the end token.

        Raises: DataError if the conversation cannot be rendered.
        """
        ...


def open_turns(chat: Chat, tools: Tools = ()) -> Turns:
    """The tokens of conversations with these settings; plain text if the prompts are plain text.

    Raises: ConfigError if the chat template does not read `tools`, or cannot continue a conversation after a turn.
    """
    return TextTurns(chat) if chat.prompt_format == "text" else _open_template(chat, tools)


def without_stop_tokens(chat: Chat, tokens: Sequence[int]) -> list[int]:
    """`tokens` without the stop tokens at their end."""
    count = sum(1 for _ in takewhile(lambda token: token in chat.stop_tokens, reversed(tokens)))
    return list(tokens[: len(tokens) - count])


def rendered_turn(chat: Chat, before: Messages, turn: Mapping[str, Any], tools: Tools = ()) -> str:
    """The text by which the chat template renders the assistant message `turn`, without the end token.

    Raises: DataError if the conversation cannot be rendered.
    """
    prompt = _rendered(chat, before, tools, add_generation_prompt=True)
    text = _rendered(chat, [*before, turn], tools)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text, strict=False)))
    if common < len(prompt) and (tag := re.search(r"<[^<>\s]*\Z", text[:common])):
        common = tag.start()  # the turn begins with another tag than the end of the generation prompt, such as <think>
    return re.split("|".join(map(re.escape, chat.stop_strings)) or "(?!)", text[common:], maxsplit=1)[0]


def tool_function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name, description and parameters of a tool, from a schema with or without ``{"type": "function"}`` around it."""
    return tool.get("function", tool)


@frozen
class TextTurns:
    """Conversations in plain text: the contents of all messages, one after the other."""

    chat: Chat

    def prompt(self, messages: Messages, tools: Tools = ()) -> Prompt:
        """The contents of `messages`, with the special tokens that the tokenizer adds. `tools` are not shown."""
        return tokenize_prompts(self.chat, [_contents(messages)])[0]

    def following(self, before: Messages, turn: Sequence[int], new: Messages, tools: Tools = ()) -> list[int]:
        """The tokens of the contents of `new`."""
        text = _contents(new)
        return encode_continuation(self.chat, mark(self.chat.tokenizer, text) if self.chat.escapes else text)


def _contents(messages: Messages) -> str:
    contents = [message.get("content") for message in messages]
    for content in contents:
        if not isinstance(content, str):
            raise DataError(
                "a message of a plain-text conversation", got=repr(content), need="content that is a string"
            )
    return "".join(contents)  # type: ignore[arg-type]


@frozen
class TemplateTurns:
    """Conversations that a chat template renders.

    closing       the text that the template adds after the content of an assistant turn: what ends the turn
    call_content  the content that stands for the text beside calls: none if the template shows it after their results
    """

    chat: Chat
    closing: str
    call_content: str = _PLACEHOLDER

    def prompt(self, messages: Messages, tools: Tools = ()) -> Prompt:
        """The conversation as the template renders it. It may leave out parts of earlier turns, such as thinking."""
        text = _rendered(self.chat, messages, tools, add_generation_prompt=True)
        if not (tokens := encode_rendered(self.chat, [text])[0]):
            raise DataError("a conversation", got="no tokens", need="at least one token")
        images = images_of(messages)
        return Prompt(unmark(text), with_expansions(self.chat, tokens, images), images)

    def following(self, before: Messages, turn: Sequence[int], new: Messages, tools: Tools = ()) -> list[int]:
        """The text that the template adds after a placeholder in place of the turn."""
        closing, added = _added(self, before, new, tools)
        tokens = encode_continuation(self.chat, closing + added)
        length = _sampled_length(self.chat, closing, turn, tokens)
        return with_expansions(self.chat, tokens[length:], images_of(new))


def _open_template(chat: Chat, tools: Tools) -> TemplateTurns:
    """Raises ConfigError if the template cannot do what `TemplateTurns` needs; tested on a short conversation."""
    names = [str(tool_function(tool).get("name")) for tool in tools]
    if tools and "tools" not in template_variables(chat.tokenizer, list(tools)):
        raise ConfigError(
            "the chat template does not read `tools`",
            got=f"the tools {', '.join(names)}",
            need="a chat template that shows tools to the model",
            do="use a model that was trained with tools, or plain-text prompts",
        )
    result = {"role": "tool", "content": _ANSWER, "tool_call_id": "call00000", "name": (names or [""])[0]}
    new = result if tools else {"role": "user", "content": _ANSWER}
    try:
        closing = _closing(chat, tools)
        for content in (_PLACEHOLDER, ""):
            turns = TemplateTurns(chat, closing, content)
            if _ANSWER in _added(turns, [_QUESTION], [new], tools)[1]:
                return turns
    except DataError as error:
        raise _cannot_continue(new["role"], str(error).partition("\n")[0]) from error
    raise _cannot_continue(new["role"], "a message that the template leaves out")


def _closing(chat: Chat, tools: Tools) -> str:
    """The text after a turn, without a stop token that only follows the last one of a conversation, as in Phi-3's."""
    turn = _placeholder_turn([])
    closing = _after_placeholder(chat, [_QUESTION, turn], tools)
    with suppress(DataError):  # the template may refuse a question after a turn
        continued = _after_placeholder(chat, [_QUESTION, turn, _QUESTION], tools)
        shorter = (closing.removesuffix(string) for string in chat.stop_strings if closing.endswith(string))
        ends = (text for text in shorter if _has_stop_token(chat, text) and continued.startswith(text))
        return closing if continued.startswith(closing) else next(ends, closing)
    return closing


def _cannot_continue(role: str, got: str) -> ConfigError:
    return ConfigError(
        f"the chat template cannot continue a conversation with a message of the role {role!r}",
        got=got,
        need="a template that renders a turn as it was sampled, ends it the same way whatever follows, and adds the "
        "message after it",
        do="use another chat template or plain-text prompts, or install the package `renderers` if it knows the model",
    )


def _rendered(chat: Chat, messages: Messages, tools: Tools, **kwargs: Any) -> str:
    return render(chat, add_system_prompt(chat, messages), tools=list(tools) or None, **kwargs)


def _added(turns: TemplateTurns, before: Messages, new: Messages, tools: Tools) -> tuple[str, str]:
    """The end of a turn, and the text after it: `new` and the next header; if calls are refused, of a turn without."""
    if results := list(takewhile(lambda message: message["role"] == "tool", new)):
        with suppress(DataError):
            return _added_after_calls(turns, before, new, tools, results)
    return _added_after_calls(turns, before, new, tools, ())


def _added_after_calls(
    turns: TemplateTurns, before: Messages, new: Messages, tools: Tools, results: Messages
) -> tuple[str, str]:
    chat, closing = turns.chat, turns.closing
    first = list(takewhile(lambda message: message["role"] != "assistant", before)) or [_QUESTION]
    turn = _placeholder_turn(results, turns.call_content if results else _PLACEHOLDER)
    continued = _after_placeholder(chat, [*first, turn, *new], tools, add_generation_prompt=True)
    if results and (added := _after_closing(chat, closing, continued)) is not None:
        return closing, added
    ended = _after_placeholder(chat, [*first, turn], tools) if results else closing
    if not continued.startswith(ended):
        what = "the chat template ends a turn differently when messages follow it"
        raise DataError(what, got=repr(continued[: len(ended) + 40]), need=f"{ended!r} after the turn")
    last = max((ended.rfind(string) for string in chat.stop_strings), default=-1)
    return (ended[last:] if results and last >= 0 else closing), continued[len(ended) :]


def _after_closing(chat: Chat, closing: str, continued: str) -> str | None:
    """The text after the first `closing`, if it certainly ends the turn: no other stop token comes before it."""
    if not _has_stop_token(chat, closing):
        return None
    before, is_found, after = continued.partition(closing)
    return after if is_found and not _has_stop_token(chat, before) else None


def _placeholder_turn(results: Messages, content: str = _PLACEHOLDER) -> Mapping[str, Any]:
    """An assistant turn, with a call for each of the `results` of tools."""
    calls = [
        {"name": result.get("name") or "tool", "id": result.get("tool_call_id", ""), "arguments": {"x": _PLACEHOLDER}}
        for result in results
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _after_placeholder(chat: Chat, messages: Messages, tools: Tools, **kwargs: Any) -> str:
    """The text that the template adds after the last placeholder."""
    _, placeholder, after = _rendered(chat, messages, tools, **kwargs).rpartition(_PLACEHOLDER)
    contents = [text_of(message.get("content")) for message in messages if message["role"] != "assistant"]
    if any(_PLACEHOLDER in content for content in contents):
        raise DataError("a message", got=repr(_PLACEHOLDER), need="other text: this text stands for the assistant's")
    if not placeholder:
        raise DataError("the chat template leaves out or changes the text of an assistant turn")
    return after


def _sampled_length(chat: Chat, closing: str, turn: Sequence[int], tokens: Sequence[int]) -> int:
    """The number of `tokens`, which begin with those of `closing`, that the turn has already: its stop token."""
    if not turn or turn[-1] not in chat.stop_tokens:
        return 0
    ends = (index + 1 for index, token in enumerate(tokens) if token in chat.stop_tokens)
    return next(ends, 0) if _has_stop_token(chat, closing) else int(list(tokens[:1]) == [turn[-1]])


def _has_stop_token(chat: Chat, text: str) -> bool:
    return any(string in text for string in chat.stop_strings)
