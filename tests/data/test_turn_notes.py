"""Notes on turns: prefills, repeated prompts, thoughts and tools that are left out, and special tokens in texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.algos import sft
from purerl.data.chat import Chat
from purerl.data.examples import read_examples
from purerl.data.notes import data_notes
from purerl.data.settings import Data
from purerl.runs.dry_run import dry_run
from tests.envs.families import CHATML, LLAMA, MISTRAL, QWEN, chat

from .made import assistant, system, user, write
from .runs import OFFLINE, config, save_model

SCHEMA = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
PLAIN = [user("q"), assistant("a")]


def _notes(folder: Path, opened: Chat, rows: list[Any], kind: Any = "demonstrations", **options: Any) -> list[str]:
    path = write(folder / "rows.jsonl", rows)
    notes = data_notes([read_examples([path], kind)], opened, (), **options)
    return [note.replace(f" of {path!r}", "") for note in notes]


def test_a_run_notes_prompts_that_end_with_an_assistant_turn(tmp_path: Path) -> None:
    prefill = [user("q"), assistant("The answer is")]
    note = "1 row with a prompt that ends with an assistant turn: the chat template ends it before the answer: row 1"
    rows = [
        {"prompt": [user("q")], "completion": [assistant("4")]},
        {"prompt": prefill, "completion": [assistant("5")]},
    ]
    assert _notes(tmp_path, chat(CHATML), rows) == [note]
    assert _notes(tmp_path, chat(CHATML), [{"prompt": row["prompt"]} for row in rows], "prompts") == [note]
    save_model(tmp_path, CHATML)
    path = write(tmp_path / "rows.jsonl", rows)
    report = dry_run(config(tmp_path, Data(files=(path,)), algorithm=sft.Config(), **OFFLINE), tmp_path / "run")
    assert f"{note} of {path!r}" in str(report)


@pytest.mark.parametrize("prompt", [[user("q")], [system("s"), user("q")]])
def test_answers_that_begin_with_the_prompt_are_noted(prompt: list[Any], tmp_path: Path) -> None:
    note = "1 row with an answer that begins with the prompt, so that the text has it twice: row 0"
    pair = {"prompt": prompt, "chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]}
    other = {"prompt": prompt, "chosen": [assistant("q")], "rejected": [assistant("b")]}
    assert _notes(tmp_path, chat(CHATML), [pair, other], "preferences") == [note]
    done = {"prompt": prompt, "completion": [*prompt, assistant("a")]}
    assert _notes(tmp_path, chat(CHATML), [done]) == [note]
    text = {"prompt": "What is it? ", "chosen": "What is it? A", "rejected": "What is it? B"}
    assert _notes(tmp_path, chat(None), [text, {**text, "chosen": "A", "rejected": "B"}], "preferences") == [note]


def test_thoughts_that_the_template_leaves_out_are_counted(tmp_path: Path) -> None:
    early = [user("q"), assistant("<think>x</think>a"), user("r")]
    rows = [{"prompt": PLAIN[:1]}, {"prompt": early}, {"prompt": [*PLAIN, user("r")]}, {"prompt": early}]
    note = "2 rows with thoughts of a turn that the chat template leaves out: rows 1, 3"
    assert _notes(tmp_path, chat(QWEN), rows, "prompts") == [note]
    assert _notes(tmp_path, chat(CHATML), rows, "prompts") == []
    kept = [{"messages": [user("q"), assistant("<think>x</think>a")]}]
    assert _notes(tmp_path, chat(QWEN), kept) == []


def test_tools_that_the_template_shows_only_in_some_rows_are_noted(tmp_path: Path) -> None:
    template = CHATML.replace("m.content +", "m.content + (tools | tojson if tools and m.role == 'system' else '') +")
    rows = [{"messages": [system("s"), *PLAIN], "tools": [SCHEMA]}, {"messages": PLAIN, "tools": [SCHEMA]}]
    note = "1 row with tools that the chat template leaves out: row 1"
    assert _notes(tmp_path, chat(template), rows) == [note]
    assert note not in _notes(tmp_path, chat(template), rows, shows_row_settings=False)
    for shown in (QWEN, LLAMA, MISTRAL):
        assert _notes(tmp_path, chat(shown), [{"messages": PLAIN, "tools": [SCHEMA]}]) == []


@pytest.mark.parametrize(
    ("template", "messages", "role", "token"),
    [
        (CHATML, [user("q"), assistant("4<|im_end|>")], "assistant", "<|im_end|>"),
        (LLAMA, [user("q"), assistant("4<|eot_id|>")], "assistant", "<|eot_id|>"),
        (MISTRAL, [user("q"), assistant("4</s>\n")], "assistant", "</s>"),
        (LLAMA, [user("<bos>q"), assistant("4")], "user", "<bos>"),
        (CHATML, [user("q"), {**assistant("4"), "reasoning_content": "<eos>"}], "assistant", "<eos>"),
    ],
)
def test_special_tokens_in_messages_are_noted(
    template: str, messages: list[Any], role: str, token: str, tmp_path: Path
) -> None:
    notes = _notes(tmp_path, chat(template), [{"messages": PLAIN}, {"messages": messages}])
    assert (
        f"1 row with a message of the role {role!r} that spells {token!r}, which becomes this special token, beside "
        "those that are added: row 1"
    ) in notes


def test_special_tokens_that_are_escaped_or_belong_to_answers_are_not_noted(tmp_path: Path) -> None:
    escaped = chat(CHATML, special_tokens="escape")
    assert _notes(tmp_path, escaped, [{"messages": [user("<bos>q"), assistant("<|python_tag|>4")]}]) == []


def test_special_tokens_in_plain_text_answers_are_noted(tmp_path: Path) -> None:
    rows = [{"prompt": "question", "completion": answer} for answer in ("5", "5<eos>", "5<eos>\n", "<bos>5")]
    said = "which becomes this special token, beside those that are added"
    assert _notes(tmp_path, chat(None), rows) == [
        f"1 row with an answer that spells '<eos>', {said}: row 2",
        f"1 row with an answer that spells '<bos>', {said}: row 3",
    ]


def test_thoughts_are_counted_by_their_place_and_by_the_settings_of_the_row(tmp_path: Path) -> None:
    thoughts = {**assistant("<think>x</think>a"), "tool_calls": [{"name": "f", "arguments": {}}]}
    steps = [user("q"), thoughts, {"role": "tool", "content": "3"}, assistant("b")]
    note = "1 row with thoughts of a turn that the chat template leaves out: row 1"
    asked = [{"prompt": steps[:3]}, {"prompt": [*steps, user("r")]}]
    assert _notes(tmp_path, chat(QWEN), asked, "prompts") == [note]
    keeps = CHATML.replace("m.content", "(m.content if keep else m.content.split('</think>')[-1])")
    row = {"prompt": [user("q"), assistant("<think>x</think>a"), user("r")]}
    rows = [{**row, "chat_template_kwargs": {"keep": keep}} for keep in (True, False)]
    assert _notes(tmp_path, chat(keeps), rows, "prompts") == [note]
