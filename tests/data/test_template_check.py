"""Is the end of a turn learned, and is the text of each message in the prompt: with templates of common families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.algos import sft
from purerl.data.answers import tokenize_answer
from purerl.data.chat import open_chat, tokenize_prompts
from purerl.data.examples import read_examples
from purerl.data.inspect import inspect
from purerl.data.open import check_first_rows
from purerl.data.settings import Data
from purerl.errors import ConfigError, DataError
from purerl.rollouts.examples import scored_at_end
from purerl.runs.dry_run import dry_run
from tests.envs import families

from .made import CHATML, MARKED, assistant, system, tokenizer, user, write
from .runs import OFFLINE, config, save_model

# trl#7230: the markers leave out the end token.
NO_END = MARKED.replace(
    "message.content + '<|im_end|>' }}{% endgeneration %}", "message.content }}{% endgeneration %}{{ '<|im_end|>' }}"
)

# Idefics3, SmolVLM: contents are lists of parts.
PARTS = """\
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- for part in m.content -%}{%- if part.type == 'text' -%}{{ part.text }}{%- endif -%}{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

CONVERSATION = [user("question"), assistant("answer"), user("another"), assistant("last")]


def _check(folder: Path, opened: Any, rows: list[Any], kind: Any = "demonstrations") -> None:
    check_first_rows(opened, read_examples([write(folder / "rows.jsonl", rows)], kind))


def _learned(opened: Any, messages: list[Any]) -> list[str]:
    example = tokenize_answer(opened, messages[:1], messages[1:])
    text, runs = "", []
    for token, action in zip([*example.tokens, 0], [*example.action, False], strict=True):
        text, runs = (
            (text + opened.tokenizer.decode([token]), runs) if action else ("", [*runs, text] if text else runs)
        )
    return runs


# --- the end of a turn ---------------------------------------------------------------------------------------------


def test_markers_that_leave_out_the_end_token_are_refused_before_the_run(tmp_path: Path) -> None:
    save_model(tmp_path, NO_END)
    path = write(tmp_path / "rows.jsonl", [{"messages": CONVERSATION[:2]}])
    with pytest.raises(ConfigError) as caught:
        dry_run(config(tmp_path, Data(files=(path,)), algorithm=sft.Config(), **OFFLINE), tmp_path / "run")
    assert str(caught.value) == (
        "the end of a turn is not learned, so the model would not learn to stop\n"
        f"  got:  in row 0 of {path!r} the learned text ends with 'answer'\n"
        "  need: '<|im_end|>' or '<eos>' among the learned tokens of each turn\n"
        "  do:   put {% endgeneration %} after that token in the chat template, or remove the markers from the template"
    )
    [problem] = inspect(path, tokenizer(NO_END)).problems
    assert (problem.message, problem.rows) == ("the end of a turn is not learned", (0,))
    for template in (MARKED, CHATML):  # both remedies
        _check(tmp_path, open_chat(tokenizer(template), "messages"), [{"messages": CONVERSATION}])


def test_the_token_that_begins_the_next_message_ends_a_turn_of_glm(tmp_path: Path) -> None:
    stops = ("<|user|>", "<|observation|>", "<eos>")
    opened = families.chat(families.GLM, stop=stops)
    assert _learned(opened, CONVERSATION) == ["answer<|user|>", "last<eos>"]
    assert _learned(opened, CONVERSATION[:2]) == ["answer<eos>"]
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "calc", "arguments": {"expression": "1"}}]}
    first, second = _learned(opened, [user("a"), call, families.result("1"), assistant("b")])
    assert first.endswith("</tool_call><|observation|>")
    assert second == "b<eos>"
    _check(tmp_path, opened, [{"messages": CONVERSATION}])
    example = tokenize_answer(opened, CONVERSATION[:1], CONVERSATION[1:2])
    assert example.added_end
    assert opened.tokenizer.decode(scored_at_end(example).tokens).endswith("answer")


