"""Tokenization of prompts and conversations.

A string is tokenized without changes. Chat messages are rendered with the tokenizer's chat template, and the template
adds all special tokens. A rendered prompt ends with the header of the assistant turn (the generation prompt). A prompt
that spells a special token can be tokenized as text, see `Chat.escapes`.

Of an image, the chat template renders a placeholder. When all text is tokenized, the tokens that stand for the image
take its place, once: see `purerl.models.processor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve, field, frozen

from purerl.data.columns import PromptFormat
from purerl.data.encoding import encode_rendered, encode_strings, is_byte_level
from purerl.data.messages import with_parsed_calls, with_text_calls
from purerl.data.row_images import as_parts, images_of
from purerl.data.settings import SpecialTokens
from purerl.data.special_tokens import absorbing_tokens, mark, unmark
from purerl.data.template_arguments import check_template_kwargs
from purerl.errors import ConfigError, DataError, ImageError
from purerl.images import Image, ImageStore
from purerl.models.processor import Processor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Chat",
    "Messages",
    "Prompt",
    "TextOrMessages",
    "add_system_prompt",
    "check_settings",
    "empty_prompt",
    "eos_tokens",
    "image_ids",
    "open_chat",
    "prompt_texts",
    "render",
    "roles_of",
    "text_note",
    "tokenize_prompts",
    "with_expansions",
]

Messages = Sequence[Mapping[str, Any]]
TextOrMessages = str | Messages
"""A prompt or an answer as it is stored in the file: a string, or chat messages."""

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
    processor             of a model whose prompts may have images; None: they have none
    store                 where engines look for images
    base                  of a chat that has arguments of a row: the one without them, which knows the template
    """

    tokenizer: Any  # the annotations of transformers do not narrow what its calls return
    end_tokens: tuple[int, ...]
    stop_tokens: tuple[int, ...]
    system_prompt: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(factory=dict)
    escapes: bool = False
    prompt_format: PromptFormat = "messages"
    processor: Processor | None = None
    store: ImageStore | None = None
    base: Chat | None = None

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts of `stop_tokens`."""
        return tuple(self.tokenizer.decode([token]) for token in self.stop_tokens)

    @cached_property
    def reads_text_calls(self) -> bool:
        """Whether the chat template reads arguments of calls as text. An object fails, or is shown as Python has it."""
        if self.base is not None:
            return self.base.reads_text_calls
        return not _renders_call(self, with_parsed_calls) and _renders_call(self, with_text_calls)

    @cached_property
    def ends_turns(self) -> bool:
        """Whether the chat template ends an assistant turn with an added token."""
        return bool(_end_of_turn_tokens(self)) if self.base is None else self.base.ends_turns

    @cached_property
    def reads_parts(self) -> bool:
        """Whether the chat template reads contents only as lists of parts, and shows nothing of a text."""
        if self.base is not None:
            return self.base.reads_parts
        shown = [_count_shown(self, content) for content in (_PLACEHOLDER, [{"type": "text", "text": _PLACEHOLDER}])]
        return shown == [0, 1]

    @cached_property
    def end_strings(self) -> tuple[str, ...]:
        """The texts of `end_tokens`."""
        return tuple(self.tokenizer.decode([token]) for token in self.end_tokens)

    @cached_property
    def first_tokens(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer adds before a text, such as BOS."""
        for text in "a0\n":  # of which a tokenizer may not know all
            ids, own = (self.tokenizer(text, add_special_tokens=adds)["input_ids"] for adds in (True, False))
            starts = [k for k in range(len(ids)) if own and ids[k : k + len(own)] == own]
            if starts:
                return tuple(ids[: starts[0]])
        return ()

    @cached_property
    def absorbing_tokens(self) -> frozenset[int]:
        """See `purerl.data.special_tokens.absorbing_tokens`."""
        return absorbing_tokens(self.tokenizer) if self.base is None else self.base.absorbing_tokens

    @cached_property
    def is_byte_level(self) -> bool:
        """See `purerl.data.encoding.is_byte_level`."""
        return is_byte_level(self.tokenizer) if self.base is None else self.base.is_byte_level

    @cached_property
    def line_break_tokens(self) -> tuple[int, ...]:
        """The tokens of a text that is a line break."""
        return tuple(encode_rendered(self, ["\n"])[0])


