"""Markers of chat templates: what is learned is what the model would sample, or the run is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.algos import sft
from purerl.data.chat import open_chat, tokenize_prompts
from purerl.data.examples import read_examples, rows_at, tokenized_at
from purerl.data.inspect import inspect
from purerl.data.open import check_first_rows
from purerl.data.settings import Data
from purerl.errors import ConfigError
from purerl.runs.dry_run import dry_run
from tests.envs import families

from .made import assistant, user, write
from .runs import OFFLINE, config, save_model

CONVERSATION = [user("question"), assistant("answer"), user("another"), assistant("last")]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CALLS = [user("q"), {**assistant(""), "tool_calls": [CALL]}, families.result("36"), assistant("It is 36.")]
THOUGHTS = [user("q"), assistant("<think>\nhm\n</think>\n\n5")]
REASONING = [user("q"), {**assistant("5"), "reasoning_content": "hm"}]

HEADER = "{{ '<|im_start|>assistant\\n' }}"
SHOWN_CALLS = "{%- for c in m.tool_calls or [] -%}{{ '<tool_call>' + c.function.name + '</tool_call>' }}{%- endfor -%}"
ANSWER = "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"


def _template(turn: str) -> str:
    return (
        "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
        + turn
        + """{{ '\\n' }}{%- else -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
    )


def _open(turn: str) -> Any:
    return open_chat(families.tokenizer(_template(turn)), "messages")


def _data(folder: Path, *conversations: Any) -> Any:
    rows = [{"messages": messages} for messages in conversations]
    return read_examples([write(folder / "rows.jsonl", rows)], "demonstrations")


def _learned(opened: Any, data: Any, row: int = 0) -> list[str]:
    [example] = tokenized_at(opened, data, row, rows_at(data, [row])[0])
    texts, before = [""], False
    for token, is_learned in zip(example.tokens, example.action, strict=True):
        texts += [""] if is_learned and not before else []
        texts[-1] += opened.tokenizer.decode([token]) if is_learned else ""
        before = is_learned
    return texts[1:]


@pytest.mark.parametrize(
    ("turn", "messages", "got"),
    [
        pytest.param(
            f"{{%- if m.tool_calls -%}}{HEADER}{SHOWN_CALLS}{{{{ '<|im_end|>' }}}}{{%- else -%}}{HEADER}{ANSWER}"
            "{%- endif -%}",
            CALLS,
            "there are 2 turns to learn, and marked parts: 1",
            id="turns with calls are outside",
        ),
        pytest.param(
            HEADER + SHOWN_CALLS + ANSWER,
            CALLS,
            "message 1 of the conversation has a call outside of the markers",
            id="calls are before the markers",
        ),
        pytest.param(
            HEADER + "{%- if '</think>' in m.content -%}{{ m.content.split('</think>')[0] + '</think>' }}{%- endif -%}"
            "{% generation %}{{ m.content.split('</think>')[-1] + '<|im_end|>' }}{% endgeneration %}",
            THOUGHTS,
            "message 1 of the conversation has thoughts outside of the markers",
            id="thoughts in the content are before the markers",
        ),
        pytest.param(
            HEADER
            + "{%- if m.reasoning_content -%}{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif -%}"
            + ANSWER,
            REASONING,
            "message 1 of the conversation has thoughts outside of the markers",
            id="thoughts are before the markers",
        ),
        pytest.param(
            HEADER + "{{ '<think>\\n\\n</think>\\n\\n' }}" + ANSWER,
            CONVERSATION,
            "what is learned of message 1 of the conversation begins after "
            "'|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n'",
            id="empty thoughts are before the markers, and sampled",
        ),
        pytest.param(
            HEADER + "{%- if loop.last -%}" + ANSWER + "{%- else -%}{{ m.content + '<|im_end|>' }}{%- endif -%}",
            CONVERSATION,
            "there are 2 turns to learn, and marked parts: 1",
            id="only the last turn",
        ),
    ],
)
def test_markers_that_leave_out_a_part_are_refused_with_the_row(
    turn: str, messages: Any, got: str, tmp_path: Path
) -> None:
    opened, data = _open(turn), _data(tmp_path, CONVERSATION[:2], messages)
    with pytest.raises(ConfigError) as caught:
        check_first_rows(opened, data)
    row = 0 if messages is CONVERSATION and "think" in turn else 1
    path = data.paths[0]
    assert str(caught.value) == (
        "the {% generation %} markers of the chat template do not mark what the model would sample\n"
        f"  got:  in row {row} of {path!r} {got}\n"
        "  need: one marked part for each assistant turn, from the generation prompt to the token that ends the turn\n"
        "  do:   correct the markers, or remove them from the template"
    )
    [problem] = [each for each in inspect(path, opened.tokenizer).problems if "markers" in each.message]
    assert 1 in problem.rows


