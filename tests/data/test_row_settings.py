"""Columns and keys of TRL, verl and OpenAI beside the content: tools, template arguments, weights, text calls."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from purerl.data.answers import tokenize_answer
from purerl.data.chat import Chat
from purerl.data.examples import DataSet, prompts_at, read_examples, rows_at, tokenized_at
from purerl.data.row_settings import kwargs_of_row
from purerl.envs.tool_formats import parse_calls
from purerl.errors import DataError
from tests.envs.families import CALC, LLAMA, QWEN, TIME, chat

from .made import CHATML, MARKED, assistant, user, write
from .made import tokenizer as made_tokenizer
from .test_nested import calls

# In the style of DeepSeek V3: arguments of calls are text.
DEEPSEEK = """\
{%- for m in messages -%}
{%- if m.tool_calls -%}
{{ '<|im_start|>assistant\\n' }}
{%- for call in m.tool_calls -%}{{ call.function.name + '```json' + call.function.arguments + '```' }}{%- endfor -%}
{{ '<|im_end|>' }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def _learned(opened: Chat, prompt: Any, answer: Any) -> list[str]:
    """The text of each run of learned tokens."""
    example = tokenize_answer(opened, prompt, answer)
    runs = groupby(zip(example.tokens, example.action, strict=True), key=lambda pair: pair[1])
    return [opened.tokenizer.decode([token for token, _ in run]) for action, run in runs if action]


def _texts(opened: Chat, data: DataSet) -> list[str]:
    """The prompt of each row, as tokens that are sampled from, or that come before what is learned."""
    rows = rows_at(data, data.indices)
    if data.example_format.example_type == "prompts":
        return [opened.tokenizer.decode(prompt.tokens) for prompt in prompts_at(opened, data, data.indices, rows)]
    learned = [tokenized_at(opened, data, k, row) for k, row in enumerate(rows)]
    return [opened.tokenizer.decode(e.tokens[: e.action.index(True)]) for answers in learned for e in answers]


# --- arguments as text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"expression": "1+1"}', ' {"expression":"1+1"}\n', {"expression": "1+1"}])
def test_arguments_as_json_text_are_learned_as_an_object(arguments: Any) -> None:
    made = {"type": "function", "id": "1", "function": {"name": "calc", "arguments": arguments}}
    for each in (made, {"name": "calc", "arguments": arguments}):
        [text] = _learned(chat(QWEN), [user("1+1?")], [calls(each)])
        [read] = parse_calls("hermes", text.removesuffix("<|im_end|>")).calls
        assert (read.name, read.arguments, read.error) == ("calc", {"expression": "1+1"}, None)


def test_empty_text_is_a_call_without_arguments() -> None:
    [text] = _learned(chat(QWEN), [user("?")], [calls({"function": {"name": "now", "arguments": ""}})])
    assert '"arguments": {}' in text


def test_a_template_that_reads_text_gets_text() -> None:
    opened = chat(DEEPSEEK)
    made = [{"name": "calc", "arguments": {"a": "é"}}, {"name": "calc", "arguments": '{"a":  1}'}]
    turn = {"role": "assistant", "content": None, "tool_calls": made}
    assert _learned(opened, [user("?")], [turn]) == ['calc```json{"a": "é"}```calc```json{"a":  1}```<|im_end|>']
    assert not chat(LLAMA).reads_text_calls
    assert not chat(CHATML).reads_text_calls


# As templates of small models have it: what is shown of an object is what Python makes of it.
SHOWN = """\
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] -%}{{ c.function.name }}:{{ c.function.arguments }}{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


@pytest.mark.parametrize("template", [SHOWN, SHOWN.replace("arguments }}", "arguments | string }}")])
def test_a_template_that_would_show_a_python_object_gets_json_text(template: str) -> None:
    opened, text = chat(template), '{"a":  true, "b": null}'
    for arguments in (text, {"a": True, "b": None}):
        [learned] = _learned(opened, [user("?")], [calls({"name": "f", "arguments": arguments})])
        assert learned == f"f:{text if arguments == text else json.dumps(arguments)}<|im_end|>"
    either = SHOWN.replace("{{ c.function.arguments", "{{ c.function.arguments if x else c.function.arguments | tojson")
    assert not chat(either).reads_text_calls


@pytest.mark.parametrize("template", [QWEN, SHOWN])
@pytest.mark.parametrize("function", [{"name": "f"}, {"name": "f", "arguments": None}, {"name": "f", "arguments": " "}])
def test_a_call_without_arguments_has_an_empty_object(function: dict[str, Any], template: str, tmp_path: Path) -> None:
    rows = [{"messages": [user("?"), calls({"function": function})]}]
    data = read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations")
    opened = chat(template)
    [example] = tokenized_at(opened, data, 0, rows_at(data, [0])[0])
    assert "{}" in opened.tokenizer.decode(example.tokens)
    assert "None" not in opened.tokenizer.decode(example.tokens)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"name": "f", "args": {"a": 1}, "id": "1", "type": "tool_call"}, "rename 'args' to 'arguments'"),
        ({"function": {"name": "f", "parameters": {"a": 1}}}, "rename 'parameters' to 'arguments'"),
        ({"type": "tool_use", "name": "f", "input": {"a": 1}}, "rename 'input' to 'arguments'"),
        ({"function": {"name": "f", "arguments": {}, "args": {"a": 1}}}, "rename 'args' to 'arguments'"),
        ({"function": {"name": "f"}, "arguments": {"a": 1}}, "put 'arguments' into 'function'"),
        ({"function": {"name": "f", "arguments": {}, "result": 1}}, "remove 'result'"),
        ({"tool_name": "f", "arguments": {}}, "rename 'tool_name' to 'name'"),
        ({"function": {"arguments": {"a": 1}}}, "without the name of a function"),
        ({"function": {"name": None, "arguments": {}}}, "without the name of a function"),
        ({"name": "f", "arguments": {"x": float("nan")}}, "a value that JSON does not have"),
        ({"name": "f", "arguments": '{"x": [1, -Infinity]}'}, "a value that JSON does not have"),
    ],
)
def test_keys_and_values_of_calls_that_no_template_reads_are_refused(call: Any, text: str, tmp_path: Path) -> None:
    rows = [{"messages": [user("a"), assistant("b")]}, {"messages": [user("a"), calls(call)]}]
    with pytest.raises(DataError) as caught:
        read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations")
    assert str(caught.value).startswith("row 1 of column 'messages'")
    assert text in str(caught.value)


@pytest.mark.parametrize("arguments", ['{"a": 1', '"1+1"', "[1]", "5", '{"a": 1, "a": 2}'])
def test_text_that_is_no_object_is_refused_with_its_row(arguments: str, tmp_path: Path) -> None:
    rows = [
        {"messages": [user("a"), calls({"function": {"name": "f", "arguments": each}})]} for each in ("{}", arguments)
    ]
    with pytest.raises(DataError, match=r"row 1 of column 'messages'(.|\n)*the arguments of a call(.|\n)*do:"):
        read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations")


# --- weights ------------------------------------------------------------------------------------------------------

_TURNS = [
    user("a"),
    {**assistant("bad"), "weight": 0},
    user("b"),
    {**assistant("good"), "weight": 1},
    user("c"),
    assistant("also"),
]


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_turns_with_the_weight_0_are_not_learned(template: str) -> None:
    opened = Chat(made_tokenizer(template), made_ends := _ends(template), made_ends)
    assert _learned(opened, _TURNS[:1], _TURNS[1:]) == ["good<|im_end|>", "also<|im_end|>"]
    assert _learned(opened, _TURNS[:3], _TURNS[3:]) == ["good<|im_end|>", "also<|im_end|>"]
    assert _learned(opened, _TURNS[:1], [assistant("x"), *_TURNS[2:4]]) == ["x<|im_end|>", "good<|im_end|>"]
    with pytest.raises(DataError, match="without the weight 0"):
        _learned(opened, _TURNS[:1], _TURNS[1:2])


def _ends(template: str) -> tuple[int, ...]:
    return (made_tokenizer(template).convert_tokens_to_ids("<|im_end|>"),)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_weights_are_read_from_files(name: str, tmp_path: Path) -> None:
    data = read_examples([write(tmp_path / name, [{"messages": _TURNS}])], "demonstrations")
    opened = Chat(made_tokenizer(CHATML), _ends(CHATML), _ends(CHATML))
    [example] = tokenized_at(opened, data, 0, rows_at(data, [0])[0])
    learned = [token for token, action in zip(example.tokens, example.action, strict=True) if action]
    assert opened.tokenizer.decode(learned) == "good<|im_end|>also<|im_end|>"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}, 5]}, "a call of a tool"),
        ({**assistant("b"), "weight": 0.5}, "weight 0.5"),
        ({**user("b"), "weight": 1}, "role 'user' with the weight 1"),
    ],
)
def test_other_weights_are_refused_with_their_row(message: Any, text: str, tmp_path: Path) -> None:
    rows = [{"messages": [user("a"), assistant("b")]}, {"messages": [user("a"), message, assistant("c")]}]
    with pytest.raises(DataError, match=rf"row 1 of column 'messages'(.|\n)*{text}"):
        read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations")


# --- tools and arguments of the template --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["prompts", "demonstrations", "preferences", "labels"])
@pytest.mark.parametrize("form", ["list", "text", "texts", "parquet"])
def test_tools_of_a_row_are_in_its_prompt(kind: Any, form: str, tmp_path: Path) -> None:
    answers = {
        "prompts": {},
        "demonstrations": {"completion": [assistant("b")]},
        "preferences": {"chosen": [assistant("b")], "rejected": [assistant("c")]},
        "labels": {"completion": [assistant("b")], "label": True},
    }[kind]
    convert = {"text": json.dumps, "texts": lambda tools: [*map(json.dumps, tools)]}.get(form, lambda tools: tools)
    tools = [[CALC], [TIME], None]
    rows = [{"prompt": [user(f"q{k}")], **answers, "tools": each and convert(each)} for k, each in enumerate(tools)]
    data = read_examples([write(tmp_path / ("rows.parquet" if form == "parquet" else "rows.jsonl"), rows)], kind)
    texts, count = _texts(chat(QWEN), data), 2 if kind == "preferences" else 1
    for k, text in enumerate(texts):
        shown = [tool["function"]["name"] for tool in (CALC, TIME) if json.dumps(tool) in text]
        assert shown == [["calc"], ["time"], []][k // count], form


def test_arguments_of_a_row_take_precedence_over_those_of_the_run(tmp_path: Path) -> None:
    rows = [
        {"prompt": [user("a")], "chat_template_kwargs": {"enable_thinking": False}},
        {"prompt": [user("b")], "chat_template_kwargs": '{"enable_thinking": true}'},
        {"prompt": [user("c")], "chat_template_kwargs": None},
    ]
    data = read_examples([write(tmp_path / "rows.jsonl", rows)], "prompts")
    ends = [text.endswith("<think>\n\n</think>\n\n") for text in _texts(chat(QWEN), data)]
    assert ends == [True, False, False]
    off = chat(QWEN, chat_template_kwargs={"enable_thinking": False})
    assert [text.endswith("<think>\n\n</think>\n\n") for text in _texts(off, data)] == [True, False, True]
    merged = [
        {**rows[0], "chat_template_kwargs": {"a": 1}},
        {**rows[0], "chat_template_kwargs": {"enable_thinking": False}},
    ]
    data = read_examples([write(tmp_path / "rows.parquet", merged)], "prompts")
    assert [text.endswith("<think>\n\n</think>\n\n") for text in _texts(chat(QWEN), data)] == [False, True]


def test_the_column_of_verl_is_an_argument_of_the_template() -> None:
    assert kwargs_of_row({"enable_thinking": False}) == {"enable_thinking": False}
    assert kwargs_of_row({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}) == {
        "enable_thinking": False
    }
    assert kwargs_of_row({"enable_thinking": None, "tools": [], "chat_template_kwargs": ""}) == {}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"tools": "calculator, search"}, "need: JSON text"),
        ({"tools": ["calculator"]}, "need: JSON text"),
        ({"tools": [{"type": "function"}]}, "need: a list of JSON schemas"),
        ({"tools": 3}, "another name: data.columns.other_tools=tools"),
        ({"chat_template_kwargs": [1]}, "need: an object"),
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, "purerl sets this one"),
        ({"chat_template_kwargs": {"tools": []}}, "purerl sets this one"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "purerl sets this one"),
        ({"chat_template_kwargs": '{"continue_final_message": true}'}, "purerl sets this one"),
        ({"chat_template_kwargs": {"tokenize": True}}, "purerl sets this one"),
        ({"chat_template_kwargs": {"effort": float("nan")}}, "values that JSON has"),
        ({"tools": [{"name": "f", "parameters": {"default": float("inf")}}]}, "values that JSON has"),
        ({"enable_thinking": "false"}, "column 'enable_thinking'\n  got:  'false'\n  need: true or false"),
        ({"enable_thinking": "no"}, "need: true or false"),
        ({"enable_thinking": ""}, "need: true or false"),
        ({"enable_thinking": 0}, "need: true or false"),
        ({"enable_thinking": [False]}, "need: true or false"),
        ({"chat_template_kwargs": {"enable_thinking": "False"}}, "need: true or false as enable_thinking"),
        ({"chat_template_kwargs": '{"enable_thinking": 0.0}'}, "got:  0.0"),
        ({"chat_template_kwargs": {"thinking": "off"}}, "need: true or false as thinking"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_with_their_row(columns: Any, text: str, tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")]}, {"prompt": [user("b")], **columns}]
    with pytest.raises(DataError) as caught:
        read_examples([write(tmp_path / "rows.jsonl", rows)], "prompts")
    assert str(caught.value).startswith("row 1 of ")
    assert text in str(caught.value)
    plain = [{"prompt": "a"}, {"prompt": "b", **columns}]
    read_examples([write(tmp_path / "plain.jsonl", plain)], "prompts")
