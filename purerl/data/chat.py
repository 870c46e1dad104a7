"""Tokenization of prompts and conversations, and the mask of the tokens to learn.

A string is tokenized without changes. Chat messages are rendered with the tokenizer's chat template, and the template
adds all special tokens. A rendered prompt ends with the header of the assistant turn (the generation prompt). A prompt
that spells a special token can be tokenized as text, see `Chat.escapes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from attrs import evolve, field, frozen

from purerl.data.columns import PromptFormat
from purerl.data.settings import SpecialTokens
from purerl.data.special_tokens import encode, is_marked, mark, unmark
from purerl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Chat",
    "Messages",
    "Prompt",
    "TextOrMessages",
    "TokenizedExample",
    "add_system_prompt",
    "check_settings",
    "decode",
    "encode_continuation",
    "encode_rendered",
    "open_chat",
    "render",
    "template_words",
    "text_note",
    "tokenize_answer",
    "tokenize_prompts",
]

Messages = Sequence[Mapping[str, Any]]
TextOrMessages = str | Messages
"""A prompt or an answer as it is stored in the file: a string, or chat messages."""

_RESERVED_KWARGS = ("messages", "add_generation_prompt")
_PLACEHOLDER = "purerl placeholder"
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


@frozen
class Chat:
    """The tokenizer and the chat settings of a run.

    tokenizer             the tokenizer of the model
    end_tokens            token ids that end an answer in training data: the end-of-turn token of the chat template,
                          then the EOS token of the tokenizer; empty if there is neither
    stop_tokens           token ids that end a completion: `end_tokens`, then `extra_stop_tokens` of `open_chat`
    system_prompt         the system prompt of conversations without one
    chat_template_kwargs  keyword arguments of the chat template
    escapes               in plain-text prompts, in the descriptions of tools, and in all messages except the
                          assistant's, text that spells a special token is tokenized as text. Otherwise it becomes the
                          token
    prompt_format         "text": prompts are plain text, and the chat template is not applied
    """

    tokenizer: Any  # the annotations of transformers do not narrow what its calls return
    end_tokens: tuple[int, ...]
    stop_tokens: tuple[int, ...]
    system_prompt: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(factory=dict)
    escapes: bool = False
    prompt_format: PromptFormat = "messages"

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts of `stop_tokens`."""
        return tuple(self.tokenizer.decode([token]) for token in self.stop_tokens)

    @cached_property
    def line_break_tokens(self) -> tuple[int, ...]:
        """The tokens of a text that is a line break."""
        return tuple(encode_rendered(self, ["\n"])[0])


class Prompt(NamedTuple):
    """A prompt as the input of a model."""

    text: str
    tokens: list[int]


class TokenizedExample(NamedTuple):
    """The tokens of a prompt and its answer; `action` is True for the tokens to learn."""

    tokens: list[int]
    action: list[bool]


def check_settings(
    prompt_format: PromptFormat, *, system_prompt: str | None, chat_template_kwargs: Mapping[str, Any]
) -> None:
    """Raise ConfigError for chat settings if the prompts are plain text."""
    for name, value in (("system_prompt", system_prompt), ("chat_template_kwargs", chat_template_kwargs or None)):
        if value is not None and prompt_format == "text":
            do = f"remove {name}, or write the prompts as chat messages"
            raise ConfigError(f"{name} has no effect", got="plain-text prompts", need="chat messages", do=do)


