"""Tokenization of prompts with answers, and the mask of the tokens to learn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from purerl.data.boundaries import encode_after_prompt, encode_with_cuts
from purerl.data.chat import (
    Chat,
    Messages,
    TextOrMessages,
    add_system_prompt,
    empty_prompt,
    eos_tokens,
    render,
    roles_of,
    with_expansions,
)
from purerl.data.encoding import encode_strings
from purerl.data.messages import is_learned
from purerl.data.row_images import images_of
from purerl.errors import DataError
from purerl.images import Image

__all__ = [
    "TokenizedExample",
    "generation_prompts",
    "has_generation_markers",
    "learned_spans",
    "tokenize_answer",
    "tokenize_text",
]

_MARKER, _END_MARKER = (re.compile(rf"{{%([-+]?)\s*{name}\s*([-+]?)%}}") for name in ("generation", "endgeneration"))
_START, _END = "\ue0f2", "\ue0f3"  # private use: they have no meaning in any text
# In place of the markers, the turn is assigned to a variable, and written between two of these characters. A block
# follows, because Jinja removes a line break after a block.
_SET = r"{%\1 set purerl_turn \2%}"
_END_SET = rf"{{%\1 endset %}}{{{{ '{_START}' ~ purerl_turn ~ '{_END}' }}}}{{% if true %}}{{% endif \2%}}"


class TokenizedExample(NamedTuple):
    """The tokens of a prompt and its answer, and their images; `action` is True for the tokens to learn.

    is_split   whether a token of the joint text would cross the border of a prompt and an answer
    added_end  whether the last token is the EOS token, because the chat template does not end a turn
    """

    tokens: list[int]
    action: list[bool]
    images: Sequence[Image] = ()
    is_split: bool = False
    added_end: bool = False


def tokenize_answer(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages) -> TokenizedExample:
    """Tokenize `prompt` followed by `answer` and mark the tokens to learn. Both are strings, or both are messages.

    Strings: the tokens to learn are the answer and the EOS token after it. Messages: the tokens to learn are every
    assistant turn in the answer without the weight 0, each with the token that ends it. If the chat template has
    ``{% generation %}`` markers, they define the assistant turns, without the generation prompt and without space after
    the end token. Otherwise a turn is the text that it adds to the conversation before it, and the stop token that
    begins what follows, if the template does not end a turn. After the last turn, such a template gets the EOS token.

    The tokens before a turn are those that the model would sample after: see `purerl.data.boundaries`.

    Raises: DataError if the prompt is empty, if there is nothing to learn, or if the template has no markers and
    renders earlier turns differently when more messages follow.
    """
    if isinstance(prompt, str):
        return _tokenize_text(chat, prompt, str(answer))
    prompt = add_system_prompt(chat, prompt)
    messages = [*prompt, *answer]
    text, spans = learned_spans(chat, messages, len(prompt)) if any(map(is_learned, answer)) else ("", [])
    if not spans:
        what = "the conversation has no assistant tokens to learn"
        need = "an assistant turn after the prompt, without the weight 0"
        raise DataError(what, got=roles_of(messages), need=need, do="remove the row")
    tokens, ends, is_split = encode_with_cuts(chat, text, [*chain.from_iterable(spans)])
    action = [False] * len(tokens)
    for start, end in zip(ends[::2], ends[1::2], strict=True):
        action[start:end] = [True] * (end - start)
    example = _with_end(chat, TokenizedExample(tokens, action, (), is_split))
    return _with_image_tokens(chat, example, images_of(messages))


def tokenize_text(chat: Chat, text: str) -> TokenizedExample:
    """Tokenize plain `text` and the EOS token after it. Every token is learned but the first, which nothing precedes.

    The first one is the token that the tokenizer adds before a text, if it adds one.

    Raises: DataError if there is nothing to learn.
    """
    [tokens] = encode_strings(chat, [text])
    eos = eos_tokens(chat.tokenizer)
    if not eos or [*eos] != tokens[-1:]:
        tokens = [*tokens, *eos]
    if len(tokens) < 2:
        got, need = f"a text of {len(tokens)} tokens: {text!r:.100}", "at least two tokens"
        raise DataError("there is nothing to learn", got=got, need=need, do="remove the row")
    return TokenizedExample(tokens, [False] + [True] * (len(tokens) - 1))


def _with_end(chat: Chat, example: TokenizedExample) -> TokenizedExample:
    """`example` with the EOS token after its last turn, if the chat template has no token that ends a turn."""
    eos = eos_tokens(chat.tokenizer)
    if not example.action[-1] or chat.ends_turns or not eos or example.tokens[-1] in chat.stop_tokens:
        return example
    return example._replace(tokens=[*example.tokens, *eos], action=[*example.action, True], added_end=True)


def _tokenize_text(chat: Chat, prompt: str, answer: str) -> TokenizedExample:
    tokens, [start], is_split = encode_after_prompt(chat, prompt, answer)
    if not start:
        raise empty_prompt(prompt)
    eos = eos_tokens(chat.tokenizer)
    if not eos or [*eos] != tokens[start:][-1:]:
        tokens = [*tokens, *eos]
    if len(tokens) == start:
        got, need = f"an answer without tokens: {answer!r:.100}", "text, or a tokenizer with an EOS token"
        raise DataError("there is nothing to learn", got=got, need=need, do="remove the row")
    return TokenizedExample(tokens, [k >= start for k in range(len(tokens))], (), is_split)


Spans = list[tuple[int, int]]


def learned_spans(chat: Chat, messages: Messages, first: int) -> tuple[str, Spans]:
    """The rendered `messages`, and the spans of the turns to learn from message `first` on.

    Raises: DataError as `tokenize_answer`.
    """
    return (_marked_spans if has_generation_markers(chat) else _spans_of_turns)(chat, messages, first)


def generation_prompts(chat: Chat, messages: Messages) -> tuple[str, str]:
    """The text that the chat template adds to `messages` for the model to answer, also without thoughts that it begins.

    Both are empty if that cannot be told.
    """
    try:
        before, whole = render(chat, messages), render(chat, messages, add_generation_prompt=True)
    except DataError:
        return "", ""
    prompt = whole[len(before) :] if whole.startswith(before) else ""
    return prompt, prompt.partition("<think>")[0]


def has_generation_markers(chat: Chat) -> bool:
    """Whether the chat template marks the assistant's turns with ``{% generation %}``."""
    return _MARKER.search(_template(chat)) is not None


