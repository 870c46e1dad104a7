"""Prompts that leave no room for a completion are known before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.schema import Data, Evaluate, Rollout, RunConfig
from purerl.data.chat import open_chat
from purerl.data.examples import indices_of_draws
from purerl.errors import DataError
from purerl.loop.evaluation import exam_of_model, examine
from purerl.loop.lengths import check_problems, longest_of
from purerl.loop.open import open_run
from purerl.loop.run import Run
from purerl.protocols import Model
from purerl.store.directory import claim
from tests.data.made import tokenizer, write

from .small import fake

LONGEST, NEW = 10, 3
FITS, TOO_LONG = "1" * (LONGEST - NEW - 1), "1" * (LONGEST - NEW)  # a text begins with <bos>


def _opened(folder: Path, prompts: list[str], *, most: int | None = None, **changes: Any) -> Run:
    tokenizer().save_pretrained(folder / "model")
    size = len(tokenizer())
    settings: dict[str, Any] = {
        "prepare_data": None,
        "model": Model(str(folder / "model")),
        "trainer": fake_trainer.Config(vocabulary=size),
        "generator": fake_generator.Config(vocabulary=size, longest=LONGEST),
        "rollout": Rollout(samples_per_prompt=2, max_tokens=NEW),
        "rewards": ("tests.loop.rewards:first_is_even",),
        "evaluate": None,
        "data": Data(files=(_file(folder / "rows.jsonl", prompts),), max_prompt_tokens=most),
    }
    config: RunConfig = fake(**settings | changes)
    place = claim(folder / "run", config, fresh=True)
    try:
        return open_run(config, place, {})
    finally:
        place.release()


def _file(path: Path, prompts: list[str]) -> str:
    return write(path, [{"prompt": prompt} for prompt in prompts])


def test_a_prompt_that_leaves_no_room_is_refused_by_its_row(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _opened(tmp_path, [*[FITS] * 5, TOO_LONG])
    assert str(caught.value).replace(str(tmp_path), "") == (
        "row 5 of '/rows.jsonl'\n"
        "  got:  a prompt of 8 tokens, and up to 3 new ones\n"
        "  need: at most 10 together\n"
        "  do:   set data.max_prompt_tokens to 7 to leave such rows out, or lower rollout.max_tokens"
    )
    with pytest.raises(DataError, match=r"do:   lower rollout.max_tokens$"):
        _opened(tmp_path, [FITS], rollout=Rollout(samples_per_prompt=2, max_tokens=LONGEST))


def test_the_remedy_helps_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.loop.lengths.prompts_at", None)  # which is not asked, for the setting says enough
    run = _opened(tmp_path, [*[FITS] * 5, TOO_LONG], most=LONGEST - NEW)
    assert run.data.counts["too_long"] == 1


def test_only_what_will_be_drawn_counts(tmp_path: Path) -> None:
    run = _opened(tmp_path, [FITS] * 9, max_steps=1, batch_size=2, num_minibatches=1)
    first = indices_of_draws(run.data.examples, run.config.seed, 0, 2)
    prompts = [FITS if index in first else TOO_LONG for index in range(9)]
    _opened(tmp_path, prompts, max_steps=1, batch_size=2, num_minibatches=1)
    with pytest.raises(DataError, match="a prompt of 8 tokens"):
        _opened(tmp_path, prompts, max_steps=1, batch_size=3, num_minibatches=1)


def test_problems_are_asked_too(tmp_path: Path) -> None:
    data = _file(tmp_path / "problems.jsonl", [FITS, TOO_LONG])
    with pytest.raises(DataError, match=r"row 1 of .*problems.jsonl'\n(.*\n)*  do:   leave the row out, or lower"):
        _opened(tmp_path, [FITS], evaluate=Evaluate(data=data, max_tokens=NEW))
    run = _opened(tmp_path, [FITS], evaluate=Evaluate(data=data, max_tokens=NEW - 1))
    chat = open_chat(tokenizer(), "text")
    check_problems(chat, run.data.problems, new=NEW, longest=None)
    with pytest.raises(DataError, match="row 1 of"):
        check_problems(chat, run.data.problems, new=NEW, longest=longest_of(run.generator))


def test_so_are_those_of_an_exam_outside_of_a_run(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    asked = Evaluate(data=_file(tmp_path / "problems.jsonl", [FITS, FITS, TOO_LONG]), max_tokens=NEW)
    engine = fake_generator.Config(vocabulary=len(tokenizer()), longest=LONGEST)
    with pytest.raises(DataError, match="row 2 of .*problems.jsonl'\n  got:  a prompt of 8 tokens"):
        examine(exam_of_model(Model(str(tmp_path)), asked, generator=engine))


def test_the_least_of_what_engines_say_counts() -> None:
    class Says:
        def __init__(self, longest: int | None) -> None:
            self.longest = longest

    assert longest_of(None, object(), Says(None)) is None
    assert longest_of(Says(5), object(), Says(3)) == 3
