"""Generation prompts that open or close thoughts: the context of an answer is what the model samples after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.algos import sft
from purerl.data.answers import tokenize_answer
from purerl.data.chat import Chat, open_chat, tokenize_prompts
from purerl.data.examples import read_examples, rows_at, tokenized_at
from purerl.data.inspect import inspect
from purerl.data.open import check_first_rows
from purerl.data.settings import Data
from purerl.errors import ConfigError, DataError
from purerl.runs.dry_run import dry_run
from tests.envs import families

from .made import CHATML, assistant, tokenizer, user, write
from .runs import OFFLINE, config, save_model


def _template(turn: str, opening: str) -> str:
    return (
        "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
        + turn
        + """{{ '<|im_end|>\\n' }}{%- else -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' + """
        + opening
        + " }}{%- endif -%}"
    )


HEADER = "{{ '<|im_start|>assistant\\n' }}"
# DeepSeek R1: the generation prompt opens thoughts, and the template leaves the thoughts out of every answer.
OPENED = _template(HEADER + "{{ m.content.split('</think>')[-1] }}", "'<think>\\n'")
# Nemotron 3: thoughts are on by default, and an answer without thoughts has empty ones.
SWITCHED = _template(
    HEADER + "{{ ('' if '</think>' in m.content else '<think></think>') + m.content }}",
    "('<think></think>' if enable_thinking is defined and not enable_thinking else '<think>\\n')",
)
# Qwen 3: an answer without thoughts has empty ones, which the generation prompt has only without thoughts.
EMPTY = _template(
    HEADER + "{{ ('' if '</think>' in m.content else '<think>\\n\\n</think>\\n\\n') + m.content }}",
    "('<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '')",
)
# Phi 3: the EOS token follows the last turn of every conversation.
FINAL_EOS = CHATML.replace("{%- if add", "{%- if not add_generation_prompt -%}{{ eos_token }}{%- endif -%}{%- if add")

QUESTION, THOUGHTFUL = user("q"), assistant("<think>\nhm\n</think>\n\n5")


def _open(template: str, **settings: Any) -> Chat:
    return open_chat(families.tokenizer(template), "messages", **settings)


def _shown(opened: Chat, example: Any) -> str:
    """The text of `example` with the tokens to learn in ⟦ and ⟧."""
    text, before = "", False
    for token, is_learned in zip(example.tokens, example.action, strict=True):
        text += ("⟦" if is_learned else "⟧") * (is_learned != before) + opened.tokenizer.decode([token])
        before = is_learned
    return text + "⟧" * before


def _learned(opened: Chat, *messages: Any) -> str:
    example = tokenize_answer(opened, messages[:1], messages[1:])
    [prompt] = tokenize_prompts(opened, [messages[:1]])
    assert example.tokens[: len(prompt.tokens)] == prompt.tokens, "the context is what the model samples after"
    assert example.action.index(True) == len(prompt.tokens)
    return _shown(opened, example).partition("⟦")[2].removesuffix("⟧\n").removesuffix("⟧")


@pytest.mark.parametrize("content", ["<think>\nhm\n</think>\n\n5", "<think>hm\n</think>\n\n5", "hm\n</think>\n\n5"])
def test_thoughts_that_the_template_leaves_out_continue_the_generation_prompt(content: str) -> None:
    assert _learned(_open(OPENED), QUESTION, assistant(content)) == "hm\n</think>\n\n5<|im_end|>"


def test_an_answer_of_which_the_generation_prompt_has_another_start_is_refused() -> None:
    opened = _open(OPENED.replace("'<think>\\n'", "'<think>\\nLet me see.'"))
    assert _learned(opened, QUESTION, assistant("<think>\nLet me see. 5?</think>5")) == " 5?</think>5<|im_end|>"
    with pytest.raises(DataError, match="does not continue the generation prompt"):
        tokenize_answer(opened, [QUESTION], [THOUGHTFUL])


