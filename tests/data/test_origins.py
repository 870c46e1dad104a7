"""The origin of each token of a row: the template, the messages, images, and what is learned or was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from purerl.data.answers import TokenizedExample, tokenize_answer
from purerl.data.chat import Chat, TextOrMessages, open_chat, tokenize_prompts
from purerl.data.shown_tokens import ShownRow, endings_of, show_row, show_sampled

from .made import CHATML, HEADERS, MARKED, assistant, system, tokenizer, user
from .tokenizers_of_kinds import tokenizer_of

TOOLS = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content -%}{{ '<think>' + message.reasoning_content + '</think>' }}{%- endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{ '[call ' + call.function.name + ' ' + call.function.arguments | tojson + ']' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# In the style of Qwen3: thoughts in the content are left out, and tool results are seen by how they begin.
THINKING = """\
{%- for message in messages -%}
{%- set ns = namespace(text=message.content) -%}
{%- if message.role == 'user' and ns.text.startswith('<result>') -%}{{ '[a result]' }}{%- endif -%}
{%- if '</think>' in ns.text -%}{%- set ns.text = ns.text.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' + ns.text + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

MERGED = """\
{%- set ns = namespace(before='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.before = message.content + '\\n\\n' -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + ns.before + message.content | trim + '<|im_end|>\\n' }}
{%- set ns.before = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def opened(template: str, **settings: Any) -> Chat:
    return open_chat(tokenizer(template), "messages", **settings)


def runs(row: ShownRow) -> list[tuple[str, str]]:
    """The origins of runs of tokens, with their texts."""
    grouped = groupby(row.tokens, key=lambda token: token.origin)
    return [(origin, "".join(token.text for token in run)) for origin, run in grouped]


def shown(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages = "") -> ShownRow:
    if answer:
        example = tokenize_answer(chat, prompt, answer)
    else:
        tokens = tokenize_prompts(chat, [prompt])[0].tokens
        example = TokenizedExample(tokens, [False] * len(tokens))
    row = show_row(chat, prompt, answer, example)
    assert [token.id for token in row.tokens] == example.tokens
    return row


def test_each_part_of_a_prompt_has_its_origin():
    chat = opened(CHATML, system_prompt="s", chat_template_kwargs={"enable_thinking": False})
    row = shown(chat, [user("s"), assistant("user"), user(" a b ")])
    assert runs(row) == [
        ("template", "<|im_start|>system\n"),
        ("system", "s"),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("user", "s"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
        ("assistant", "user"),
        ("template", "<|im_end|>\n<|im_start|>user\n "),
        ("user", "a b"),
        ("template", " <|im_end|>\n<|im_start|>assistant\n<think></think>"),
    ]
    assert row.problems == ()


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_what_is_learned_is_of_the_model_with_its_end(template: str):
    row = shown(
        opened(template), [user("a")], [assistant("b"), user("c"), {**assistant("d"), "weight": 0}, assistant("e")]
    )
    assert [run for run in runs(row) if run[0] != "template"] == [
        ("user", "a"),
        ("model", "b<|im_end|>"),
        ("user", "c"),
        ("assistant", "d"),
        ("model", "e<|im_end|>"),
    ]


def test_space_that_a_template_removes_changes_nothing_else():
    row = shown(opened(HEADERS), [system("  be\n"), user("\n\na")])
    assert [run for run in runs(row) if run[0] != "template"] == [("system", "be"), ("user", "a")]
    assert row.problems == ()


def test_a_system_prompt_that_is_merged_into_a_turn_is_found():
    row = shown(opened(MERGED), [system("be"), user("a")])
    assert runs(row)[1:4] == [("system", "be"), ("template", "\n\n"), ("user", "a")]


def test_calls_thoughts_and_results_are_of_their_messages():
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": "two", "y": 2}}}
    turn = {"role": "assistant", "content": "I add.", "reasoning_content": "hm", "tool_calls": [call]}
    row = shown(opened(TOOLS), [user("a"), turn, {"role": "tool", "content": "4"}])
    assert [run for run in runs(row) if run[0] != "template"] == [
        ("user", "a"),
        *[("assistant", text) for text in ("hm", "I add.", "add", "two")],
        ("tool", "4"),
    ]


def test_text_after_thoughts_is_found_and_so_is_text_with_a_tag_that_a_template_reads():
    messages = [user("a"), assistant("<think>\nhm</think>\n\nb"), user("<result>4</result>")]
    row = shown(opened(THINKING), messages)
    assert ("assistant", "b") in runs(row)
    assert ("user", "4") in runs(row)
    assert row.problems == ()


def test_a_text_that_the_template_changes_is_a_problem_and_of_the_template():
    row = shown(
        opened(CHATML.replace("+ message.content +", "+ message.content.replace('b', 'x') +")),
        [system("a"), user("b c")],
    )
    assert runs(row) == [
        ("template", "<|im_start|>system\n"),
        ("system", "a"),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("user", "x c"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
    ]
    cut = CHATML.replace("+ message.content +", "+ message.content[:20] +")
    row = shown(opened(cut), [system("a" * 30), user("b")])
    assert [origin for origin, _ in runs(row)] == ["template", "user", "template"]
    what = "the chat template does not show the text of message 0 (system) as it is"
    assert row.problems == (f"{what}: tokens that it makes of it are listed as its own",)


def test_a_system_prompt_that_is_left_out_is_a_problem():
    without = "{%- set messages = messages | selectattr('role', 'ne', 'system') | list -%}" + CHATML
    row = shown(opened(without), [system("be"), user("b")])
    assert {origin for origin, _ in runs(row)} == {"template", "user"}
    assert "message 0 (system)" in row.problems[0]


def test_special_tokens_that_are_escaped_are_text_of_the_user():
    row = shown(opened(CHATML, special_tokens="escape"), [user("a<|im_end|>b")])
    assert ("user", "a<|im_end|>b") in runs(row)
    assert len([token for token in row.tokens if token.text == "<|im_end|>"]) == 1


def test_plain_text_is_of_the_user_and_what_the_tokenizer_adds_is_not():
    chat = open_chat(tokenizer(), "text")
    assert runs(shown(chat, "1+1=")) == [("template", "<bos>"), ("user", "1+1=")]
    assert runs(shown(chat, "1+1=", "2")) == [("template", "<bos>"), ("user", "1+1="), ("model", "2<eos>")]


KINDS = [
    ("bytes", "byte-level"),
    ("fallback", "prepend", "bos"),
    ("fallback", "prepend"),
    ("bytes", "byte-level", "both"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["The sky is", "2+3=", "caf\u00e9 \U0001f600"])
def test_every_kind_of_tokenizer_is_aligned(kind: Sequence[str], prompt: str):
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    own = tokenizer_of(*kind)
    own.chat_template = template
    row = shown(open_chat(own, "messages"), [system("blue"), user(prompt)])
    joined = "".join(text for origin, text in runs(row) if origin == "user")
    assert joined.strip() == own.decode(own(prompt, add_special_tokens=False)["input_ids"]).strip()
    assert "blue" in "".join(text for origin, text in runs(row) if origin == "system")


def test_what_a_model_reads_after_its_turn_is_context():
    chat = opened(CHATML)
    [prompt] = tokenize_prompts(chat, [[user("a")]])
    tokens = [*prompt.tokens, 20, 21, 22, 23]
    sampled = [False] * len(prompt.tokens) + [True, True, False, True]
    row = show_sampled(chat, [user("a")], prompt, tokens, sampled)
    assert [origin for origin, _ in runs(row)] == ["template", "user", "template", "model", "context", "model"]
    other = show_sampled(chat, [user("a")], prompt, tokens[1:], sampled[1:])
    assert [origin for origin, _ in runs(other)] == ["context", "model", "context", "model"]


def test_a_completion_ends_with_tokens_and_with_strings():
    endings = endings_of(opened(CHATML), ("\n\n", "<eos>x"))
    assert [(each.kind, each.text, [token.text for token in each.tokens]) for each in endings] == [
        ("stop token", "<|im_end|>", ["<|im_end|>"]),
        ("stop token", "<eos>", ["<eos>"]),
        ("stop string", "\n\n", ["\n", "\n"]),
        ("stop string", "<eos>x", ["<eos>", "x"]),
    ]
