"""Rows that are too long, and prompts that leave no room for a completion, are refused before the first step."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from purerl.algos import kto, sft
from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.data.chat import open_chat
from purerl.data.encoding import bounded_tokens, encode_strings, is_byte_level
from purerl.data.examples import indices_of_draws, prompts_at, read_examples
from purerl.data.limits import check_lengths, check_problem_lengths, min_limit
from purerl.data.settings import Data
from purerl.errors import DataError
from purerl.evaluation.settings import Evaluate
from purerl.loop.run import Run
from purerl.loop.train import train
from purerl.protocols import Capabilities
from purerl.rollouts.settings import Rollout
from purerl.runs.evaluation import evaluation_of_model, run_evaluation
from purerl.settings import Model
from tests.loop.runs import opened
from tests.loop.small import small_real

from .made import tokenizer, write
from .runs import config, save_model
from .tokenizers_of_kinds import KINDS, tokenizer_of

LIMIT, NEW = 10, 3
FITS, TOO_LONG = "1" * (LIMIT - NEW - 1), "1" * (LIMIT - NEW)  # the tokenizer adds <bos>


def _open(folder: Path, prompts: list[str], *, max_prompt_tokens: int | None = None, **changes: Any) -> Run:
    save_model(folder, None)
    settings: dict[str, Any] = {
        "generator": fake_generator.Config(vocab_size=len(tokenizer()), max_sequence_length=LIMIT),
        "rollout": Rollout(samples_per_prompt=2, max_tokens=NEW),
        "rewards": ("tests.loop.rewards:first_is_even",),
    }
    data = Data(files=(_file(folder / "rows.jsonl", prompts),), max_prompt_tokens=max_prompt_tokens)
    return opened(config(folder, data, **settings | changes), folder / "run")


def _file(path: Path, prompts: list[str]) -> str:
    return write(path, [{"prompt": prompt} for prompt in prompts])


def test_prompt_that_is_too_long_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _open(tmp_path, [*[FITS] * 5, TOO_LONG])
    assert str(caught.value).replace(str(tmp_path), "") == (
        "row 5 of '/rows.jsonl'\n"
        "  got:  a prompt of 8 tokens, and up to 3 new tokens\n"
        "  need: at most 10 together\n"
        "  do:   set data.max_prompt_tokens to 7 to leave such rows out, or lower rollout.max_tokens"
    )
    with pytest.raises(DataError, match=r"do:   lower rollout.max_tokens$"):
        _open(tmp_path, [FITS], rollout=Rollout(samples_per_prompt=2, max_tokens=LIMIT))


def test_max_prompt_tokens_makes_the_check_unnecessary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.data.limits.prompts_at", None)  # no prompt is tokenized again
    run = _open(tmp_path, [*[FITS] * 5, TOO_LONG], max_prompt_tokens=LIMIT - NEW)
    assert run.task.training.counts["too_long"] == 1


def test_demonstration_that_is_too_long_is_refused_with_its_row(tmp_path: Path) -> None:
    rows = [{"prompt": "12+34=", "completion": "640"}] * 5 + [{"prompt": "12+34=", "completion": "6" * 40}]
    settings = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
    demonstrations = small_real(algorithm=sft.Config(), data=write(tmp_path / "rows.jsonl", rows), **settings)
    with pytest.raises(DataError) as caught:
        train(demonstrations, directory=tmp_path / "run")
    assert str(caught.value).replace(str(tmp_path), "") == (
        "row 5 of '/rows.jsonl'\n"
        "  got:  a prompt and an answer of 47 tokens\n"
        "  need: at most 32\n"
        "  do:   leave the row out"
    )
    write(tmp_path / "rows.jsonl", rows[:5])
    train(demonstrations, directory=tmp_path / "run")


def test_labeled_completions_that_are_too_long_with_the_prompt_of_another_row_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "1" * 20, "completion": "3", "label": True}, {"prompt": "2", "completion": "4", "label": False}]
    settings = {"rollout": None, "generator": None, "rewards": (), "evaluate": None, "max_steps": 2}
    labeled = small_real(algorithm=kto.Config(), data=write(tmp_path / "rows.jsonl", rows), **settings)
    train(labeled, directory=tmp_path / "run")
    write(tmp_path / "rows.jsonl", [rows[0], {**rows[1], "completion": "4" * 20}])
    with pytest.raises(DataError) as caught:
        train(labeled, directory=tmp_path / "other")
    assert str(caught.value).replace(str(tmp_path), "") == (
        "row 0 of '/rows.jsonl'\n"
        "  got:  a prompt of 20 tokens, and an answer of 21 tokens in row 1 of '/rows.jsonl'\n"
        "  need: at most 32 together: they may be combined to estimate a KL divergence\n"
        "  do:   leave one of them out"
    )


def test_only_prompts_that_will_be_drawn_are_checked(tmp_path: Path) -> None:
    run = _open(tmp_path, [FITS] * 9, max_steps=1, batch_size=2, num_minibatches=1)
    drawn = indices_of_draws(run.task.training.examples, config(tmp_path, "").seed, 0, 2)
    prompts = [FITS if index in drawn else TOO_LONG for index in range(9)]
    _open(tmp_path, prompts, max_steps=1, batch_size=2, num_minibatches=1)
    with pytest.raises(DataError, match="a prompt of 8 tokens"):
        _open(tmp_path, prompts, max_steps=1, batch_size=3, num_minibatches=1)
    with pytest.raises(DataError, match="a prompt of 8 tokens"):
        _open(tmp_path, prompts, max_steps=None, num_epochs=1, batch_size=2, num_minibatches=1)


def test_problems_of_an_evaluation_are_checked(tmp_path: Path) -> None:
    data = _file(tmp_path / "problems.jsonl", [FITS, TOO_LONG])
    with pytest.raises(DataError, match=r"row 1 of .*problems.jsonl'\n(.*\n)*  do:   leave the row out, or lower"):
        _open(tmp_path, [FITS], evaluate=Evaluate(data=data, max_tokens=NEW))
    run = _open(tmp_path, [FITS], evaluate=Evaluate(data=data, max_tokens=NEW - 1))
    chat = open_chat(tokenizer(), "text")
    check_problem_lengths(chat, run.task.problems, new_tokens=NEW, limit=None)
    with pytest.raises(DataError, match="row 1 of"):
        check_problem_lengths(chat, run.task.problems, new_tokens=NEW, limit=LIMIT)


def test_problems_of_an_evaluation_outside_of_a_run_are_checked(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    settings = Evaluate(data=_file(tmp_path / "problems.jsonl", [FITS, FITS, TOO_LONG]), max_tokens=NEW)
    engine = fake_generator.Config(vocab_size=len(tokenizer()), max_sequence_length=LIMIT)
    with pytest.raises(DataError, match="row 2 of .*problems.jsonl'\n  got:  a prompt of 8 tokens"):
        run_evaluation(evaluation_of_model(Model(str(tmp_path)), settings, generator=engine))


def test_smallest_limit_of_all_engines_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [Capabilities(max_sequence_length=limit) for limit in (5, None, 3)]
    assert min_limit(limits[1], limits[1]) is min_limit() is None
    assert min_limit(*limits) == 3
    engine = fake_generator.Config(vocab_size=len(tokenizer()), max_sequence_length=LIMIT + 1)
    _open(tmp_path, [TOO_LONG], generator=engine)
    build = fake_trainer.build

    def limited(*args: Any, **kwargs: Any) -> Any:
        trainer = build(*args, **kwargs)
        trainer.capabilities = Capabilities(max_sequence_length=LIMIT, outputs=trainer.capabilities.outputs)
        return trainer

    monkeypatch.setattr(fake_trainer, "build", limited)
    with pytest.raises(DataError, match="at most 10 together"):
        _open(tmp_path, [TOO_LONG], generator=engine)


TEXTS = ("a", "1", "é1", "2+3=5 and 12*3=36.\n\n", "a" * 50, "東京a\ufdfa\U0001d15f", "a\x04\x13\u0344", " \ta")


@pytest.mark.parametrize(("model", "split"), KINDS)
def test_byte_level_tokenizers_make_as_many_tokens_as_is_assumed(model: str, split: str) -> None:
    chat = open_chat(tokenizer_of(model, split), "text")
    assert chat.is_byte_level == (model in ("bpe", "bytes") and (split.startswith("byte-level") or split == "digits"))
    for text, tokens in zip(TEXTS, encode_strings(chat, TEXTS), strict=True) if chat.is_byte_level else ():
        assert 1 <= len(tokens) - len(chat.first_tokens) <= (bounded_tokens(text) or 0), text


def test_text_that_may_have_no_token_has_no_bound() -> None:
    assert [bounded_tokens(text) for text in ("", " ", "\x04", "東京", "é")] == [None] * 5


def test_removed_text_has_no_bound() -> None:
    from tokenizers import pre_tokenizers

    own = deepcopy(tokenizer_of("bytes", "byte-level"))
    assert is_byte_level(own)
    removed = pre_tokenizers.Split("a", "removed")
    own.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([removed, pre_tokenizers.ByteLevel()])
    assert not is_byte_level(own)


def test_only_prompts_that_may_be_too_long_are_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[int] = []

    def count(chat: Any, data: Any, indices: list[int], rows: Any) -> list[Any]:
        tokenized.extend(indices)
        return prompts_at(chat, data, indices, rows)

    monkeypatch.setattr("purerl.data.limits.prompts_at", count)
    file = _file(tmp_path / "rows.jsonl", ["a1", "1" * 40, "é", "a 1"])
    data, chat = read_examples([file], "prompts"), open_chat(tokenizer_of("bytes", "byte-level"), "text")
    check_lengths(chat, data, data.indices, new_tokens=3, limit=60, do="")
    assert tokenized == [1, 2]
    with pytest.raises(DataError, match="row 1 of"):
        check_lengths(chat, data, data.indices, new_tokens=3, limit=20, do="")
