"""Parts of data that nothing reads, with the nearest name that is read; pairs that teach nothing; notes of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.algos import dpo, grpo, sft
from purerl.config.schema import RunConfig
from purerl.data.chat import Chat, open_chat
from purerl.data.examples import read_examples
from purerl.data.inspect import inspect
from purerl.data.notes import data_notes
from purerl.data.open import check_first_rows
from purerl.data.settings import Data
from purerl.errors import DataError
from purerl.runs.dry_run import dry_run
from tests.envs.families import QWEN, chat

from .made import CHATML, MARKED, assistant, tokenizer, user, write
from .runs import DEMONSTRATIONS, OFFLINE, PAIRS, config, save_model


def _notes(
    folder: Path, rows: list[dict[str, Any]], kind: Any, opened: Chat | None = None, read: Any = ()
) -> list[str]:
    data = read_examples([write(folder / "rows.jsonl", rows)], kind)
    chosen = opened or open_chat(tokenizer(CHATML), data.example_format.prompt_format)
    return data_notes([data], chosen, read)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": 3}, "column 'id'"),
        ({"tool": []}, "column 'tool' (did you mean 'tools'?)"),
        ({"functions": []}, "column 'functions' (did you mean 'tools'?)"),
        ({"chat_template_args": {}}, "column 'chat_template_args' (did you mean 'chat_template_kwargs'?)"),
        ({"tools": [{"name": "f"}]}, "'tools', an argument that the chat template does not read"),
        (
            {"chat_template_kwargs": {"enable_thinkin": True}},
            (
                "'chat_template_kwargs.enable_thinkin', an argument that the chat template does not read "
                "(did you mean 'enable_thinking'?)"
            ),
        ),
    ],
)
def test_columns_that_nothing_reads_are_named(columns: dict[str, Any], named: str, tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")], "completion": [assistant("b")], **columns}]
    assert _notes(tmp_path, rows, "demonstrations") == [f"parts that nothing reads: {named}"]


@pytest.mark.parametrize(
    ("template", "is_read"),
    [
        (CHATML + "{%- if step -%}{%- endif -%}", True),
        (CHATML + "{%- set step = step | default(1) -%}{{ step }}", True),
        (MARKED + "{{ step }}{%- for k in [] -%}{%- break -%}{%- endfor -%}", True),
        (CHATML + "{%- set step = 1 -%}{{ step }}", False),
        (CHATML + "{{ messages[0].step }}", False),
        (CHATML + "{#- step -#}", False),
        (CHATML + "{{ 'step' }}", False),
    ],
)
def test_an_argument_is_read_if_it_is_a_variable_of_the_template(template: str, is_read: bool, tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")], "completion": [assistant("b")], "chat_template_kwargs": {"step": 1}}]
    notes = _notes(tmp_path, rows, "demonstrations", open_chat(tokenizer(template), "messages"))
    assert [note.split(",")[0] for note in notes] == ([] if is_read else [_UNREAD_STEP])


_UNREAD_STEP = "parts that nothing reads: 'chat_template_kwargs.step'"


def test_the_id_of_a_call_is_not_taken_for_its_calls(tmp_path: Path) -> None:
    rows = [{"messages": [user("a"), {"role": "tool", "content": "b", "tool_call_id": "1"}, assistant("c")]}]
    assert _notes(tmp_path, rows, "demonstrations", chat(QWEN)) == [
        "parts that nothing reads: key 'tool_call_id' of messages"
    ]


def test_columns_that_are_read_are_not_named(tmp_path: Path) -> None:
    both = {
        "prompt": [user("a")],
        "completion": [assistant("b")],
        "margin": 1.0,
        "tools": [{"name": "f"}],
        "label": True,
    }
    assert _notes(tmp_path, [both], "labels", chat(QWEN), ("margin",)) == []
    assert _notes(tmp_path, [{**both, "chat_template_kwargs": {"enable_thinking": False}}], "labels", chat(QWEN)) == [
        "parts that nothing reads: column 'margin'"
    ]


def test_columns_of_prompts_are_passed_to_reward_functions(tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")], "answer": "1", "extra_info": {}, "tool": "x"}]
    named = "parts that nothing reads: column 'tool' (did you mean 'tools'?)"
    assert _notes(tmp_path, rows, "prompts") == [named]
    assert _notes(tmp_path, rows, "prompts", read={"tool"}) == []
    plain = [{"prompt": "a", "completion": "b", "tools": []}]
    assert _notes(tmp_path, plain, "demonstrations") == ["parts that nothing reads: column 'tools'"]
    assert _notes(tmp_path, [{"prompt": "a", "tools": []}], "prompts") == ["parts that nothing reads: column 'tools'"]
    data = read_examples([write(tmp_path / "tools.jsonl", [{"prompt": [user("a")], "tools": []}])], "prompts")
    assert data_notes([data], chat(QWEN), ()) == []
    [note] = data_notes([data], chat(QWEN), (), shows_row_settings=False)
    assert note == "parts that nothing reads: column 'tools'", "of a run with an environment"


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("name", "key 'name' of messages"),
        ("tool_calls", "key 'tool_calls' of messages"),
        ("reasoning_content", "key 'reasoning_content' of messages"),
        ("wieght", "key 'wieght' of messages (did you mean 'weight'?)"),
        ("train", "key 'train' of messages (did you mean 'weight'?)"),
    ],
)
def test_keys_of_messages_that_nothing_reads_are_named(key: str, named: str, tmp_path: Path) -> None:
    value = [{"name": "f", "arguments": {}}] if key == "tool_calls" else "x"
    rows = [{"messages": [user("a"), {**assistant("b"), key: value}]}]
    assert _notes(tmp_path, rows, "demonstrations") == [f"parts that nothing reads: {named}"]


def test_reasoning_is_read_by_all_names_that_transformers_knows(tmp_path: Path) -> None:
    template = CHATML.replace("message.content", "(message.reasoning_content or '') + message.content")
    opened = open_chat(tokenizer(template), "messages")
    for key in ("reasoning_content", "thinking", "reasoning"):
        assert (
            _notes(tmp_path, [{"messages": [user("a"), {**assistant("b"), key: "x"}]}], "demonstrations", opened) == []
        )
    rows = [{"messages": [user("a"), {**assistant("b"), "thoughts": "x"}]}]
    [note] = _notes(tmp_path, rows, "demonstrations", opened)
    assert note == "parts that nothing reads: key 'thoughts' of messages (did you mean 'reasoning_content'?)"


@pytest.mark.parametrize("name", ["system_prompt", "system", "system_message"])
def test_a_column_with_a_system_prompt_is_named(name: str, tmp_path: Path) -> None:
    for prompt in ([user("a")], "a"):
        rows = [{"prompt": prompt, "answer": "1", name: "Be short."}]
        [note] = _notes(tmp_path, rows, "prompts")
        assert note.endswith(f"column {name!r} (a system prompt is the first message of 'prompt')")
        assert _notes(tmp_path, rows, "prompts", read={name}) == []


def test_a_weight_of_a_turn_in_the_prompt_is_noted(tmp_path: Path) -> None:
    turns = [user("a"), {**assistant("b"), "weight": 1}, user("c")]
    answer = {**assistant("d"), "weight": 1}
    rows = [{"prompt": turns[:1], "completion": [answer]}, {"prompt": turns, "completion": [answer]}]
    [note] = _notes(tmp_path, rows, "demonstrations")
    place = f"row 1 of {str(tmp_path / 'rows.jsonl')!r}"
    assert note == f"turns with the weight 1 that are not learned, because they are in the prompt: {place}"
    both = [{"chosen": [*turns, answer], "rejected": [*turns, assistant("e")]}]
    assert len(_notes(tmp_path, both, "preferences")) == 1
    without = [{"prompt": [turns[0], {**turns[1], "weight": 0}, turns[2]], "completion": [answer]}]
    assert _notes(tmp_path, [*without, {"prompt": "a", "completion": "b"}][:1], "demonstrations") == []
    assert _notes(tmp_path, [{"messages": [*turns, answer]}], "demonstrations") == []


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("[{'role': 'user', 'content': 'q'}]", True),
        ("[{'content': 'it''s', 'role': 'user'}\n {'content': 'b', 'role': 'user'}]", True),
        ("{'role': 'user', 'content': 'q'}", True),
        ('{"role": "user", "content": "q"}', True),
        (' {"content": "a\\nb",\n "role" : "user"}', True),
        ("array([{'content': 'q', 'role': 'user'}], dtype=object)", True),
        ('[{"from": "human", "value": "q"}]', True),
        ('What does {"role": "user"} mean?', False),
        ("[1, 2]", False),
        ('{"name": "a", "role": "b"}', False),
        ("[[ACT I]] the 'role': of", False),
    ],
)
def test_text_of_messages_that_stays_text_is_named(text: str, is_named: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "rows.jsonl")
    expected = (
        f"{path!r}: 1 of 2 values of 'prompt' are text of messages, as JSON or Python writes them. All are read as "
        "plain text: only a column of JSON lists is read as messages"
    )
    assert _notes(tmp_path, [{"prompt": text}, {"prompt": "a"}], "prompts") == [expected] * is_named


# In the style of DeepSeek V3.1 and Granite: `thinking` is an argument, and no key of a message.
THINKING = CHATML.replace("enable_thinking", "thinking")


def _of_keys(*arguments: Any) -> list[str]:
    """The notes of `_notes` without those on thoughts, which other checks count."""
    return [note for note in _notes(*arguments) if "with thoughts" not in note]


@pytest.mark.parametrize(
    ("template", "key", "is_read"),
    [
        (THINKING, "reasoning_content", False),
        (THINKING, "thinking", False),
        (THINKING, "message", False),
        (THINKING, "loop", False),
        (THINKING + "{#- message.step -#}", "step", False),
        (THINKING + "{%- set step = 1 -%}", "step", False),
        (THINKING.replace("message.content", "(message | tojson)"), "anything", True),
        (THINKING.replace("message.content", "message.content + (message['step'] | default(''))"), "step", True),
        (THINKING.replace("message.content", "message.content + ('!' if 'step' in message else '')"), "step", True),
    ],
)  # fmt: skip
def test_a_key_is_read_if_the_template_renders_it(template: str, key: str, is_read: bool, tmp_path: Path) -> None:
    opened = open_chat(tokenizer(template), "messages")
    for value in ("x", "", 3, {"a": 1}):
        if is_read and key == "step" and "default" in template and not isinstance(value, str):
            continue  # the template fails
        turns = [[user("a"), assistant("b")], [user("a"), {**assistant("b"), key: value}]]
        expected = [] if is_read else [f"parts that nothing reads: key {key!r} of messages"]
        assert _of_keys(tmp_path, [{"messages": each} for each in turns], "demonstrations", opened) == expected, value
        pairs = [{"prompt": each[:1], "chosen": each[1:], "rejected": [assistant("c")]} for each in turns]
        assert _of_keys(tmp_path, pairs, "preferences", opened) == expected, value
        prompts = [{"prompt": [*each, user("c")]} for each in turns]
        assert _of_keys(tmp_path, prompts, "prompts", opened) == expected, value


def test_keys_are_tried_with_the_settings_of_their_row(tmp_path: Path) -> None:
    shown = "(message.content + message.step if thinking and message.step is defined else message.content)"
    opened = open_chat(tokenizer(THINKING.replace("message.content", shown)), "messages")
    row = {"prompt": [user("a")], "completion": [{**assistant("b"), "step": "x"}]}
    on, off = ({**row, "chat_template_kwargs": {"thinking": value}} for value in (True, False))
    assert _notes(tmp_path, [off, on], "demonstrations", opened) == []
    assert _notes(tmp_path, [off], "demonstrations", opened) == ["parts that nothing reads: key 'step' of messages"]


def test_the_nearest_key_is_one_that_the_template_reads(tmp_path: Path) -> None:
    old = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
    for opened, hint in ((chat(QWEN), " (did you mean 'tool_calls'?)"), (chat(CHATML), "")):
        [note] = _notes(tmp_path, [{"messages": [user("a"), old]}], "demonstrations", opened)
        assert note == f"parts that nothing reads: key 'function_call' of messages{hint}"


# --- pairs ---------------------------------------------------------------------------------------------------------


TRIMMED = CHATML.replace("message.content", "(message.content | trim)")
EQUAL, CHOSEN, REJECTED = "equals the rejected", "the chosen answer is the start", "the rejected answer is the start"


def _call(value: int) -> dict[str, Any]:
    return {**assistant(""), "tool_calls": [{"name": "f", "arguments": {"a": value}}]}


@pytest.mark.parametrize(
    ("template", "chosen", "rejected", "text"),
    [
        (CHATML, [assistant("a")], [assistant("a")], EQUAL),
        (CHATML, [assistant("a")], [assistant("ab")], CHOSEN),
        (CHATML, [assistant("a"), user("b"), assistant("c")], [assistant("a")], REJECTED),
        (CHATML, [assistant("a"), user("b"), assistant("c")], [assistant("a"), user("b"), assistant("cd")], CHOSEN),
        (CHATML, [assistant("a"), user("x"), assistant("c")], [assistant("a"), user("b"), assistant("cd")], None),
        (CHATML, [assistant("a")], [assistant("b")], None),
        (CHATML, [assistant("a ")], [assistant("a\n")], None),
        (TRIMMED, [assistant("a ")], [assistant("a\n")], EQUAL),
        (TRIMMED, [assistant("a")], [assistant("a b\n")], CHOSEN),
        (CHATML, [assistant(":)")], [assistant(":(")], None),
        (CHATML, [assistant("")], [assistant("b")], CHOSEN),
        (QWEN, [_call(1)], [_call(2)], None),
        (CHATML, [{**assistant("a"), "id": 1}], [{**assistant("a"), "id": 2}], EQUAL),
        (CHATML, [{**assistant("a"), "reasoning_content": "x"}], [{**assistant("a"), "reasoning_content": "y"}], EQUAL),
        (CHATML, [{**assistant("a"), "weight": 1}], [assistant("a")], EQUAL),
        (CHATML, [{**assistant("x"), "weight": 0}, user("b"), assistant("c")],
         [{**assistant("y"), "weight": 0}, user("b"), assistant("c")], EQUAL),
        (CHATML, [assistant("a"), user("b"), {**assistant("c"), "weight": 0}], [assistant("a")], EQUAL),
        (None, "", "b", CHOSEN),
        (None, "ba", "a", None),
        (None, "yes", "yesterday", CHOSEN),
        (None, "a", "a<eos>", EQUAL),
        (None, "a<eos>", "a", EQUAL),
        (None, "a", "a \n", CHOSEN),
    ],
)  # fmt: skip
def test_pairs_with_nearly_the_same_tokens_are_noted_in_every_format(
    template: str | None, chosen: Any, rejected: Any, text: str | None, tmp_path: Path
) -> None:
    opened = chat(template) if template == QWEN else open_chat(tokenizer(template), "messages" if template else "text")
    forms = [{"prompt": [user("q")] if template else "q", "chosen": chosen, "rejected": rejected}]
    if template:
        forms.append({"chosen": [user("q"), *chosen], "rejected": [user("q"), *rejected]})
    for row in forms:
        data = read_examples([write(tmp_path / "rows.jsonl", [row])], "preferences")
        check_first_rows(opened, data)
        notes = [note for note in data_notes([data], opened, ()) if note.startswith("1 pair")]
        assert len(notes) == (text is not None)
        assert all(str(text) in note for note in notes)
        found = [problem.message for problem in inspect(data.paths[0], opened.tokenizer).problems]
        problems = [problem for problem in found if "answer" in problem]
        assert len(problems) == (text is not None)
        assert all(str(text) in problem for problem in problems)


def test_pairs_are_counted_and_named_by_row(tmp_path: Path) -> None:
    pairs = [("a", "b"), ("a", "a"), ("a", "ab"), ("c", "c")]
    rows = [{"prompt": "p", "chosen": chosen, "rejected": rejected} for chosen, rejected in pairs]
    assert _notes(tmp_path, rows, "preferences") == [
        f"2 pairs in which the chosen answer equals the rejected answer: rows 1, 3 of {str(tmp_path / 'rows.jsonl')!r}",
        (
            "1 pair in which the chosen answer is the start of the rejected answer: "
            f"row 2 of {str(tmp_path / 'rows.jsonl')!r}"
        ),
    ]
    same = [{"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("b")]}] * 10
    [note] = _notes(tmp_path, same, "preferences")
    assert note.endswith("rows 0, 1, 2, 3, 4, 5, 6, 7 of " + repr(str(tmp_path / "rows.jsonl")) + "; and 2 more")


# --- runs ----------------------------------------------------------------------------------------------------------


def _config(folder: Path, rows: list[dict[str, Any]], algorithm: Any, **settings: Any) -> RunConfig:
    save_model(folder)
    data = Data(files=(write(folder / "rows.jsonl", rows),), **settings)
    changes = {} if algorithm is grpo else OFFLINE
    return config(folder, data, algorithm=algorithm.Config(), **changes)


def test_a_dry_run_prints_the_notes(tmp_path: Path) -> None:
    rows = [{**row, "toolz": 1} for row in DEMONSTRATIONS]
    [note] = dry_run(_config(tmp_path, rows, sft), tmp_path / "run")
    assert note == "data: parts that nothing reads: column 'toolz' (did you mean 'tools'?)"


def test_unused_columns_can_be_refused(tmp_path: Path) -> None:
    rows = [{**row, "id": k} for k, row in enumerate(PAIRS)]
    with pytest.raises(DataError) as caught:
        dry_run(_config(tmp_path, rows, dpo, unused_columns="error"), tmp_path / "run")
    assert str(caught.value) == (
        "the data have parts that nothing reads\n"
        "  got:  column 'id'\n"
        "  need: only columns and keys that are read: data.unused_columns is 'error'\n"
        "  do:   rename or remove them, or set it to 'note'"
    )
    dry_run(_config(tmp_path, PAIRS, dpo, unused_columns="error"), tmp_path / "run")


def test_inspect_prints_the_notes(tmp_path: Path) -> None:
    rows = [
        {"messages": [user("a"), {**assistant("b"), "weight": 1}], "toolz": 1},
        {"messages": [user("c"), assistant("d")]},
    ]
    path = write(tmp_path / "rows.parquet", [{"toolz": 2, **row} for row in rows])
    added = (
        f"{path!r}: keys without a value are left out of the structures in messages (3), because Parquet and Arrow give"
    )
    unread, cleaned = inspect(path, tokenizer(CHATML)).notes
    assert unread == "parts that nothing reads: column 'toolz' (did you mean 'tools'?)"
    assert cleaned.startswith(added)
    assert inspect(path).notes == (cleaned,)
