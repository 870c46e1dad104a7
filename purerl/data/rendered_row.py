"""A row as the model reads it: its text, its tokens, and what is learned of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from purerl.data.answers import TokenizedExample, tokenize_answer, tokenize_text
from purerl.data.chat import Chat, TextOrMessages, image_ids, tokenize_prompts
from purerl.data.columns import ExampleFormat
from purerl.data.examples import Example, extract_answers, extract_prompt
from purerl.data.pairs import compare_answers
from purerl.data.row_images import text_of
from purerl.data.row_settings import chat_of_row
from purerl.data.shown_tokens import ShownRow, show_row
from purerl.data.special_tokens import spelled
from purerl.data.template_check import find_problem, learns_every_end
from purerl.errors import DataError

__all__ = ["RenderedRow", "render_row"]


class RenderedRow(NamedTuple):
    """The prompt length in tokens, the text of a row with each answer, problems, and the tokens with each answer.

    `show` is called for the tokens with their origins, which takes several times as long.
    """

    prompt_length: int = 0
    texts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    show: Callable[[], tuple[ShownRow, ...]] = tuple


def render_row(
    chat: Chat, example_format: ExampleFormat, example: Example, max_prompt_tokens: int | None
) -> RenderedRow:
    """Render `example` with the settings of its row; a prompt of more than `max_prompt_tokens` is a problem."""
    if example_format.is_whole:
        return _render_text(chat, example["text"], max_prompt_tokens)
    try:
        chat, prompt = chat_of_row(chat, example), extract_prompt(example_format, example)
        tokenized = tokenize_prompts(chat, [prompt])[0]
        texts_of_answers = extract_answers(example_format, example)
        answers = [tokenize_answer(chat, prompt, answer) for answer in texts_of_answers]
    except DataError as error:
        return RenderedRow(problems=(str(error).splitlines()[0],))
    prompt_only = TokenizedExample(tokenized.tokens, [False] * len(tokenized.tokens), tokenized.images)
    examples = tuple(answers) or (prompt_only,)
    texts = tuple(_mark_learned_text(chat, each) for each in examples)
    is_too_long = max_prompt_tokens is not None and len(tokenized.tokens) > max_prompt_tokens
    problems = [f"a prompt of more than {max_prompt_tokens} tokens"] if is_too_long else []
    if not chat.escapes and (token := _spelled_token(chat, prompt)):
        problems.append(f"a prompt that spells the special token {token!r}")
    if chat.prompt_format == "messages" and not all(learns_every_end(chat, answer) for answer in answers):
        problems.append("the end of a turn is not learned")
    else:
        found = [find_problem(chat, prompt, answer) for answer in texts_of_answers or [[]]]
        problems += dict.fromkeys(problem.what for problem in found if problem)
    if any(answer.is_split for answer in answers):
        problems.append("a token would cross the border of a prompt and an answer: they are tokenized apart")
    if len(answers) == 2 and (reason := compare_answers(chat, *answers)):
        problems.append(reason)
    show = partial(_show, chat, prompt, texts_of_answers or [""], examples)
    return RenderedRow(len(tokenized.tokens), texts, tuple(problems), show)


def _render_text(chat: Chat, text: str, max_tokens: int | None) -> RenderedRow:
    """Render `text`, of which every token is learned; one of more than `max_tokens` is a problem."""
    try:
        example = tokenize_text(chat, text)
    except DataError as error:
        return RenderedRow(problems=(str(error).splitlines()[0],))
    is_too_long = max_tokens is not None and len(example.tokens) > max_tokens
    problems = (f"a text of more than {max_tokens} tokens",) if is_too_long else ()
    texts, show = (_mark_learned_text(chat, example),), partial(_show, chat, text, [""], (example,))
    return RenderedRow(len(example.tokens), texts, problems, show)


def _show(
    chat: Chat, prompt: TextOrMessages, answers: Sequence[TextOrMessages], examples: Sequence[TokenizedExample]
) -> tuple[ShownRow, ...]:
    rows = zip(answers, examples, strict=True)
    return tuple(show_row(chat, prompt, answer, example) for answer, example in rows)


def _spelled_token(chat: Chat, prompt: TextOrMessages) -> str | None:
    """The first special token that `prompt` spells, in plain text or in a message that is not the assistant's."""
    messages = [] if isinstance(prompt, str) else [each for each in prompt if each["role"] != "assistant"]
    texts = [prompt] if isinstance(prompt, str) else [text_of(message.get("content")) for message in messages]
    return next(filter(None, (spelled(chat.tokenizer, text) for text in texts)), None)


def _mark_learned_text(chat: Chat, example: TokenizedExample) -> str:
    """The text of `example`, with the tokens to learn between ⟦ and ⟧, and with [image] for those of an image."""
    image = image_ids(chat, example.tokens, example.images) or [0] * len(example.tokens)
    runs = groupby(zip(example.tokens, example.action, image, strict=True), key=lambda each: each[1:])
    texts = [(key, chat.tokenizer.decode([token for token, *_ in run])) for key, run in runs]
    return "".join("[image]" if image else f"⟦{text}⟧" if learned else text for (learned, image), text in texts)
