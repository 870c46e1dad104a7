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
from purerl.errors import ConfigError
from purerl.loop.dry_run import dry_run
from purerl.rollouts.examples import scored_at_end
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
