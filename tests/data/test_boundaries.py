"""The border of prompt and answer in tokens, for a tokenizer of every kind: the prompt has the tokens of sampling."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.data.answers import tokenize_answer
from purerl.data.boundaries import encode_after_prompt, encode_with_cuts
from purerl.data.chat import Chat, open_chat, tokenize_prompts
from purerl.data.conversations import read_conversation, read_steps
from purerl.data.encoding import encode_continuation
from purerl.data.examples import read_examples
from purerl.data.notes import data_notes
from purerl.errors import DataError
from tests.envs import families

from .made import MARKED, assistant, user, write
from .tokenizers_of_kinds import KINDS, tokenizer_of

_TURNS = """\
{%- for m in messages -%}{{ '<s>' + m.role + ': ' + m.content + '</s>' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<s>assistant: ' }}{%- endif -%}"""
_PIECES = ["2", "3", "+", "=", " ", "\n", "\n\n", "The", " sky", " is", "b", "a", "ab", ".", "é", " 5", "playing", "ed"]
_TEXT = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=5).map("".join)
_LLAMA = [
    kind for kind in KINDS if kind[1] in ("prepend", "metaspace always", "metaspace first", "metaspace, one word")
]


def _text_chat(kind: tuple[str, str], added: str = "") -> Chat:
    return open_chat(tokenizer_of(*kind, added), "text")


def _learned(chat: Chat, example: Any) -> list[str]:
    return chat.tokenizer.convert_ids_to_tokens([t for t, a in zip(example.tokens, example.action, strict=True) if a])


def _decoded(chat: Chat, tokens: list[int]) -> str:
    """The characters of `tokens`, without special tokens. A decoder may remove a space at the start."""
    return chat.tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(prompt=_TEXT, answer=_TEXT, added=st.sampled_from(["", "bos", "eos", "both"]))
def test_a_prompt_has_the_tokens_of_sampling_and_an_answer_the_characters_of_the_joint_text(
    kind: tuple[str, str], prompt: str, answer: str, added: str
) -> None:
    chat = _text_chat(kind, added)
    try:
        [sampled] = tokenize_prompts(chat, [prompt])
    except DataError:  # such as a line break, for a tokenizer that removes it
        return
    example = tokenize_answer(chat, prompt, answer)
    start = example.action.index(True)
    assert example.tokens[:start] == sampled.tokens
    bos, eos, unknown = chat.tokenizer.convert_tokens_to_ids(["<s>", "</s>", "<unk>"])
    assert sampled.tokens.count(bos) == (added in ("bos", "both"))
    assert [k for k, token in enumerate(example.tokens) if token == eos] == [len(example.tokens) - 1]
    joint = chat.tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]
    if not example.is_split:
        assert example.tokens[start:-1] == joint[start - (added in ("bos", "both")) :]
    if unknown not in (*joint, *example.tokens):
        assert _decoded(chat, example.tokens) == _decoded(chat, joint)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(contents=st.lists(_TEXT, min_size=4, max_size=4))
def test_each_turn_of_a_conversation_follows_the_tokens_of_sampling(kind: tuple[str, str], contents: list[str]) -> None:
    chat = open_chat(tokenizer_of(*kind, "both", _TURNS), "messages")
    messages = [(user, assistant)[k % 2](content) for k, content in enumerate(contents)]
    for first in (1, 3):
        example = tokenize_answer(chat, messages[:first], messages[first : first + 1])
        [sampled] = tokenize_prompts(chat, [messages[:first]])
        assert example.tokens[: example.action.index(True)] == sampled.tokens
        assert example.tokens.count(chat.tokenizer.bos_token_id) == first + 1
        whole = tokenize_answer(chat, messages[:1], messages[1:])
        joint = chat.tokenizer(
            "".join(f"<s>{m['role']}: {m['content']}</s>" for m in messages), add_special_tokens=False
        )
        if not whole.is_split:
            assert whole.tokens == joint["input_ids"]


@pytest.mark.parametrize("kind", _LLAMA, ids="-".join)
def test_no_space_is_added_between_prompt_and_answer(kind: tuple[str, str]) -> None:
    chat = _text_chat(kind, "bos")
    example = tokenize_answer(chat, "2+3=", "5")
    assert _learned(chat, example) == ["5", "</s>"]
    blue = tokenize_answer(chat, "The sky is", " blue")
    assert _learned(chat, blue)[0].startswith("▁")
    assert _decoded(chat, blue.tokens).strip() == "The sky is blue"
    assert encode_continuation(chat, "5") == chat.tokenizer.convert_tokens_to_ids(["5"])
    for text in ("\n5", "\n\n5", " 5"):
        tokens = encode_continuation(chat, text)
        assert _decoded(chat, [*chat.tokenizer.convert_tokens_to_ids(["2"]), *tokens]).strip() == f"2{text}"


