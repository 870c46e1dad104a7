"""The generated page "Answers in mathematics"."""

from __future__ import annotations

from docs.generate.mathematics import page, pages


def test_page_shows_every_kind_with_its_function() -> None:
    kinds = [
        {"name": "Integers", "rows": [{"truth": "|-1|", "accepted": ["1", "`1`"], "rejected": ["", "1\n2", " 3"]}]},
        {"name": "AIME", "reward": "aime", "rows": [{"truth": "5", "accepted": ["5"], "rejected": ["6"]}]},
        {"name": "Near", "settings": {"relative_tolerance": 0.1}, "rows": []},
    ]
    text = page(kinds)
    assert "3 answers that are accepted and 4 that are not, for 2 ground truths" in text
    assert r"| `\|-1\|` | `1`, `` `1` `` | *nothing*, `1⏎2`, `  3 ` |" in text
    assert "## AIME\n\nScored by `aime`.\n\n| ground truth | accepted | not accepted |" in text
    assert '## Near\n\nScored by `{kind = "math", relative_tolerance = 0.1}`.' in text


def test_page_is_generated_from_the_table_of_the_tests() -> None:
    [(name, text)] = pages()
    assert name == "answers"
    assert "\n| `42` | `42`, " in text
