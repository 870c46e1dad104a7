"""From prompts and conversations to tokens, and which of them are the assistant's.

A text is tokenized as it is. Messages are rendered through the tokenizer's chat template; special tokens are then the
template's business. A prompt ends with the header of the assistant's turn, so that what follows is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve, field, frozen

from purerl.data.columns import Form
from purerl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Chat",
    "Given",
    "Messages",
    "Prompt",
    "TokenizedExample",
    "check_settings",
    "open_chat",
    "tokenize_answer",
    "tokenize_prompts",
]

Messages = Sequence[Mapping[str, Any]]
Given = str | Messages
"""A prompt, or what is to follow it, as the file has it."""

_OURS = ("messages", "add_generation_prompt")
_MARK = "purerl's mark"
_NONE: Mapping[str, Any] = MappingProxyType({})


@frozen
class Chat:
    """How a run's texts or conversations become tokens.

    tokenizer   the model's
    ends        ids that end an answer as it is written, the likeliest first; none where nothing does
    stops       ids that end a completion: those, and what the model itself says
    system_prompt         the system prompt of conversations that have none of their own
    chat_template_kwargs  arguments of the chat template
    """

    tokenizer: Any  # transformers' own types leave open what its calls return
    ends: tuple[int, ...]
    stops: tuple[int, ...]
    system_prompt: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(factory=dict)


class Prompt(NamedTuple):
    """A prompt as the model sees it."""

    text: str
    tokens: list[int]


class TokenizedExample(NamedTuple):
    """A whole sequence, and which of its tokens are to be learned."""

    tokens: list[int]
    action: list[bool]


def check_settings(form: Form, *, system_prompt: str | None, chat_template_kwargs: Mapping[str, Any]) -> None:
    """Refuse settings of conversations where prompts are texts. Raises ConfigError."""
    for name, value in (("system_prompt", system_prompt), ("chat_template_kwargs", chat_template_kwargs)):
        if value and form == "text":
            do = f"leave {name} out, or write the prompts as messages"
            raise ConfigError(f"{name} has no effect", got="prompts that are texts", need="chat messages", do=do)


def open_chat(
    tokenizer: PreTrainedTokenizerBase,
    form: Form,
    *,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = _NONE,
    ends: Sequence[int] = (),
) -> Chat:
    """How prompts of `form` become tokens. `ends` are ids that the model says end a completion.

    Raises: ConfigError for settings without effect: of conversations where there are none, and arguments that the
    chat template does not read; and for messages where there is no chat template.
    """
    check_settings(form, system_prompt=system_prompt, chat_template_kwargs=chat_template_kwargs)
    known = [token for token in ends if token < len(tokenizer)]
    if form == "text":
        return _ending(Chat(tokenizer, (), ()), _end(tokenizer), known)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
            got="prompts that are chat messages",
            need="a template that renders them",
            do="name a model that has one, put chat_template.jinja beside its tokenizer, or make the prompts texts",
        )
    words = set(re.findall(r"[A-Za-z_]\w*", str(tokenizer.get_chat_template())))
    for name in chat_template_kwargs:
        if name in _OURS:
            raise ConfigError(
                f"chat_template_kwargs.{name}", got="an argument that is set for every prompt", do="leave it out"
            )
        if name not in words:
            near = get_close_matches(name, words, n=1)
            do = f"did you mean {near[0]!r}?" if near else "leave it out"
            raise ConfigError(
                f"chat_template_kwargs.{name} has no effect", need="an argument that the chat template reads", do=do
            )
    chat = Chat(tokenizer, (), (), system_prompt, chat_template_kwargs)
    return _ending(chat, [*_end_of_turn(chat), *_end(tokenizer)], known)


def _ending(chat: Chat, ends: Sequence[int], also: Sequence[int]) -> Chat:
    return evolve(chat, ends=tuple(dict.fromkeys(ends)), stops=tuple(dict.fromkeys([*ends, *also])))


def _end(tokenizer: Any) -> tuple[int, ...]:
    return () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)


def _end_of_turn(chat: Chat) -> list[int]:
    """The special token that the template puts after an answer, which need not be the tokenizer's end token."""
    exchange = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": _MARK}]
    _, mark, after = _rendered(chat, exchange).rpartition(_MARK)
    tokens = _ids(chat, [after])[0] if mark else []
    return [token for token in tokens if token in chat.tokenizer.added_tokens_decoder][:1]


# --- prompts -----------------------------------------------------------------------------------------------------


def tokenize_prompts(chat: Chat, given: Sequence[Given]) -> list[Prompt]:
    """Each of `given` as the model sees it: a text as it is, messages with the header of the assistant's turn.

    Raises: DataError where the template refuses a conversation, or a prompt has no tokens.
    """
    texts = [one if isinstance(one, str) else _opened(chat, one) for one in given]
    plain = bool(given) and isinstance(given[0], str)
    tokens = chat.tokenizer(texts)["input_ids"] if plain else _ids(chat, texts)
    for text, ids in zip(texts, tokens, strict=True):
        if not ids:
            raise DataError(f"prompt {text!r}", got="no tokens", need="something to continue")
    return [Prompt(text, ids) for text, ids in zip(texts, tokens, strict=True)]