def test_an_answer_whose_first_token_would_cross_the_border_is_a_continuation() -> None:
    chat = _text_chat(("bytes", "byte-level"))
    crossing = encode_after_prompt(chat, "The sky is ", "blue")
    assert crossing.is_split
    assert crossing.tokens[: crossing.ends[0]] == tokenize_prompts(chat, ["The sky is "])[0].tokens
    assert chat.tokenizer.decode(crossing.tokens[crossing.ends[0] :]) == "blue"
    assert not encode_after_prompt(chat, "The sky is", " blue").is_split
    lines = families.chat(None)  # its tokenizer has tokens of several line breaks
    tokens, ends, is_split = encode_with_cuts(lines, "a\n\nb\n\nc", [2, 5])
    assert is_split
    parts = [lines.tokenizer.decode(tokens[a:b]) for a, b in ((0, ends[0]), (ends[0], ends[1]), (ends[1], len(tokens)))]
    assert parts == ["a\n", "\nb\n", "\nc"]


@pytest.mark.parametrize("added", ["", "bos"])
@pytest.mark.parametrize(
    ("kind", "prompt", "answer", "is_split"),
    [
        (("wordpiece", "bert"), "ab€", "€ab", True),
        (("wordpiece", "bert"), "2 €", "€", True),
        (("wordpiece", "bert"), "2 €", " €", False),
        (("unigram", "metaspace first"), "2東", "東", True),
        (("unigram", "metaspace, one word"), "2東", "東2", True),
        (("unigram", "metaspace always"), "2東", "大大", True),
        (("unigram", "metaspace first"), "2東", "2", False),
        (("bpe", "metaspace first"), "2東", "東", False),
        (("wordlevel", "characters"), "2東", "東東", False),
        (("fallback", "prepend"), "2東", "東", False),
    ],
)
def test_unknown_characters_of_an_answer_are_not_lost_in_the_prompt(
    kind: tuple[str, str], prompt: str, answer: str, is_split: bool, added: str
) -> None:
    chat = _text_chat(kind, added)
    example = tokenize_answer(chat, prompt, answer)
    start = example.action.index(True)
    assert example.tokens[:start] == tokenize_prompts(chat, [prompt])[0].tokens
    assert len(_learned(chat, example)) > 1, "more than EOS"
    assert ("<unk>" in _learned(chat, example)) == (answer != "2" and kind[0] != "fallback")
    assert example.is_split == is_split