def test_an_answer_without_thoughts_is_learned_after_closed_ones() -> None:
    opened = open_chat(tokenizer(CHATML), "messages", chat_template_kwargs={"enable_thinking": False})
    assert _learned(opened, QUESTION, assistant("yo")) == "yo<|im_end|>"
    [prompt] = tokenize_prompts(opened, [[QUESTION]])
    assert prompt.text.endswith("<|im_start|>assistant\n<think></think>")
    with pytest.raises(DataError, match="does not continue the generation prompt"):
        tokenize_answer(opened, [QUESTION], [THOUGHTFUL])


def test_an_answer_without_thoughts_after_opened_ones_is_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    save_model(tmp_path, OPENED)
    path = write(tmp_path / "rows.jsonl", [{"messages": [QUESTION, assistant("5")]}])
    with pytest.raises(DataError) as caught:
        dry_run(config(tmp_path, Data(files=(path,)), algorithm=sft.Config(), **OFFLINE), tmp_path / "run")
    what = "an answer does not continue the generation prompt of the chat template"
    assert str(caught.value) == (
        f"row 0 of {path!r}: {what}\n"
        "  got:  the generation prompt '<|im_start|>assistant\\n<think>\\n', and an answer that begins with "
        "'<|im_start|>assistant\\n5<|im_end|>\\n'\n"
        "  need: an answer that begins with the generation prompt, after which the model samples\n"
        "  do:   write the thoughts of each answer into its content, between <think> and </think>"
    )
    [problem] = inspect(path, families.tokenizer(OPENED)).problems
    assert (problem.message, problem.rows) == (what, (0,))
    path = write(tmp_path / "thoughts.jsonl", [{"messages": [QUESTION, THOUGHTFUL]}])
    dry_run(config(tmp_path, Data(files=(path,)), algorithm=sft.Config(), **OFFLINE), tmp_path / "run")


@pytest.mark.parametrize(
    ("template", "answers", "do"),
    [
        (SWITCHED, ["5"], "set data.chat_template_kwargs.enable_thinking = false, or the column 'enable_thinking'"),
        (EMPTY, [THOUGHTFUL["content"]], "set data.chat_template_kwargs.enable_thinking = true, or the column"),
        (OPENED, [THOUGHTFUL["content"]] * 2, "put one answer in each row, in columns `prompt` and `completion`"),
        (_template(HEADER + "{{ 'A: ' + m.content }}", "'B: '"), ["5"], "use another chat template"),
    ],
    ids=["thoughts off", "thoughts on", "one answer", "no remedy"],
)
def test_the_remedy_is_tried_before_it_is_given(template: str, answers: list[str], do: str) -> None:
    kwargs = {"enable_thinking": False} if template is EMPTY else {}
    conversation = [message for answer in answers for message in (QUESTION, assistant(answer))]
    with pytest.raises(DataError) as caught:
        tokenize_answer(_open(template, chat_template_kwargs=kwargs), conversation[:1], conversation[1:])
    assert f"  do:   {do}" in str(caught.value)


@pytest.mark.parametrize("place", ["run", "enable_thinking", "chat_template_kwargs"])
def test_plain_and_thinking_answers_are_learned_with_the_arguments_of_the_run_or_of_their_rows(
    place: str, tmp_path: Path
) -> None:
    plain, thoughtful = [QUESTION, assistant("5")], [QUESTION, THOUGHTFUL]
    columns: dict[str, Any] = {
        "run": lambda value: {},
        "enable_thinking": lambda value: {"enable_thinking": value},
        "chat_template_kwargs": lambda value: {"chat_template_kwargs": {"enable_thinking": value}},
    }
    rows = [{"messages": plain, **columns[place](False)}, {"messages": thoughtful, **columns[place](True)}]
    if place == "run":
        runs = [
            (_open(SWITCHED, chat_template_kwargs={"enable_thinking": False}), rows[:1]),
            (_open(SWITCHED), rows[1:]),
        ]
    else:
        runs = [(_open(SWITCHED), rows)]
    shown = []
    for k, (opened, own) in enumerate(runs):
        data = read_examples([write(tmp_path / f"{k}.jsonl", own)], "demonstrations")
        check_first_rows(opened, data)
        shown += [
            _shown(opened, tokenized_at(opened, data, i, row)[0]) for i, row in enumerate(rows_at(data, data.indices))
        ]
    before = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert shown == [
        f"{before}<think></think>⟦5<|im_end|>⟧\n",
        f"{before}<think>\n⟦hm\n</think>\n\n5<|im_end|>⟧\n",
    ]


