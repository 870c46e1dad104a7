"""Draws from the training data."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from purerl.data.chat import Prompt, open_chat
from purerl.data.examples import read_examples
from purerl.data.prompts import prompts_as_data
from purerl.opening.draws import Sampler
from tests.data.made import tokenizer, write


def test_examples_are_drawn_like_prompts_and_tokenized_later() -> None:
    data = prompts_as_data([f"{number}+1=" for number in range(10)], "text")
    sampler = Sampler(data, open_chat(tokenizer(), "text"), seed=3)
    draws = sampler.draw(5, 4)
    assert [draw.prompt.text for draw in draws] == [draw.example["prompt"] for draw in draws]
    assert sampler.draw_examples(5, 4) == [evolve(draw, prompt=Prompt("", [])) for draw in draws]
    assert sampler.examples_at([draw.index for draw in draws], 5) == sampler.draw_examples(5, 4)


@pytest.mark.parametrize("rows", [2, 10])
def test_a_mismatched_answer_is_that_of_the_next_other_example(tmp_path: Path, rows: int) -> None:
    """Also at the end of an epoch, where the next draw may have the same example."""
    labeled = [{"prompt": f"{k}?", "completion": f"={k}", "label": k % 2 == 0} for k in range(rows)]
    data = read_examples([write(tmp_path / "rows.jsonl", labeled)], "labels")
    sampler = Sampler(data, open_chat(tokenizer(), "text"), seed=3)
    draws = sampler.draw_examples(0, 4 * rows + 2)
    for number, draw in enumerate(draws[: 4 * rows]):
        other = next(each for each in draws[number + 1 :] if each.index != draw.index)
        mixed = sampler.mismatched_answer(draw)
        assert tokenizer().decode(mixed.tokens) == f"<bos>{draw.index}?={other.index}<eos>"
        assert mixed.action == [False, False, False, True, True, True]
        assert sampler.labeled_fields(draw)["desirable"] == (draw.index % 2 == 0)


def test_columns_of_numbers_are_fields_of_the_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"{k}?", "optimal_value": k} for k in range(5)]
    data = read_examples([write(tmp_path / "rows.jsonl", rows)], "prompts")
    chat = open_chat(tokenizer(), "text")
    for draw in Sampler(data, chat, seed=3, columns=("optimal_value",)).draw(0, 5):
        fields = Sampler(data, chat, seed=3, columns=("optimal_value",)).row_fields(draw)
        assert fields == {"group": draw.number, "example": draw.index, "optimal_value": draw.index}
        assert isinstance(fields["optimal_value"], float)
        assert "optimal_value" not in Sampler(data, chat, seed=3).row_fields(draw)