def test_a_template_without_any_end_is_refused_for_several_answers(tmp_path: Path) -> None:
    turns = "{% for m in messages %}{{ m.role + ': ' + m.content + ' ' }}{% endfor %}"
    opened = open_chat(tokenizer(turns + "{{ 'assistant: ' if add_generation_prompt }}"), "messages")
    _check(tmp_path, opened, [{"messages": CONVERSATION[:2]}])
    with pytest.raises(ConfigError, match=r"row 1 of (.|\n)*do:   use a chat template that ends each turn"):
        _check(tmp_path, opened, [{"messages": CONVERSATION[:2]}, {"messages": CONVERSATION}])


@pytest.mark.parametrize("kind", ["reasoning_content", "tool_calls", "not last"])
def test_each_kind_of_answer_is_checked_wherever_it_is(kind: str, tmp_path: Path) -> None:
    """A template that ends plain answers, but not those of one kind."""
    condition = {"reasoning_content": "m.reasoning_content", "tool_calls": "m.tool_calls", "not last": "not loop.last"}[
        kind
    ]
    template = """\
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' }}{% generation %}{{ m.content }}{{ '<|im_end|>' if not (CONDITION) }}{% endgeneration %}
{%- else -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}""".replace("CONDITION", condition)
    opened = open_chat(tokenizer(template), "messages")
    plain = [{"messages": [user(f"q{k}"), assistant("b")]} for k in range(30)]
    _check(tmp_path, opened, plain)
    extra = {
        "reasoning_content": {"reasoning_content": "x"},
        "tool_calls": {"tool_calls": [{"name": "f", "arguments": {}}]},
    }
    last = CONVERSATION if kind == "not last" else [user("a"), {**assistant("b"), **extra[kind]}]
    with pytest.raises(ConfigError, match=r"the end of a turn is not learned(.|\n)*in row 30 of"):
        _check(tmp_path, opened, [*plain, {"messages": last}])


# --- the text of messages ------------------------------------------------------------------------------------------


def test_a_template_that_reads_parts_gets_parts(tmp_path: Path) -> None:
    opened = open_chat(tokenizer(PARTS), "messages")
    [prompt] = tokenize_prompts(opened, [[system("be"), user("hello")]])
    assert prompt.text == "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert _learned(opened, CONVERSATION) == ["answer<|im_end|>", "last<|im_end|>"]
    _check(tmp_path, opened, [{"prompt": [user("hello")]}], "prompts")


@pytest.mark.parametrize(
    ("content", "count"), [("''", 0), ("m.content + m.content", 2), ("m.content if m.role == 'system' else ''", 0)]
)
def test_a_template_must_show_the_text_of_a_user_once(content: str, count: int) -> None:
    template = CHATML.replace("message.content", f"({content.replace('m.', 'message.')})")
    with pytest.raises(ConfigError, match=f"shows the text of a user's message {count} times"):
        open_chat(tokenizer(template), "messages")


def test_a_template_that_leaves_out_messages_of_a_role_is_refused_with_the_row(tmp_path: Path) -> None:
    template = CHATML.replace(
        "{{ '<|im_start|>' + message.role", "{%- if message.role != 'developer' -%}{{ '<|im_start|>' + message.role", 1
    )
    template = template.replace("+ '<|im_end|>\\n' }}", "+ '<|im_end|>\\n' }}{%- endif -%}", 1)
    opened = open_chat(tokenizer(template), "messages")
    developer = {"role": "developer", "content": "be brief"}
    rows = [{"prompt": [user("a")]}, {"prompt": [developer, user("a")]}]
    _check(tmp_path, opened, rows[:1], "prompts")
    with pytest.raises(ConfigError) as caught:
        _check(tmp_path, opened, rows, "prompts")
    assert str(caught.value).startswith(
        "the chat template leaves out the text of a message of the role 'developer'\n  got:  in row 1"
    )