def test_a_row_whose_arguments_do_not_fit_its_answer_is_refused(tmp_path: Path) -> None:
    rows = [{"messages": [QUESTION, assistant("5")], "enable_thinking": value} for value in (False, True)]
    with pytest.raises(DataError, match="row 1 of .*does not continue the generation prompt"):
        check_first_rows(_open(SWITCHED), read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations"))


def test_marked_thoughts_after_closed_ones_are_refused(tmp_path: Path) -> None:
    turn = HEADER + "{% generation %}{{ ('' if '</think>' in m.content else '<think></think>') + m.content }}"
    template = _template(turn, "'<think></think>'").replace(
        "{{ '<|im_end|>\\n' }}", "{{ '<|im_end|>' }}{% endgeneration %}", 1
    )
    opened, rows = _open(template), [{"messages": [QUESTION, assistant("5"), user("r"), assistant("6")]}]
    check_first_rows(opened, read_examples([write(tmp_path / "plain.jsonl", rows)], "demonstrations"))
    rows = [{"messages": [QUESTION, assistant("5"), user("r"), THOUGHTFUL]}]
    with pytest.raises(ConfigError, match="what is learned of message 3 of the conversation begins after"):
        check_first_rows(opened, read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations"))


def test_empty_thoughts_that_are_learned_are_noted(tmp_path: Path) -> None:
    rows = [{"messages": [QUESTION, assistant("5")]}, {"messages": [QUESTION, THOUGHTFUL]}]
    path = write(tmp_path / "rows.jsonl", rows)
    [note] = inspect(path, families.tokenizer(EMPTY)).notes
    assert note == (
        "1 row with an answer without thoughts, before which the chat template adds empty ones, which are learned, "
        f"'<think>\\n\\n</think>\\n\\n': row 0 of {path!r}"
    )
    path = write(tmp_path / "off.jsonl", rows[:1])
    assert inspect(path, families.tokenizer(EMPTY), chat_template_kwargs={"enable_thinking": False}).notes == ()


def test_eos_after_the_last_turn_only_is_not_expected_after_each() -> None:
    opened = _open(FINAL_EOS)
    assert _learned(opened, QUESTION, assistant("5"), user("r"), assistant("6")) == (
        "5<|im_end|>⟧\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n⟦6<|im_end|>\n<eos>"
    )


def test_thoughts_that_are_opened_and_rendered_empty_are_closed_by_the_answer(tmp_path: Path) -> None:
    """Qwen 3.6: the model writes the end of empty thoughts, and a note says so."""
    template = EMPTY.replace("and not enable_thinking else '')", "and not enable_thinking else '<think>\\n')")
    assert _learned(_open(template), QUESTION, assistant("5")) == "\n</think>\n\n5<|im_end|>"
    assert _learned(_open(template), QUESTION, THOUGHTFUL) == "hm\n</think>\n\n5<|im_end|>"
    off = _open(template, chat_template_kwargs={"enable_thinking": False})
    assert _learned(off, QUESTION, assistant("5")) == "5<|im_end|>"
    [note] = inspect(write(tmp_path / "rows.jsonl", [{"messages": [QUESTION, assistant("5")]}]), off.tokenizer).notes
    assert "empty ones, which are learned, '\\n</think>\\n\\n'" in note