def _opened(chat: Chat, messages: Messages) -> str:
    return _rendered(chat, _with_system(chat, messages), add_generation_prompt=True)


def _with_system(chat: Chat, messages: Messages) -> list[Mapping[str, Any]]:
    own = bool(messages) and messages[0]["role"] == "system"
    system = [] if own or chat.system_prompt is None else [{"role": "system", "content": chat.system_prompt}]
    if not system and not messages:
        raise DataError("a conversation that the assistant begins", need="a message before it: something to answer")
    return [*system, *messages]


def _rendered(chat: Chat, messages: Messages, **kwargs: Any) -> str:
    return _applied(chat, messages, tokenize=False, **kwargs)


def _applied(chat: Chat, messages: Messages, **kwargs: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return chat.tokenizer.apply_chat_template(list(messages), **kwargs, **chat.chat_template_kwargs)
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(str(one["role"]) for one in messages) or "no messages"
        raise DataError(f"the chat template refuses a conversation: {error}", got=roles) from error


def _ids(chat: Chat, texts: Sequence[str]) -> list[list[int]]:
    return chat.tokenizer(list(texts), add_special_tokens=False)["input_ids"]


# --- what follows a prompt ---------------------------------------------------------------------------------------


def tokenize_answer(chat: Chat, prompt: Given, answer: Given) -> TokenizedExample:
    """`prompt` and the `answer` to it, both texts or both messages, and what in them is to be learned.

    Of a text that is all of the answer, and the end token after it. Of messages it is every turn of the assistant's in
    the answer, with the token that ends it, and no other's: as the template marks them with ``{% generation %}``, or
    where it marks none, what each turn adds to the conversation before it.

    Raises: DataError where there is nothing to continue or nothing to learn, and where the template marks nothing and
    renders the beginning of a conversation in another way than the whole.
    """
    if isinstance(prompt, str):
        before = tokenize_prompts(chat, [prompt])[0].tokens
        after = [*_ids(chat, [str(answer)])[0], *_end(chat.tokenizer)]
        return TokenizedExample(before + after, [False] * len(before) + [True] * len(after))
    before = _with_system(chat, prompt)
    messages, first = [*before, *answer], len(before)
    learn = _marked if _marks(chat) else _added
    has_turn = any(one["role"] == "assistant" for one in answer)
    row = learn(chat, messages, first) if has_turn else TokenizedExample([], [])
    if not any(row.action):
        got = ", ".join(str(one["role"]) for one in messages)
        raise DataError("a conversation without anything to learn", got=got, need="a turn of the assistant's")
    return row


def _marks(chat: Chat) -> bool:
    return re.search(r"{%-?\s*generation\s*-?%}", str(chat.tokenizer.get_chat_template())) is not None


def _marked(chat: Chat, messages: Messages, first: int) -> TokenizedExample:
    """What the template itself marks, from message `first` on."""
    found = _applied(chat, messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    tokens = list(found["input_ids"])
    answers = messages[first]["role"] == "assistant"
    begin = _length(chat, tokens, messages[:first], add_generation_prompt=answers)
    return TokenizedExample(tokens, [k >= begin and bool(mark) for k, mark in enumerate(found["assistant_masks"])])


def _added(chat: Chat, messages: Messages, first: int) -> TokenizedExample:
    """What each turn of the assistant's from message `first` on adds to the messages before it."""
    tokens = _ids(chat, [_rendered(chat, messages)])[0]
    action = [False] * len(tokens)
    for turn in range(first, len(messages)):
        if messages[turn]["role"] == "assistant":
            begin = _length(chat, tokens, messages[:turn], add_generation_prompt=True)
            end = _length(chat, tokens, messages[: turn + 1])
            # What stands after the token that ends the turn, such as a line break, is not the assistant's.
            end = max((k + 1 for k in range(begin, end) if tokens[k] in chat.ends), default=end)
            action[begin:end] = [True] * (end - begin)
    return TokenizedExample(tokens, action)


def _length(chat: Chat, tokens: Sequence[int], messages: Messages, **kwargs: Any) -> int:
    """The length of `messages` in tokens; `tokens`, of the whole conversation, begin with them."""
    beginning = _ids(chat, [_rendered(chat, messages, **kwargs)])[0]
    if tokens[: len(beginning)] != beginning:
        raise DataError(
            "the chat template renders the beginning of a conversation otherwise than the whole",
            got=f"another beginning after {len(messages)} messages",
            need="turns that stay as they are when others follow, or a template with {% generation %} marks",
            do="learn one answer at a time, from columns `prompt` and `completion`, or name another template",
        )
    return len(beginning)