@pytest.mark.parametrize("template", [families.QWEN, families.LLAMA, families.CHATML, families.GEMMA, families.MISTRAL])
def test_templates_of_common_families_pass(template: str, tmp_path: Path) -> None:
    _check(tmp_path, families.chat(template), [{"messages": CONVERSATION}, {"messages": CONVERSATION[:2]}])
    _check(tmp_path, families.chat(template), [{"prompt": [user(' two\n lines with "quotes" é ')]}], "prompts")


NO_SYSTEM = CHATML.replace(
    "{%- for message in messages -%}", "{%- for message in messages if message.role != 'system' -%}"
)
TOOLS_HIDE_SYSTEM = CHATML.replace(
    "message.content +",
    "(tools | tojson if tools and message.role == 'system' else message.content) +",
)
SETTINGS = CHATML.replace(
    "message.content + '<|im_end|>\\n'",
    "('' if short and message.role == 'system' else message.content) + ('' if endless else '<|im_end|>\\n')",
)
SCHEMA = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("template", "row", "changed", "got"),
    [
        (NO_SYSTEM, {"prompt": [system(""), user("a")]}, {"prompt": [system("You are."), user("a")]}, "'You are.'"),
        (TOOLS_HIDE_SYSTEM, {"prompt": [system("be"), user("a")]}, {"tools": [SCHEMA]}, "'be'"),
        (SETTINGS, {"prompt": [system("be"), user("a")]}, {"chat_template_kwargs": {"short": True}}, "'be'"),
        (NO_SYSTEM, {"prompt": [user("a")]}, {"prompt": [user("a"), system("assistant")]}, "'assistant'"),
    ],
    ids=["an empty text", "tools", "arguments of the row", "a text that is in the header"],
)
def test_what_can_change_a_message_is_a_kind(template: str, row: Any, changed: Any, got: str, tmp_path: Path) -> None:
    opened = open_chat(tokenizer(template), "messages")
    _check(tmp_path, opened, [row], "prompts")
    with pytest.raises(
        ConfigError, match=r"leaves out the text of a message of the role 'system'(.|\n)*row 1 of .*" + got
    ):
        _check(tmp_path, opened, [row, {**row, **changed}], "prompts")


def test_arguments_of_a_row_that_remove_the_end_of_a_turn_are_refused(tmp_path: Path) -> None:
    opened, row = open_chat(tokenizer(SETTINGS), "messages"), {"messages": CONVERSATION[:2]}
    with pytest.raises(ConfigError, match=r"the end of a turn is not learned(.|\n)*row 1 of"):
        _check(tmp_path, opened, [row, {**row, "chat_template_kwargs": {"endless": True}}])


def test_a_short_result_that_the_answer_repeats_does_not_hide_that_it_is_left_out(tmp_path: Path) -> None:
    template = families.QWEN.replace("'\\n<tool_response>\\n' + m.content +", "'\\n<tool_response>\\n' +")
    calls = [user("q"), {**assistant(""), "tool_calls": [{"name": "f", "arguments": {}}]}, families.result("36")]
    rows = [{"messages": [*calls, assistant("It is 36.")]}]
    _check(tmp_path, families.chat(families.QWEN), rows)
    with pytest.raises(ConfigError, match="leaves out the text of a message of the role 'tool'"):
        _check(tmp_path, families.chat(template), rows)


@pytest.mark.parametrize("shown", ["message.content[:40]", "message.content.split('\\n')[0]", "message.content[-20:]"])
def test_a_template_that_cuts_texts_is_refused(shown: str, tmp_path: Path) -> None:
    template = CHATML.replace("message.content", shown)
    with pytest.raises(ConfigError, match="leaves out the text of a message of the role 'user'"):
        _check(tmp_path, open_chat(tokenizer(template), "messages"), [{"prompt": [user("short")]}], "prompts")