def open_chat(
    tokenizer: PreTrainedTokenizerBase,
    prompt_format: PromptFormat,
    *,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = _NO_KWARGS,
    extra_stop_tokens: Sequence[int] = (),
    special_tokens: SpecialTokens = "keep",
) -> Chat:
    """Return the `Chat` for prompts of `prompt_format`.

    `extra_stop_tokens` also end a completion, for example the `eos_token_id` values of the model's generation config.
    Ids outside the vocabulary of `tokenizer` are ignored.

    Raises: ConfigError if the prompts are plain text and a chat setting is set; if the chat template does not read an
    argument; if the prompts are messages and the tokenizer has no chat template.
    """
    check_settings(prompt_format, system_prompt=system_prompt, chat_template_kwargs=chat_template_kwargs)
    escapes = special_tokens == "escape"
    extra = [token for token in extra_stop_tokens if token < len(tokenizer)]
    if prompt_format == "text":
        return _with_end_tokens(
            Chat(tokenizer, (), (), escapes=escapes, prompt_format="text"), _eos_tokens(tokenizer), extra
        )
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
            got="prompts that are chat messages",
            need="a chat template that renders them",
            do="use a model that has one, put chat_template.jinja next to its tokenizer, or write the prompts as text",
        )
    _check_template_kwargs(tokenizer, chat_template_kwargs)
    chat = Chat(tokenizer, (), (), system_prompt, chat_template_kwargs, escapes)
    return _with_end_tokens(chat, [*_end_of_turn_tokens(chat), *_eos_tokens(tokenizer)], extra)


