"""Templates of our own on every kind of row, as a table, and templates in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.templates.sources import read_templates
from purerl.templates.table import make_table
from purerl.templates.tokenizers import stop_tokens_of, tokenizer_of_template
from purerl.templates.trials import KINDS, Cell, try_template
from tests.data.test_continuation import EMPTY, FINAL_EOS, OPENED, SWITCHED
from tests.envs import families

BORDER = "an answer does not continue the generation prompt of the chat template"
ADDED = (
    "an answer without thoughts, before which the chat template adds empty ones, which are learned, "
    r"'<think>\n\n</think>\n\n'"
)
CHANGES = "the chat template changes earlier turns when more messages follow"
UNREAD = "parts that nothing reads: key 'reasoning_content' of messages"
LEFT_OUT = "the chat template leaves out the thoughts of a message of the role 'assistant'"
NO_CALLS = "the chat template leaves out the calls of a message of the role 'assistant'"
NO_TOOLS = "the chat template does not read `tools`"
NO_FORMAT = "the chat template renders tool calls in a format that is not known"

EXPECTED = {
    "QWEN": (
        families.QWEN,
        ("yes", "yes", "yes", f"refused {LEFT_OUT}", f"refused {CHANGES}", "yes", "yes"),
        ("yes", "yes", "yes", "yes", "hermes"),
    ),
    "OPENED": (
        OPENED,
        (*(f"refused {BORDER}",) * 2, "yes", *(f"refused {BORDER}",) * 4),
        ("yes", "yes", "yes", f"refused {NO_TOOLS}", f"refused {NO_FORMAT}"),
    ),
    "SWITCHED": (
        SWITCHED,
        (*("thinking off",) * 2, "yes", f"note {UNREAD}, thinking off", "yes", f"refused {BORDER}", "thinking off"),
        ("yes", "yes", "yes", f"refused {NO_TOOLS}", f"refused {NO_FORMAT}"),
    ),
    "EMPTY": (
        EMPTY,
        (*("thinking off",) * 2, "yes", f"note {UNREAD}; {ADDED}", "yes", f"refused {NO_CALLS}", "thinking off"),
        ("yes", "yes", "yes", f"refused {NO_TOOLS}", f"refused {NO_FORMAT}"),
    ),
    "FINAL_EOS": (
        FINAL_EOS,
        ("yes", "yes", "yes", f"note {UNREAD}", "yes", f"refused {NO_CALLS}", "yes"),
        ("yes", "yes", "yes", f"refused {NO_TOOLS}", f"refused {NO_FORMAT}"),
    ),
    "GLM": (
        families.GLM,
        ("yes", "yes", "yes", f"note {UNREAD}", "yes", "yes", "yes"),
        ("yes", "yes", "yes", "yes", "hermes"),
    ),
    "broken": (
        "{% for m in messages %}",
        ("refused",) * 7,
        ("refused",) * 5,
    ),
}  # fmt: skip


def _row(template: str) -> dict[str, str]:
    tokenizer = tokenizer_of_template(template)
    table = make_table({"it": try_template(tokenizer, stop_tokens_of(tokenizer))})
    [[_, *cells]] = table.rows
    for k, cell in enumerate(cells):
        words = cell.replace(",", " ,").split(" ")
        cells[k] = " ".join(table.messages.get(word, word) for word in words).replace(" ,", ",")
    return dict(zip(KINDS, cells, strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_each_template_has_the_result_of_its_kind(name: str) -> None:
    template, rows, runs = EXPECTED[name]
    row = _row(template)
    if name == "broken":
        assert all(cell.startswith("refused the chat template") for cell in row.values()), row
        return
    assert row == dict(zip(KINDS, (*rows, *runs), strict=True))


def test_a_template_of_two_users_texts_is_refused_in_every_kind() -> None:
    row = _row(families.CHATML.replace("m.content", "(m.content + m.content)"))
    assert {cell.startswith("refused the chat template of '' shows the text") for cell in row.values()} == {True}


@pytest.mark.parametrize(
    ("template", "stops"),
    [
        (families.CHATML, ["<|im_end|>"]),
        (families.GEMMA, ["<end_of_turn>"]),
        (families.GLM, ["<|user|>", "<|observation|>"]),
        (families.CHANGING_END, ["<|return|>"]),
    ],
)
def test_stop_tokens_end_an_answer_or_begin_the_next_message(template: str, stops: list[str]) -> None:
    tokenizer = tokenizer_of_template(template)
    assert tokenizer.convert_ids_to_tokens([*stop_tokens_of(tokenizer)]) == stops


def test_a_tokenizer_of_a_template_has_its_tags_as_tokens_and_keeps_all_other_text() -> None:
    tokenizer: Any = tokenizer_of_template("<|im_start|>[INST]<think>{{ '</s>' }}<tool_call>")
    text = "<|im_start|>é 东\n\nab<think>x</s>[INST]<tool_call>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert {"<|im_start|>", "<think>", "</s>", "[INST]", "<tool_call>", "ĊĊ"} <= {*tokens}
    assert "<think>" not in tokenizer.decode(ids, skip_special_tokens=True).replace("<think>", "", 1)
    assert tokenizer.decode(ids, skip_special_tokens=True).count("<tool_call>") == 1
    assert "[INST]" not in tokenizer.decode(ids, skip_special_tokens=True)


def test_a_fault_is_the_cell_also_if_other_arguments_work() -> None:
    cells = dict.fromkeys(KINDS, Cell("wrong", {}, "a fault")) | {"tool format": Cell("works", {}, "llama")}
    table = make_table({"it": cells})
    assert table.rows == [["it", *["wrong 1"] * (len(KINDS) - 1), "llama"]]
    assert table.messages == {"1": "a fault"}


def test_templates_are_read_from_a_file_a_directory_and_a_model(tmp_path: Path) -> None:
    (tmp_path / "b.jinja").write_text(families.GEMMA)
    (tmp_path / "a.jinja").write_text(families.CHATML)
    assert [each.name for each in read_templates(str(tmp_path))] == ["a", "b"]
    [only] = read_templates(str(tmp_path / "b.jinja"))
    assert (only.name, only.tokenizer.chat_template) == ("b", families.GEMMA)
    families.tokenizer(families.QWEN).save_pretrained(tmp_path / "model")
    [own] = read_templates(str(tmp_path / "model"))
    assert (own.name, own.tokenizer.chat_template) == ("model", families.QWEN)
    [with_model] = read_templates(str(tmp_path / "b.jinja"), str(tmp_path / "model"))
    assert with_model.tokenizer.get_vocab() == own.tokenizer.get_vocab()
    assert with_model.tokenizer.chat_template == families.GEMMA


def test_a_directory_without_templates_is_refused(tmp_path: Path) -> None:
    families.tokenizer(None).save_pretrained(tmp_path / "model")
    for path in (tmp_path / "nowhere", tmp_path / "model"):
        with pytest.raises(ConfigError) as caught:
            read_templates(str(path))
        assert str(caught.value) == (
            f"chat templates at {str(path)!r}\n"
            "  got:  none\n"
            "  need: a file with a template, a directory of .jinja files, or the directory of a model with a template"
        )
