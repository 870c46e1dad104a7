"""The parts of a rendered conversation that are learned: each turn from the generation prompt to its end token."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate

from purerl.data.chat import Chat, Messages, render
from purerl.data.continuation import BorderError, Spans, continued_answer, generation_prompt, with_remedy
from purerl.data.messages import is_learned
from purerl.errors import DataError

__all__ = ["has_generation_markers", "learned_spans"]

_MARKER, _END_MARKER = (re.compile(rf"{{%([-+]?)\s*{name}\s*([-+]?)%}}") for name in ("generation", "endgeneration"))
_START, _END = "\ue0f2", "\ue0f3"  # private use: they have no meaning in any text
# In place of the markers, the turn is assigned to a variable, and written between two of these characters. A block
# follows, because Jinja removes a line break after a block.
_SET = r"{%\1 set purerl_turn \2%}"
_END_SET = rf"{{%\1 endset %}}{{{{ '{_START}' ~ purerl_turn ~ '{_END}' }}}}{{% if true %}}{{% endif \2%}}"


def learned_spans(chat: Chat, messages: Messages, first: int) -> tuple[str, Spans]:
    """The rendered `messages`, and the spans of the turns to learn from message `first` on.

    If the template renders the only answer in another way than after the generation prompt, the answer is joined to
    the generation prompt, see `purerl.data.continuation`.

    Raises: DataError if earlier turns change when more messages follow, and if an answer does not continue the
    generation prompt.
    """
    try:
        return _spans(chat, messages, first)
    except BorderError as error:
        raise with_remedy(error, chat, messages, first, _spans) from error


def _spans(chat: Chat, messages: Messages, first: int) -> tuple[str, Spans]:
    try:
        return (_marked_spans if has_generation_markers(chat) else _spans_of_turns)(chat, messages, first)
    except BorderError:
        if all(map(is_learned, messages[first:])) and len(messages) == first + 1:
            return continued_answer(chat, messages)
        raise


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
    border = _prefix_length(chat, text, messages[:first], is_prompt=is_assistant)
    turn = next(k for k in range(first, len(messages)) if messages[k]["role"] == "assistant")
    header = generation_prompt(chat, messages[:turn])
    own = ((max(start, border), end) for start, end in spans if end > border)
    return text, [_trimmed(chat, text, start, end, header) for start, end in own]


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """`spans` without empty ones. Those of which one begins where another ends are one."""
    joined: Spans = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined


def _trimmed(chat: Chat, text: str, start: int, end: int, header: str) -> tuple[int, int]:
    """The span from the end of `header` on, if that is in it, and without space after an end token."""
    ends = (k for k in range(start, min(start + len(header), end) + 1) if text.endswith(header, 0, k))
    start = next(ends, start) if header else start
    kept = text[start:end].rstrip()
    return start, start + len(kept) if kept.endswith(chat.end_strings) else end


def _spans_of_turns(chat: Chat, messages: Messages, first: int) -> tuple[str, Spans]:
    """The rendered `messages`, and what each turn to learn from message `first` on adds, up to its end token."""
    text, spans = render(chat, messages), []
    for turn in range(first, len(messages)):
        if is_learned(messages[turn]):
            start = _prefix_length(chat, text, messages[:turn], is_prompt=True)
            end = _end_of_turn(chat, text, messages[: turn + 1])
            # Text after the end token, for example a line break, is not part of the answer.
            ends = [k + len(string) for string in chat.end_strings if (k := text.rfind(string, start, end)) >= 0]
            stops = [len(string) for string in chat.stop_strings if text.startswith(string, end)]  # as in GLM's
            spans.append((start, max(ends, default=end + max(stops, default=0))))
    return text, spans


def _end_of_turn(chat: Chat, text: str, messages: Messages) -> int:
    """The number of characters of `messages`, without a stop token that follows only the last turn, as in Phi-3's.

    Raises: BorderError if they are not at the start of `text`.
    """
    whole = render(chat, messages)
    prefixes = (whole.removesuffix(string) for string in ("", *chat.stop_strings))
    length = next((len(prefix) for prefix in prefixes if text.startswith(prefix)), None)
    if length is None:
        raise BorderError.of_earlier_turns(len(messages))
    return length


def _prefix_length(chat: Chat, text: str, messages: Messages, *, is_prompt: bool) -> int:
    """The number of characters of `messages`, with the generation prompt if `is_prompt`.

    Raises: BorderError if they are not at the start of `text`.
    """
    prefix = render(chat, messages, add_generation_prompt=True) if is_prompt else render(chat, messages)
    if text.startswith(prefix):
        return len(prefix)
    before = render(chat, messages) if is_prompt else prefix
    if text.startswith(before):
        raise BorderError.of_prompt(prefix[len(before) :], text[len(before) :])
    raise BorderError.of_earlier_turns(len(messages))
