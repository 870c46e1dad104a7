"""What is drawn from the training data."""

from __future__ import annotations

from attrs import evolve

from purerl.data.chat import Prompt, open_chat
from purerl.data.prompts import prompts_as_data
from purerl.loop.draws import Sampler
from tests.data.made import tokenizer


def test_examples_are_drawn_like_prompts_and_tokenized_later() -> None:
    data = prompts_as_data([f"{number}+1=" for number in range(10)], "text")
    sampler = Sampler(data, open_chat(tokenizer(), "text"), seed=3)
    draws = sampler.draw(5, 4)
    assert [draw.prompt.text for draw in draws] == [draw.example["prompt"] for draw in draws]
    assert sampler.draw_examples(5, 4) == [evolve(draw, prompt=Prompt("", [])) for draw in draws]
    assert sampler.examples_at([draw.index for draw in draws], 5) == sampler.draw_examples(5, 4)