_PHI = """\
{%- for m in messages -%}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""


@pytest.mark.parametrize("kind", [("bytes", "byte-level"), ("fallback", "prepend"), ("unigram", "metaspace first")])
def test_space_before_an_answer_is_kept_after_a_token_that_removes_it(kind: tuple[str, str]) -> None:
    from tokenizers import AddedToken

    tokenizer = deepcopy(tokenizer_of(*kind, "", _PHI))
    marks = [AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in ("user", "assistant", "end")]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    chat = open_chat(tokenizer, "messages")
    for answer in ("    b", "\n\nb", "b", "b  ", "\n b"):
        turns = [user("a"), assistant(answer), user("2"), assistant("3")]
        example = tokenize_answer(chat, turns[:1], turns[1:])
        start = example.action.index(True)
        assert example.tokens[:start] == tokenize_prompts(chat, [turns[:1]])[0].tokens
        learned = chat.tokenizer.decode([t for t, a in zip(example.tokens, example.action, strict=True) if a])
        assert learned.replace(" ", "") == f"{answer.replace(' ', '')}<|end|>3<|end|>"
        if kind[0] == "bytes":
            assert learned == f"{answer}<|end|>3<|end|>"
        assert example.is_split == answer[:1].isspace()


def test_an_answer_without_tokens_is_refused() -> None:
    tokenizer = deepcopy(tokenizer_of("bytes", "byte-level"))
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="there is nothing to learn\n  got:  an answer without tokens: ''"):
        tokenize_answer(open_chat(tokenizer, "text"), "2+3=", "")


def test_a_chat_answer_that_begins_with_a_line_break_is_not_taken_for_a_template_that_changes_turns() -> None:
    chat = families.chat(families.CHATML)
    messages = [user("a"), assistant("\nb"), user("c"), assistant("d")]
    example = tokenize_answer(chat, messages[:1], messages[1:])
    assert example.is_split
    assert example.tokens[: example.action.index(True)] == tokenize_prompts(chat, [messages[:1]])[0].tokens
    runs = "".join(_learned(chat, example)).replace("Ċ", "\n").split("<|im_end|>")
    assert runs == ["\nb", "d", ""]


@pytest.mark.parametrize("text", ["<s>2+3=", "2+3="])
@pytest.mark.parametrize("added", ["bos", "both"])
def test_a_prompt_that_a_template_has_rendered_has_one_bos(text: str, added: str) -> None:
    for kind in (("fallback", "prepend"), ("bytes", "byte-level"), ("unigram", "metaspace first")):
        chat = _text_chat(kind, added)
        bos = chat.tokenizer.bos_token_id
        [prompt] = tokenize_prompts(chat, [text])
        example = tokenize_answer(chat, text, "5</s>")
        assert (prompt.tokens.index(bos), prompt.tokens.count(bos), example.tokens.count(bos)) == (0, 1, 1)
        assert (prompt.tokens + example.tokens).count(chat.tokenizer.eos_token_id) == 1


@pytest.mark.parametrize(
    ("prompt", "answer", "column"),
    [
        ("2+3=", "5", None),
        ("<s>2+3=", "5", None),
        (" <s>2+3=", "5", "prompt"),
        ("\n<s>2+3=", "5", "prompt"),
        ("<s><s>2+3=", "5", "prompt"),
        ("<s>2 <s> 3", "5", "prompt"),
    ],
)
def test_a_second_bos_is_noted_with_its_row(prompt: str, answer: str, column: str | None, tmp_path: Path) -> None:
    rows = [{"prompt": "2+2=", "completion": "4"}, {"prompt": prompt, "completion": answer}]
    data = read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations")
    for kind in (("fallback", "prepend"), ("bytes", "byte-level"), ("unigram", "metaspace first")):
        chat = _text_chat(kind, "bos")
        notes = [note for note in data_notes([data], chat, ()) if "beside the one" in note]
        place = f"row 1 of {data.paths[0]!r}"
        assert notes == [f"'<s>' is in {column!r} beside the one before the prompt: {place}"] * (column is not None)
        tokens = tokenize_answer(chat, prompt, answer).tokens
        assert (tokens.count(chat.tokenizer.bos_token_id) > 1) == (column is not None)
        assert not [note for note in data_notes([data], _text_chat(kind), ()) if "<s>" in note], "without BOS"


def test_a_spelled_bos_is_text_if_special_tokens_are_escaped() -> None:
    chat = open_chat(tokenizer_of("bytes", "byte-level", "bos"), "text", special_tokens="escape")
    example = tokenize_answer(chat, "<s>2", "5")
    bos = chat.tokenizer.bos_token_id
    assert example.tokens[0] == bos
    assert example.tokens.count(bos) == 1
    assert _decoded(chat, example.tokens) == "<s>25"


def test_reward_models_read_a_completion_as_it_follows_its_prompt() -> None:
    for kind in _LLAMA:
        chat = _text_chat(kind, "both")
        expected = tokenize_answer(chat, "2+3=", "5").tokens
        assert read_conversation(chat, "2+3=", [assistant("5")], pad_token=None).tokens == expected
        assert read_steps(chat, "2+3=", [assistant("5")], ends=[1]).tokens == expected


def test_markers_and_turns_learn_the_same_tokens() -> None:
    plain = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    kind = ("bytes", "byte-level")
    for content in ("b", "\nb", "b\n", "", " "):
        messages = [user("a"), assistant(content), user("c"), assistant("d")]
        examples = []
        for template in (MARKED, plain):
            made = open_chat(tokenizer_of(*kind, "", template.replace("<|im_end|>", "</s>")), "messages")
            examples.append(tokenize_answer(made, messages[:1], messages[1:]))
        assert examples[0] == examples[1], content


_SPACED = MARKED.replace("{% generation %}", "{%- generation -%}\n  ").replace("{% end", "{%  end") + "\n"


@pytest.mark.parametrize("template", [MARKED, _SPACED, MARKED.replace("{% end", "\n  {%- end")])
def test_marked_text_is_that_which_transformers_marks(template: str) -> None:
    tokenizer = tokenizer_of("bytes", "byte-level", "", template)
    messages = [user("a"), assistant("b"), user("c"), assistant("d")]
    options: dict[str, Any] = {"return_dict": True, "return_assistant_tokens_mask": True}
    expected = tokenizer.apply_chat_template(messages, **options)
    example = tokenize_answer(open_chat(tokenizer, "messages"), messages[:1], messages[1:])
    assert example.tokens == expected["input_ids"]
    assert example.action == [*map(bool, expected["assistant_masks"])]
