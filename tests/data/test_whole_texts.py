"""A column `text`: every token is learned, as in continued pretraining."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from purerl.algos import sft
from purerl.data.chat import open_chat
from purerl.data.examples import read_examples, rows_at, tokenized_at
from purerl.data.inspect import inspect
from purerl.data.settings import Data
from purerl.data.truncation import PromptLimit
from purerl.errors import ConfigError, DataError
from purerl.evaluation.settings import Validation
from purerl.loop.train import train
from tests.data.made import tokenizer, write
from tests.loop.runs import records
from tests.loop.small import fake

TEXTS = [f"{k}+{k}={2 * k}" for k in range(10, 34)]


def _file(folder: Path, name: str = "text") -> str:
    return write(folder / "texts.jsonl", [{name: text} for text in TEXTS])


def test_every_token_is_learned_but_the_first(tmp_path: Path) -> None:
    data, made = read_examples([_file(tmp_path)], "demonstrations"), tokenizer()
    assert str(data.example_format) == "demonstrations: text (text)"
    chat = open_chat(made, "text")
    [example] = tokenized_at(chat, data, 3, rows_at(data, [3])[0])
    assert example.tokens == [made.bos_token_id, *map(made.convert_tokens_to_ids, TEXTS[3]), made.eos_token_id]
    assert example.action == [False] + [True] * 9
    for side, tokens in (("right", example.tokens[:4]), ("left", example.tokens[-4:])):
        limited = evolve(data, truncation=PromptLimit(4, side))
        [short] = tokenized_at(chat, limited, 3, rows_at(data, [3])[0])
        assert (short.tokens, short.action) == (tokens, [False, True, True, True])


def test_prompts_and_answers_are_preferred_to_a_text(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"text": "ab", "prompt": "a", "completion": "b"}])
    assert read_examples([file], "demonstrations").example_format.columns == ("prompt", "completion")
    only = _file(tmp_path)
    with pytest.raises(DataError, match="do:   rename the column 'text' if it holds prompts; SFT learns all of it"):
        read_examples([only], "prompts")
    empty = write(tmp_path / "empty.jsonl", [{"text": ""}])
    with pytest.raises(DataError, match="got:  an empty text in row 0"):
        read_examples([empty], "demonstrations")


def test_texts_are_learned_and_validated(tmp_path: Path) -> None:
    data = Data(files=(_file(tmp_path, "content"),), columns={"text": "content"}, validation_fraction=0.3)
    settings = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
    config = fake(2, algorithm=sft.Config(), data=data, validation=Validation(every=2), **settings)
    run = train(config, directory=tmp_path / "run")
    assert [record["rollout/length"] for record in records(run)[1:]] == [8, 8], "8 characters and EOS, but the first"
    assert records(run)[-1]["validation/perplexity"] > 1
    with pytest.raises(DataError, match="prompts of more than 8 tokens"):
        train(evolve(config, data=evolve(data, max_prompt_tokens=8)), directory=tmp_path / "short")
    cut = evolve(config, data=evolve(data, max_prompt_tokens=5, truncation="right"))
    assert records(train(cut, directory=tmp_path / "cut"))[1]["rollout/length"] == 4


def test_evaluation_needs_prompts(tmp_path: Path) -> None:
    data = Data(files=(_file(tmp_path),), validation_fraction=0.3)
    config = fake(2, algorithm=sft.Config(), data=data, rollout=None, evaluate=evolve(fake().evaluate, data={}))
    with pytest.raises(ConfigError, match="evaluate.data is missing\n  need: prompts: a column 'text' has none"):
        train(config, directory=tmp_path / "run")


def test_report_has_the_texts(tmp_path: Path) -> None:
    report = inspect(_file(tmp_path), tokenizer(), max_prompt_tokens=9)
    assert report.sample == (f"<bos>⟦{TEXTS[0]}<eos>⟧",)
    assert report.prompt_lengths["max"] == 10
    assert [problem.message for problem in report.problems] == ["a text of more than 9 tokens"]