def _template(chat: Chat) -> str:
    return str(chat.tokenizer.get_chat_template(tools=chat.chat_template_kwargs.get("tools")))


def _marked_spans(chat: Chat, messages: Messages, first: int) -> tuple[str, Spans]:
    """The rendered `messages`, and what the template marks from `first` on. Raises: DataError without right marks."""
    template = _END_MARKER.sub(_END_SET, _MARKER.sub(_SET, _template(chat)))
    parts = re.split(f"[{_START}{_END}]", render(chat, messages, chat_template=template))
    positions = [*accumulate(map(len, parts))]
    text, spans = "".join(parts), _joined(zip(positions[::2], positions[1::2], strict=False))
    learned = [is_learned(message) for message in messages if message["role"] == "assistant"]
    if not all(is_learned(message) for message in messages[first:] if message["role"] == "assistant"):
        if len(spans) != len(learned):
            got, need = f"{len(spans)} marked parts for {len(learned)} turns", "one for each: some have the weight 0"
            raise DataError("the {% generation %} markers of the chat template", got=got, need=need)
        spans = [span for span, is_kept in zip(spans, learned, strict=True) if is_kept]
    is_assistant = messages[first]["role"] == "assistant"
    border = _prefix_length(chat, text, messages[:first], add_generation_prompt=is_assistant)
    turn = next(k for k in range(first, len(messages)) if messages[k]["role"] == "assistant")
    headers = generation_prompts(chat, messages[:turn])
    own = ((max(start, border), end) for start, end in spans if end > border)
    return text, [_trimmed(chat, text, start, end, headers) for start, end in own]


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """`spans` without empty ones. Those of which one begins where another ends are one."""
    joined: Spans = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined


def _trimmed(chat: Chat, text: str, start: int, end: int, headers: Sequence[str]) -> tuple[int, int]:
    """The span from the end of one of `headers` on, if that is in it, and without space after an end token."""
    ends = (k for head in headers for k in range(start, min(start + len(head), end) + 1) if text.endswith(head, 0, k))
    start = next(ends, start)
    kept = text[start:end].rstrip()
    return start, start + len(kept) if kept.endswith(chat.end_strings) else end


def _spans_of_turns(chat: Chat, messages: Messages, first: int) -> tuple[str, Spans]:
    """The rendered `messages`, and what each turn to learn from message `first` on adds, up to its end token."""
    text, spans = render(chat, messages), []
    for turn in range(first, len(messages)):
        if is_learned(messages[turn]):
            start = _prefix_length(chat, text, messages[:turn], add_generation_prompt=True)
            end = _prefix_length(chat, text, messages[: turn + 1])
            # Text after the end token, for example a line break, is not part of the answer.
            ends = [k + len(string) for string in chat.end_strings if (k := text.rfind(string, start, end)) >= 0]
            stops = [len(string) for string in chat.stop_strings if text.startswith(string, end)]  # as in GLM's
            spans.append((start, max(ends, default=end + max(stops, default=0))))
    return text, spans


def _prefix_length(chat: Chat, text: str, messages: Messages, **kwargs: Any) -> int:
    """The number of characters of `messages`. Raises DataError if they are not at the start of `text`."""
    prefix = render(chat, messages, **kwargs)
    if not text.startswith(prefix):
        raise DataError(
            "the chat template changes earlier turns when more messages follow",
            got=f"another text for the first {len(messages)} messages",
            need="turns that stay the same when messages follow, or a template with {% generation %} markers",
            do="put one answer in each row, in columns `prompt` and `completion`, or use another chat template",
        )
    return len(prefix)


def _with_image_tokens(chat: Chat, example: TokenizedExample, images: Sequence[Image]) -> TokenizedExample:
    """`example`, in which each image has one token, with all of its tokens. None of them is learned."""
    if chat.processor is None:
        return example
    lengths = iter([len(chat.processor.expansion(image)) for image in images])
    tokens, placeholder = with_expansions(chat, example.tokens, images), chat.processor.image_token_id
    parts = (
        [False] * next(lengths) if token == placeholder else [is_learned]
        for token, is_learned in zip(example.tokens, example.action, strict=True)
    )
    return example._replace(tokens=tokens, action=[*chain.from_iterable(parts)], images=images)