def test_a_dry_run_refuses_markers_that_leave_out_a_turn(tmp_path: Path) -> None:
    save_model(
        tmp_path, _template(HEADER + "{%- if loop.last -%}" + ANSWER + "{%- else -%}{{ m.content }}{%- endif -%}")
    )
    path = write(tmp_path / "rows.jsonl", [{"messages": CONVERSATION}])
    with pytest.raises(ConfigError, match="turns to learn, and marked parts: 1"):
        dry_run(config(tmp_path, Data(files=(path,)), algorithm=sft.Config(), **OFFLINE), tmp_path / "run")


@pytest.mark.parametrize(
    "turn",
    [
        HEADER + ANSWER,
        "{% generation %}" + HEADER + "{{ m.content + '<|im_end|>' }}{% endgeneration %}",
        "{{ '<|im_start|>assistant' }}{% generation %}{{ '\\n' + m.content + '<|im_end|>\\n' }}{% endgeneration %}",
        HEADER
        + "{% generation %}{{ m.content }}{% endgeneration %}{% generation %}{{ '<|im_end|>' }}{% endgeneration %}",
        HEADER + "{% generation %}{% endgeneration %}" + ANSWER,
    ],
    ids=["exact", "header inside", "end of the header inside", "two parts that touch", "an empty part"],
)
def test_each_turn_is_learned_from_the_generation_prompt_to_its_end(turn: str, tmp_path: Path) -> None:
    opened, data = _open(turn), _data(tmp_path, CONVERSATION)
    check_first_rows(opened, data)
    assert _learned(opened, data) == ["answer<|im_end|>", "last<|im_end|>"]
    [example] = tokenized_at(opened, data, 0, rows_at(data, [0])[0])
    prompt = tokenize_prompts(opened, [CONVERSATION[:3]])[0].tokens
    assert example.tokens[: len(prompt)] == prompt
    assert all(example.action[len(prompt) : len(prompt) + 2])


def test_thoughts_that_the_generation_prompt_begins_are_not_learned(tmp_path: Path) -> None:
    turn = "{% generation %}" + HEADER + "{{ '<think>\\n' + (m.reasoning_content or '') + '</think>' + m.content }}"
    template = _template(turn + "{{ '<|im_end|>' }}{% endgeneration %}").replace(
        "{{ '<|im_start|>assistant\\n' }}{%- endif -%}", "{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif -%}"
    )
    opened, data = open_chat(families.tokenizer(template), "messages"), _data(tmp_path, [*REASONING, *REASONING])
    check_first_rows(opened, data)
    assert _learned(opened, data) == ["hm</think>5<|im_end|>"] * 2


def test_a_second_end_token_after_the_last_turn_is_allowed(tmp_path: Path) -> None:
    """Phi 3: the template also marks the EOS token after the line break."""
    turn = HEADER + ANSWER
    template = (
        _template(turn)
        + "{%- if not add_generation_prompt -%}{% generation %}{{ eos_token }}{% endgeneration %}{%- endif -%}"
    )
    opened, data = open_chat(families.tokenizer(template), "messages"), _data(tmp_path, CONVERSATION)
    check_first_rows(opened, data)
    assert _learned(opened, data) == ["answer<|im_end|>", "last<|im_end|>", "<eos>"]


def test_an_end_token_in_the_text_of_an_answer_does_not_hide_markers_without_one(tmp_path: Path) -> None:
    opened = _open(HEADER + "{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>' }}")
    with pytest.raises(ConfigError, match="the end of a turn is not learned"):
        check_first_rows(opened, _data(tmp_path, [user("q"), assistant("a<|im_end|>")]))


def test_a_turn_of_weight_0_needs_no_learned_part(tmp_path: Path) -> None:
    opened = _open(HEADER + "{% generation %}{{ m.content }}" + SHOWN_CALLS + "{{ '<|im_end|>' }}{% endgeneration %}")
    data = _data(tmp_path, [user("q"), {**assistant("no"), "weight": 0}, *CALLS])
    check_first_rows(opened, data)
    assert _learned(opened, data) == ["<tool_call>f</tool_call><|im_end|>", "It is 36.<|im_end|>"]
