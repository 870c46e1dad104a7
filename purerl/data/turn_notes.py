"""Notes on turns that are rendered in another way than their rows suggest, counted, with the names of the rows.

A prompt that ends with an assistant turn; a prompt that the answer has again; thoughts and tools that the chat template
leaves out; and special tokens that texts have beside those of the chat template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from purerl.data.chat import Chat, Messages, add_system_prompt, eos_tokens, render
from purerl.data.examples import DataSet, extract_answers, extract_prompt, iterate_chunks, rendered_at, rows_name
from purerl.data.kinds import Kind, iterate_conversations, kinds_of
from purerl.data.placeholders import THOUGHTS, has_inline_thoughts, has_thoughts, tool_names, with_tools
from purerl.data.row_images import text_of
from purerl.data.special_tokens import pattern_of, special_texts
from purerl.data.template_arguments import template_words
from purerl.data.template_check import rendered_placeholders
from purerl.errors import DataError

__all__ = ["PREFILL", "turn_notes"]

PREFILL = "a prompt that ends with an assistant turn"

_PREFILLED = f"{PREFILL}: the chat template ends it before the answer"
_REPEATED = "an answer that begins with the prompt, so that the text has it twice"
_THOUGHTS = "thoughts of a turn that the chat template leaves out"
_ADDED = "an answer without thoughts, before which the chat template adds empty ones, which are learned"
_TOOLS = "tools that the chat template leaves out"
_EMPTY = re.compile(r"\s*(<[\w:]*think[\w:]*>)?\s*</[\w:]*think[\w:]*>\s*")
_SHORTEST_PROMPT = 4  # characters: an answer may begin with a shorter text by chance


def turn_notes(data: DataSet, chat: Chat, *, shows_tools: bool) -> Iterator[str]:
    """The notes on `data`; without `shows_tools`, none on the tools of rows."""
    rows: dict[str, list[int]] = {}
    for index, reason in _text_reasons(data, chat) if chat.prompt_format == "text" else _reasons(data, chat):
        if reason != _TOOLS or shows_tools:
            rows.setdefault(reason, []).append(index)
    for reason, indices in rows.items():
        unique = [*dict.fromkeys(indices)]
        yield f"{'1 row' if len(unique) == 1 else f'{len(unique):,} rows'} with {reason}: {rows_name(data, unique)}"


def _reasons(data: DataSet, chat: Chat) -> Iterator[tuple[int, str]]:
    left_out, added, spelled = dict[Kind, bool](), dict[Kind, str | None](), _Spelled.of(chat)
    for index, _, row_chat, conversations in iterate_conversations(chat, data):
        for prompt, answer in conversations:
            messages = [*prompt, *answer]
            reasons = [
                *([_PREFILLED] if _is_prefilled(data, prompt, answer) else []),
                *([_REPEATED] if answer and _begins_again(prompt, answer[0]) else []),
                *_left_out(row_chat, prompt, answer, left_out),
                *_added(row_chat, prompt, answer, added),
                *(f"a message of the role {role!r} {what}" for role, what in spelled.by(messages)),
            ]
            yield from ((index, reason) for reason in reasons)


def _text_reasons(data: DataSet, chat: Chat) -> Iterator[tuple[int, str]]:
    if data.example_format.prompt_format != "text" or data.example_format.example_type == "prompts":
        return
    spelled = _Spelled.of(chat)
    end = chat.tokenizer.decode(list(eos_tokens(chat.tokenizer)))
    for chunk in iterate_chunks(data.indices):
        for index, row in zip(chunk, rendered_at(data, chunk), strict=True):
            prompt = str(extract_prompt(data.example_format, row))
            for answer in map(str, extract_answers(data.example_format, row)):
                if len(prompt.strip()) >= _SHORTEST_PROMPT and answer.startswith(prompt):
                    yield index, _REPEATED
                if token := spelled.ends.search(answer.removesuffix(end)):
                    yield index, f"an answer {_spells(token[0])}"


def _is_prefilled(data: DataSet, prompt: Messages, answer: Messages) -> bool:
    """Whether something follows an assistant turn at the end of the prompt. Equal pairs have no answer."""
    is_answered = bool(answer) or data.example_format.example_type == "prompts"
    return is_answered and bool(prompt) and prompt[-1]["role"] == "assistant"


def _begins_again(prompt: Messages, message: Mapping[str, Any]) -> bool:
    texts = [(each["role"], text_of(each.get("content"))) for each in (*prompt, message)]
    return message["role"] != "assistant" and texts[-1] in texts[:-1]


def _left_out(chat: Chat, prompt: Messages, answer: Messages, known: dict[Kind, bool]) -> list[str]:
    """Parts that are left out of a conversation; `known` has whether each kind of message or conversation loses any."""
    *kinds, whole = kinds_of(chat, prompt, answer)
    thoughtful = [kind for kind, message in zip(kinds, [*prompt, *answer], strict=True) if has_thoughts(message)]
    if not known.keys() >= {*thoughtful}:
        known |= dict.fromkeys(thoughtful, False) | _without_thoughts(chat, prompt, answer, kinds)
    if whole not in known:
        known[whole] = bool(chat.chat_template_kwargs.get("tools")) and not _shows_tools(chat, prompt, answer)
    thoughts = [_THOUGHTS] if any(known[kind] for kind in thoughtful) else []
    return [*thoughts, *([_TOOLS] if known[whole] else [])]


def _added(chat: Chat, prompt: Messages, answer: Messages, known: dict[Kind, str | None]) -> list[str]:
    """The empty thoughts that are learned with answers; `known` has those of each kind of message."""
    kinds = kinds_of(chat, prompt, answer)[:-1]
    if not known.keys() >= {*kinds}:
        known |= dict.fromkeys(kinds) | _empty_thoughts(chat, prompt, answer, kinds)
    return [f"{_ADDED}, {text!r}" for text in dict.fromkeys(known[kind] for kind in kinds) if text]


def _empty_thoughts(chat: Chat, prompt: Messages, answer: Messages, kinds: Sequence[Kind]) -> dict[Kind, str | None]:
    rendered = rendered_placeholders(chat, prompt, answer)
    if rendered is None:
        return {}
    found: dict[Kind, str | None] = {}
    shift, shown = len(rendered.messages) - len(kinds), rendered.text.lower()
    for piece in rendered.pieces:
        position = shown.find(piece.text)
        start = next((start for start, end in rendered.spans if start <= position < end), position)
        before = rendered.text[start:position]
        if piece.part == "text" and before.strip() and _EMPTY.fullmatch(before):
            found.setdefault(kinds[piece.message - shift], before)
    return found


def _without_thoughts(chat: Chat, prompt: Messages, answer: Messages, kinds: Sequence[Kind]) -> dict[Kind, bool]:
    """The kinds of messages whose thoughts are left out. Keys that the template does not read are listed elsewhere."""
    rendered = rendered_placeholders(chat, prompt, answer)
    if rendered is None:
        return {}
    reads_keys = not _words(chat).isdisjoint(THOUGHTS)
    added = len(rendered.messages) - len(kinds)  # the system prompt
    missing = {piece.message - added for piece in rendered.left_out if piece.part == "thoughts"}
    messages = [*prompt, *answer]
    return {kinds[k]: True for k in missing if reads_keys or has_inline_thoughts(messages[k])}


def _shows_tools(chat: Chat, prompt: Messages, answer: Messages) -> bool:
    if "tools" not in _words(chat):  # which is listed elsewhere
        return True
    tools = chat.chat_template_kwargs["tools"]
    named = {**chat.chat_template_kwargs, "tools": with_tools(tools)}
    try:
        messages = [*add_system_prompt(chat, prompt), *answer]
        text = render(evolve(chat, chat_template_kwargs=named, base=chat.base or chat), messages)
    except DataError:
        return True
    return all(name in text for name in tool_names(tools))


def _words(chat: Chat) -> frozenset[str]:
    return template_words(chat.tokenizer, chat.chat_template_kwargs.get("tools"))


@frozen
class _Spelled:
    """The special tokens that texts must not spell: in turns of the assistant, and in other messages."""

    ends: re.Pattern[str]
    others: re.Pattern[str] | None

    @classmethod
    def of(cls, chat: Chat) -> _Spelled:
        """The tokens of `chat`: answers may have tokens such as ``<think>``, but neither BOS nor a stop token."""
        tokenizer = chat.tokenizer
        ends = [tokenizer.bos_token, tokenizer.eos_token, *chat.stop_strings]
        return cls(pattern_of(filter(None, ends)), None if chat.escapes else pattern_of(special_texts(tokenizer)))

    def by(self, messages: Messages) -> Iterator[tuple[str, str]]:
        """The role of each message that spells one, and which."""
        for message in messages:
            is_answer = message["role"] == "assistant"
            pattern = self.ends if is_answer else self.others
            texts = [text_of(message.get("content")), *(message.get(name) for name in THOUGHTS if is_answer)]
            found = (pattern.search(text) for text in texts if pattern and isinstance(text, str))
            if token := next(filter(None, found), None):
                yield message["role"], _spells(token[0])


def _spells(token: str) -> str:
    return f"that spells {token!r}, which becomes this special token, beside those that are added"