class Prompt(NamedTuple):
    """A prompt as the input of a model.

    text    with one placeholder for each image
    tokens  with all tokens that stand for each image
    images  in the order of their tokens
    """

    text: str
    tokens: list[int]
    images: Sequence[Image] = ()


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
    processor: Processor | None = None,
) -> Chat:
    """Return the `Chat` for prompts of `prompt_format`.

    `extra_stop_tokens` also end a completion, for example the `eos_token_id` values of the model's generation config.
    Ids outside the vocabulary of `tokenizer` are ignored. With the `processor` of the model, messages may have images,
    and a tokenizer without a chat template gets that of the processor.

    Raises: ConfigError if the prompts are plain text and a chat setting is set; as `check_template_kwargs`; if the
    prompts are messages, and the tokenizer has no chat template, or one that does not show the text of a user's message
    once.
    """
    check_settings(prompt_format, system_prompt=system_prompt, chat_template_kwargs=chat_template_kwargs)
    escapes = special_tokens == "escape"
    extra = [token for token in extra_stop_tokens if 0 <= token < len(tokenizer)]
    if prompt_format == "text":
        return _with_end_tokens(
            Chat(tokenizer, (), (), escapes=escapes, prompt_format="text"), eos_tokens(tokenizer), extra
        )
    if processor is not None and not tokenizer.chat_template:
        tokenizer.chat_template = processor.chat_template
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
            got="prompts that are chat messages",
            need="a chat template that renders them",
            do="use a model that has one, put chat_template.jinja next to its tokenizer, or write the prompts as text",
        )
    check_template_kwargs(tokenizer, chat_template_kwargs)
    chat = Chat(tokenizer, (), (), system_prompt, chat_template_kwargs, escapes, processor=processor)
    check_user_text(chat)
    return _with_end_tokens(chat, [*_end_of_turn_tokens(chat), *eos_tokens(tokenizer)], extra)