def test_a_system_prompt_of_the_settings_that_the_template_leaves_out_is_refused(tmp_path: Path) -> None:
    opened = open_chat(tokenizer(NO_SYSTEM), "messages", system_prompt="be brief")
    with pytest.raises(ConfigError) as caught:
        _check(tmp_path, opened, [{"prompt": [user("a")]}], "prompts")
    assert "the system prompt of the settings, 'be brief'" in str(caught.value)
    assert "leave system_prompt out" in str(caught.value)
    path = write(tmp_path / "rows.jsonl", [{"messages": CONVERSATION}])
    what = "the chat template leaves out the text of a message of the role 'system'"
    [problem] = inspect(path, tokenizer(NO_SYSTEM), system_prompt="be brief").problems
    assert problem.message == what
    path = write(tmp_path / "rows.jsonl", [{"messages": [system("be"), *CONVERSATION]}])
    assert [each.message for each in inspect(path, tokenizer(NO_SYSTEM)).problems] == [what]


# --- the assistant's own text ---------------------------------------------------------------------------------------


def _called(content: str) -> dict[str, Any]:
    return {**assistant(content), "tool_calls": [{"name": "f", "arguments": {"a": 1}}]}


def test_text_beside_calls_that_the_template_leaves_out_is_refused(tmp_path: Path) -> None:
    rows = [{"messages": [user("q"), _called(""), families.result("3"), assistant("3")]}]
    _check(tmp_path, families.chat(families.LLAMA), rows)
    rows += [{"messages": [user("q"), _called("Let me look."), families.result("3"), assistant("3")]}]
    with pytest.raises(
        ConfigError, match=r"the text of a message of the role 'assistant'(.|\n)*row 1 .*'Let me look.'"
    ):
        _check(tmp_path, families.chat(families.LLAMA), rows)
    _check(tmp_path, families.chat(families.QWEN), rows)


def test_a_turn_of_calls_that_the_template_does_not_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leaves out the calls of a message of the role 'assistant'"):
        _check(tmp_path, families.chat(families.CHATML), [{"messages": [user("q"), _called("")]}])


@pytest.mark.parametrize(
    ("content", "turn"),
    [
        ("m.content.split('</think>')[-1]", assistant("<think>\nx\n</think>\n\na")),
        ("m.content + (m.reasoning_content or '' if loop.first else '')", {**assistant("a"), "reasoning_content": "x"}),
    ],
)
def test_thoughts_of_the_last_turn_that_the_template_leaves_out_are_refused(
    content: str, turn: Any, tmp_path: Path
) -> None:
    opened = families.chat(families.CHATML.replace("m.content", f"({content})"))
    with pytest.raises(ConfigError, match="leaves out the thoughts of a message of the role 'assistant'"):
        _check(tmp_path, opened, [{"messages": [user("q"), turn]}])


# --- roles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "template", "do"),
    [
        ("Assistant", CHATML, "did you mean 'assistant'?"),
        ("gpt", CHATML, "did you mean 'assistant'?"),
        ("model", families.GEMMA, "did you mean 'assistant'?"),
        ("human", CHATML, "did you mean 'user'?"),
        ("function", CHATML, "did you mean 'tool'?"),
        ("critic", CHATML, "use one of these roles, or remove the message"),
    ],
)
def test_an_unknown_role_is_refused_with_the_nearest_one(role: str, template: str, do: str, tmp_path: Path) -> None:
    rows = [{"messages": CONVERSATION}, {"messages": [*CONVERSATION, user("r"), {"role": role, "content": "a"}]}]
    with pytest.raises(DataError) as caught:
        _check(tmp_path, families.chat(template), rows)
    assert f"row 1 of {str(tmp_path / 'rows.jsonl')!r}: a message with the unknown role {role!r}" in str(caught.value)
    assert str(caught.value).endswith(do)


def test_a_role_that_the_template_names_is_known(tmp_path: Path) -> None:
    opened = families.chat(families.CHATML.replace("m.role +", "('CRITIC' if m.role == 'critic' else m.role) +"))
    _check(tmp_path, opened, [{"messages": [user("q"), {"role": "critic", "content": "c"}, assistant("a")]}])