def text_note(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A note on plain-text prompts for a model with a chat template; None if it has none."""
    if not tokenizer.chat_template:
        return None
    do = "write the prompts as messages to apply it"
    return f"the prompts are plain text, so the chat template of the model is not applied; {do}"


def _check_template_kwargs(tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any]) -> None:
    words = template_words(tokenizer)
    for name in chat_template_kwargs:
        if name in _RESERVED_KWARGS:
            got = "an argument that purerl sets for every prompt"
            raise ConfigError(f"chat_template_kwargs.{name}", got=got, do="remove it")
        if name not in words:
            matches = get_close_matches(name, words, n=1)
            do = f"did you mean {matches[0]!r}?" if matches else "remove it"
            need = "an argument that the chat template reads"
            raise ConfigError(f"chat_template_kwargs.{name} has no effect", need=need, do=do)


def template_words(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Any] | None = None) -> set[str]:
    """All words in the chat template that is used with these `tools`, names of arguments among them."""
    return set(re.findall(r"[A-Za-z_]\w*", str(tokenizer.get_chat_template(tools=tools))))


def _with_end_tokens(chat: Chat, end_tokens: Sequence[int], extra: Sequence[int]) -> Chat:
    stop_tokens = tuple(dict.fromkeys([*end_tokens, *extra]))
    return evolve(chat, end_tokens=tuple(dict.fromkeys(end_tokens)), stop_tokens=stop_tokens)


def _eos_tokens(tokenizer: Any) -> tuple[int, ...]:
    return () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)


def _end_of_turn_tokens(chat: Chat) -> list[int]:
    """The special token that the template adds after an answer. It can differ from the tokenizer's EOS token."""
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": _PLACEHOLDER}]
    _, placeholder, suffix = render(chat, messages).rpartition(_PLACEHOLDER)
    tokens = encode_rendered(chat, [suffix])[0] if placeholder else []
    return [token for token in tokens if token in chat.tokenizer.added_tokens_decoder][:1]


# --- prompts -----------------------------------------------------------------------------------------------------


def tokenize_prompts(chat: Chat, prompts: Sequence[TextOrMessages]) -> list[Prompt]:
    """Tokenize `prompts`, which are all strings or all messages.

    A string is tokenized with the special tokens of the tokenizer. Messages are rendered with the generation prompt.

    Raises: DataError if the chat template raises an error, or if a prompt has no tokens.
    """
    texts = [prompt if isinstance(prompt, str) else _render_prompt(chat, prompt) for prompt in prompts]
    is_text = bool(prompts) and isinstance(prompts[0], str)
    tokens = _encode_strings(chat, texts) if is_text else encode_rendered(chat, texts)
    for text, ids in zip(texts, tokens, strict=True):
        if not ids:
            raise DataError(f"prompt {text!r}", got="no tokens", need="at least one token", do="remove the row")
    return [Prompt(unmark(text), ids) for text, ids in zip(texts, tokens, strict=True)]


def _render_prompt(chat: Chat, messages: Messages) -> str:
    return render(chat, add_system_prompt(chat, messages), add_generation_prompt=True)


def add_system_prompt(chat: Chat, messages: Messages) -> list[Mapping[str, Any]]:
    """`messages`, after the system prompt of `chat` if they have none. Raises DataError if there is no message."""
    has_system_prompt = bool(messages) and messages[0]["role"] == "system"
    if not has_system_prompt and chat.system_prompt is not None:
        return [{"role": "system", "content": chat.system_prompt}, *messages]
    if not messages:
        what = "the conversation has no message before the first assistant turn"
        raise DataError(what, need="a system or user message", do="add a prompt, or remove the row")
    return [*messages]


def render(chat: Chat, messages: Messages, **kwargs: Any) -> str:
    """`messages` as text, by the chat template with the arguments `kwargs`; marked where `chat.escapes` says so.

    Raises: DataError if the chat template raises an error.
    """
    return _apply_template(chat, messages, tokenize=False, **kwargs)


def _apply_template(chat: Chat, messages: Messages, **kwargs: Any) -> Any:
    from jinja2 import TemplateError

    messages = list(messages)
    if chat.escapes:
        messages = [_escaped(chat, message) for message in messages]
        kwargs = {**kwargs, "tools": _marked(chat, kwargs.get("tools"))}
    try:
        return chat.tokenizer.apply_chat_template(messages, **kwargs, **chat.chat_template_kwargs)
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(f"the chat template raised an error: {error}", got=_roles(messages)) from error


def _roles(messages: Messages) -> str:
    return "messages with the roles " + ", ".join(str(message["role"]) for message in messages)


def _escaped(chat: Chat, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """`message` with its content marked where it spells a special token, unless it is the assistant's."""
    content = message.get("content")
    if message["role"] == "assistant" or not isinstance(content, str):
        return message
    return {**message, "content": mark(chat.tokenizer, content)}


def _marked(chat: Chat, value: Any) -> Any:
    """`value` with all strings in it marked where they spell a special token."""
    if isinstance(value, str):
        return mark(chat.tokenizer, value)
    if isinstance(value, Mapping):
        return {key: _marked(chat, item) for key, item in value.items()}
    return [_marked(chat, item) for item in value] if isinstance(value, list | tuple) else value


def _encode_strings(chat: Chat, texts: Sequence[str]) -> list[list[int]]:
    """Tokenize plain-text prompts, with the special tokens that the tokenizer adds."""
    options = {"split_special_tokens": True} if chat.escapes else {}
    return chat.tokenizer(list(texts), **options)["input_ids"]


def encode_rendered(chat: Chat, texts: Sequence[str]) -> list[list[int]]:
    """Tokenize the results of `render`. The chat template has already added the special tokens."""
    if chat.escapes and any(map(is_marked, texts)):
        return [encode(chat.tokenizer, text).tokens for text in texts]
    backend = getattr(chat.tokenizer, "backend_tokenizer", None)
    if backend is None or backend.truncation or backend.padding or backend.encode_special_tokens:
        return chat.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    # What transformers builds around these numbers takes longer than they do, and a turn has few tokens.
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def encode_continuation(chat: Chat, text: str) -> list[int]:
    """Tokenize rendered `text` that follows other tokens.

    Some tokenizers add a space at the start of a text. It is avoided by a line break before it, whose tokens are
    removed again.
    """
    before, joined = chat.line_break_tokens, encode_rendered(chat, ["\n" + text])[0]
    is_prefix = joined[: len(before)] == [*before]
    return joined[len(before) :] if is_prefix else encode_rendered(chat, [text])[0]


def decode(chat: Chat, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
    """The text of `tokens`."""
    # transformers checks the type of each element of a list, which takes longer than decoding.
    return chat.tokenizer.decode(np.asarray(tokens, dtype=np.int64), skip_special_tokens=skip_special_tokens)


# --- prompts with answers ----------------------------------------------------------------------------------------


def tokenize_answer(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages) -> TokenizedExample:
    """Tokenize `prompt` followed by `answer` and mark the tokens to learn. Both are strings, or both are messages.

    Strings: the tokens to learn are the answer and the EOS token after it. Messages: the tokens to learn are every
    assistant turn in the answer, each with the token that ends it. If the chat template has ``{% generation %}``
    markers, they define the assistant turns. Otherwise a turn consists of the tokens that it adds to the conversation
    before it.

    Raises: DataError if the prompt is empty, if there is nothing to learn, or if the template has no markers and
    renders earlier turns differently when more messages follow.
    """
    if isinstance(prompt, str):
        prompt_tokens = tokenize_prompts(chat, [prompt])[0].tokens
        answer_tokens = [*encode_rendered(chat, [str(answer)])[0], *_eos_tokens(chat.tokenizer)]
        action = [False] * len(prompt_tokens) + [True] * len(answer_tokens)
        return TokenizedExample(prompt_tokens + answer_tokens, action)
    prompt = add_system_prompt(chat, prompt)
    messages = [*prompt, *answer]
    tokenize = _tokenize_with_markers if _has_generation_markers(chat) else _tokenize_by_turns
    has_assistant_turn = any(message["role"] == "assistant" for message in answer)
    example = tokenize(chat, messages, len(prompt)) if has_assistant_turn else TokenizedExample([], [])
    if not any(example.action):
        what = "the conversation has no assistant tokens to learn"
        raise DataError(what, got=_roles(messages), need="an assistant turn after the prompt", do="remove the row")
    return example


def _has_generation_markers(chat: Chat) -> bool:
    return re.search(r"{%-?\s*generation\s*-?%}", str(chat.tokenizer.get_chat_template())) is not None


def _tokenize_with_markers(chat: Chat, messages: Messages, first: int) -> TokenizedExample:
    """Mark the tokens that the template marks, starting with message `first`."""
    tokens, marked = _encode_with_markers(chat, messages)
    is_assistant = messages[first]["role"] == "assistant"
    start = _prefix_length(chat, tokens, messages[:first], add_generation_prompt=is_assistant)
    return TokenizedExample(tokens, [k >= start and learned for k, learned in enumerate(marked)])


def _encode_with_markers(chat: Chat, messages: Messages) -> tuple[list[int], list[bool]]:
    """The tokens of `messages`, and whether the template marks each of them as the assistant's."""
    options: dict[str, Any] = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    text = render(chat, messages) if chat.escapes else ""
    if not is_marked(text):
        encoded = _apply_template(chat, messages, **options)
        return list(encoded["input_ids"]), list(map(bool, encoded["assistant_masks"]))
    encoded = _apply_template(chat, messages, **options, tokenizer_kwargs={"return_offsets_mapping": True})
    is_assistant = [False] * len(text)
    for (start, end), marked in zip(encoded["offset_mapping"], encoded["assistant_masks"], strict=True):
        is_assistant[start:end] = [bool(marked)] * (end - start)
    tokens, starts = encode(chat.tokenizer, text)
    return tokens, [is_assistant[start] for start in starts]


def _tokenize_by_turns(chat: Chat, messages: Messages, first: int) -> TokenizedExample:
    """Mark the tokens that each assistant turn, starting with message `first`, adds to the messages before it."""
    tokens = encode_rendered(chat, [render(chat, messages)])[0]
    action = [False] * len(tokens)
    for turn in range(first, len(messages)):
        if messages[turn]["role"] == "assistant":
            start = _prefix_length(chat, tokens, messages[:turn], add_generation_prompt=True)
            end = _prefix_length(chat, tokens, messages[: turn + 1])
            # Tokens after the end token, for example a line break, are not part of the answer.
            end = max((k + 1 for k in range(start, end) if tokens[k] in chat.end_tokens), default=end)
            action[start:end] = [True] * (end - start)
    return TokenizedExample(tokens, action)


def _prefix_length(chat: Chat, tokens: Sequence[int], messages: Messages, **kwargs: Any) -> int:
    """The number of tokens of `messages`. Raises DataError if they are not a prefix of `tokens`."""
    prefix = encode_rendered(chat, [render(chat, messages, **kwargs)])[0]
    if tokens[: len(prefix)] != prefix:
        raise DataError(
            "the chat template changes earlier turns when more messages follow",
            got=f"different tokens for the first {len(messages)} messages",
            need="turns that stay the same when messages follow, or a template with {% generation %} markers",
            do="put one answer in each row, in columns `prompt` and `completion`, or use another chat template",
        )
    return len(prefix)