def text_note(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A note on plain-text prompts for a model with a chat template; None if it has none."""
    if not tokenizer.chat_template:
        return None
    do = "write the prompts as messages to apply it"
    return f"the prompts are plain text, so the chat template of the model is not applied; {do}"


def _with_end_tokens(chat: Chat, end_tokens: Sequence[int], extra: Sequence[int]) -> Chat:
    stop_tokens = tuple(dict.fromkeys([*end_tokens, *extra]))
    return evolve(chat, end_tokens=tuple(dict.fromkeys(end_tokens)), stop_tokens=stop_tokens)


def eos_tokens(tokenizer: Any) -> tuple[int, ...]:
    """The EOS token of `tokenizer`, if it has one."""
    return () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)


def _end_of_turn_tokens(chat: Chat) -> list[int]:
    """The special token that the template adds after an answer. It can differ from the tokenizer's EOS token."""
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": _PLACEHOLDER}]
    _, placeholder, suffix = render(chat, messages).rpartition(_PLACEHOLDER)
    tokens = encode_rendered(chat, [suffix])[0] if placeholder else []
    return [token for token in tokens if token in chat.tokenizer.added_tokens_decoder][:1]


def tokenize_prompts(chat: Chat, prompts: Sequence[TextOrMessages]) -> list[Prompt]:
    """Tokenize `prompts`, which are all strings or all messages.

    A string is tokenized with the special tokens that the tokenizer adds before a text. Messages are rendered with the
    generation prompt.

    Raises: DataError if the chat template raises an error, or if a prompt has no tokens.
    """
    texts = prompt_texts(chat, prompts)
    is_text = bool(prompts) and isinstance(prompts[0], str)
    tokens = encode_strings(chat, texts) if is_text else encode_rendered(chat, texts)
    for text, ids in zip(texts, tokens, strict=True):
        if not ids:
            raise empty_prompt(text)
    images = [() if is_text else images_of(prompt) for prompt in prompts]
    rows = zip(texts, tokens, images, strict=True)
    return [Prompt(unmark(text), with_expansions(chat, ids, images), images) for text, ids, images in rows]


def prompt_texts(chat: Chat, prompts: Sequence[TextOrMessages]) -> list[str]:
    """`prompts` as they are tokenized. Raises: DataError if the chat template raises an error."""
    return [prompt if isinstance(prompt, str) else _render_prompt(chat, prompt) for prompt in prompts]


def empty_prompt(text: str) -> DataError:
    """The error for a prompt without tokens."""
    return DataError(f"prompt {text!r}", got="no tokens", need="at least one token", do="remove the row")


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

    Arguments of tool calls are objects, or JSON text if the template reads text. `kwargs` that are not None take
    precedence over those of `chat`.

    Raises: DataError if the chat template raises an error.
    """
    has_calls = any(message.get("tool_calls") for message in messages)
    with_calls = with_text_calls if has_calls and chat.reads_text_calls else with_parsed_calls
    return _apply(chat, [with_calls(message) for message in messages], {"tokenize": False, **kwargs})


def _apply(chat: Chat, messages: list[Mapping[str, Any]], kwargs: Mapping[str, Any], *, as_text: bool = True) -> Any:
    if chat.processor is not None or (as_text and chat.reads_parts):
        messages = [as_parts(message) for message in messages]
    elif images := images_of(messages):
        need = "text, or a vision-language model and data or an environment with images"
        raise ImageError("the images of a conversation", got=f"{len(images)} images", need=need)
    given = {**chat.chat_template_kwargs, **{key: value for key, value in kwargs.items() if value is not None}}
    if chat.escapes:
        messages = [_escaped(chat, message) for message in messages]
        given = {**given, "tools": _marked(chat, given.get("tools"))}
    try:
        return chat.tokenizer.apply_chat_template(messages, **given)
    except Exception as error:  # what a template raises depends on its text
        text = str(error) or type(error).__name__
        raise DataError(f"the chat template raised an error: {text}", got=roles_of(messages)) from error


def _count_shown(chat: Chat, content: Any) -> int | None:
    """The number of times that the chat template shows the text of a user's `content`; None: it raises an error."""
    messages, options = [{"role": "user", "content": content}], {"tokenize": False, "add_generation_prompt": True}
    try:
        return _apply(chat, messages, options, as_text=False).lower().count(_PLACEHOLDER)
    except DataError:
        return None


def check_user_text(chat: Chat) -> None:
    """Raise ConfigError if the chat template does not show the text of a user's message, or more than once."""
    count = _count_shown(chat, _PLACEHOLDER)
    if count not in (1, None) and not chat.reads_parts:
        raise ConfigError(
            f"the chat template of {chat.tokenizer.name_or_path!r} shows the text of a user's message {count} times",
            need="once: otherwise the model is not asked what the data ask",
            do="put a corrected chat_template.jinja next to the tokenizer, or write the prompts as text",
        )


def _renders_call(chat: Chat, with_calls: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> bool:
    """Whether the template renders a call as `with_calls` makes it, and not as a Python mapping in single quotes."""
    arguments = {"a": _PLACEHOLDER}
    call = {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": arguments}}
    contents: tuple[str | None, ...] = ("", None)  # some templates show calls only where there is no content
    for content in contents:
        turn = {"role": "assistant", "content": content, "tool_calls": [call]}
        with suppress(DataError):
            text = _apply(chat, [{"role": "user", "content": "a"}, with_calls(turn)], {"tokenize": False})
            if _PLACEHOLDER in text and repr(arguments) not in text:
                return True
    return False


def roles_of(messages: Messages) -> str:
    """The roles of `messages`, for error messages."""
    return "messages with the roles " + ", ".join(str(message["role"]) for message in messages)


def _escaped(chat: Chat, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """`message` with its content marked where it spells a special token, unless it is the assistant's."""
    content = message.get("content")
    if message["role"] == "assistant" or content is None:
        return message
    return {**message, "content": _marked(chat, content)}


def _marked(chat: Chat, value: Any) -> Any:
    """`value` with all strings in it marked where they spell a special token."""
    if isinstance(value, str):
        return mark(chat.tokenizer, value)
    if isinstance(value, Mapping):
        return {key: _marked(chat, item) for key, item in value.items()}
    return [_marked(chat, item) for item in value] if isinstance(value, list | tuple) else value


def with_expansions(chat: Chat, tokens: list[int], images: Sequence[Image]) -> list[int]:
    """`tokens` with those that stand for each of `images`, in order, in place of its placeholder.

    Raises: ImageError if there are more or fewer placeholders than images.
    """
    return tokens if chat.processor is None else chat.processor.with_expansions(tokens, images)


def image_ids(chat: Chat, tokens: Sequence[int], images: Sequence[Image]) -> list[int]:
    """For each of `tokens` the content id of the image that it stands for, 0 for text; empty if `chat` has no images.

    `images` are those of `tokens`, in order.
    """
    return [] if chat.processor is None else chat.processor.image_ids(tokens, images)
