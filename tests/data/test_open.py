"""Opening the data of a run: stop tokens, the validation set, and what is refused before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from purerl.algos import dpo, sft
from purerl.config.schema import RunConfig
from purerl.data.examples import rows_at
from purerl.data.settings import Data
from purerl.errors import InputError
from purerl.loop.train import train
from purerl.opening import engines
from purerl.rollouts.settings import Rollout
from tests.loop.runs import opened

from .made import CHANGING_PREFIX, HEADERS, system, tokenizer, user, write
from .runs import CONVERSATIONS, EVALUATE, OFFLINE, config, save_model, verl_rows

# --- stop tokens -------------------------------------------------------------------------------------------------


def test_stop_tokens_are_those_of_the_chat_template_and_of_the_tokenizer(tmp_path: Path) -> None:
    save_model(tmp_path, HEADERS)
    run = opened(config(tmp_path, write(tmp_path / "rows.parquet", verl_rows(9))), tmp_path / "run")
    chat = run.task.chat
    assert chat.tokenizer.convert_ids_to_tokens(chat.stop_tokens) == ["<|eot|>", "<eos>"]


def test_stop_tokens_of_the_model_replace_a_missing_end_token(tmp_path: Path) -> None:
    ends = tokenizer(None, eos=None).convert_tokens_to_ids([*"abcdefghi"])
    model = save_model(tmp_path, None, eos=None)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    data = write(tmp_path / "rows.jsonl", [{"prompt": f"{k}"} for k in range(9)])
    settings = config(tmp_path, data, rewards=("tests.loop.rewards:first_is_even",))
    assert opened(settings, tmp_path / "run").task.chat.stop_tokens == tuple(ends)


# --- the validation set ------------------------------------------------------------------------------------------


def test_validation_set_depends_only_on_the_prompts(tmp_path: Path) -> None:
    save_model(tmp_path)
    rows = verl_rows(200)
    first_rows, all_rows = (write(tmp_path / f"{k}.parquet", part) for k, part in enumerate((rows[:150], rows[::-1])))

    def split(path: str) -> tuple[set[int], set[int]]:
        """The rows of the training set, and those of the validation set."""
        settings = config(tmp_path, Data(files=(path,), validation_fraction=0.2), evaluate=EVALUATE)
        task = opened(settings, tmp_path / "run").task
        parts = [rows_at(part, part.indices) for part in (task.training.examples, task.problems["validation"])]
        training, validation = ({row["extra_info"]["index"] for row in part} for part in parts)
        counts = task.training.counts
        assert counts["validation"] == counts["problems"] == len(validation)
        return training, validation

    (training, validation), (more_training, more_validation) = split(first_rows), split(all_rows)
    assert training | validation == {*range(150)}
    assert more_training | more_validation == {*range(200)}
    assert not training & validation
    assert not more_training & more_validation
    assert validation == more_validation & {*range(150)}, "other rows and another order do not move a row"
    assert 15 <= len(validation) <= 45


def test_max_examples_limits_the_problems_of_the_validation_set(tmp_path: Path) -> None:
    save_model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.parquet", verl_rows(200)),), validation_fraction=0.2)
    run = opened(config(tmp_path, data, evaluate=evolve(EVALUATE, max_examples=3)), tmp_path / "run")
    counts = run.task.training.counts
    assert counts["problems"] == 3 < counts["validation"]


# --- refused before a model is loaded ----------------------------------------------------------------------------


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""

    def load(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(engines, "open_trainer", load)
    monkeypatch.setattr(engines, "open_generator", load)


def _refusal(settings: RunConfig, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        train(settings, directory=folder / "run", fresh=True)
    return str(caught.value).replace(str(folder), "")


@pytest.mark.usefixtures("no_models")
def test_file_without_rows_or_columns_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    empty, missing = write(tmp_path / "empty.jsonl", []), str(tmp_path / "missing.parquet")
    text = write(tmp_path / "text.jsonl", [{"text": "a"}])
    pairs = write(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b"}])
    assert _refusal(config(tmp_path, empty), tmp_path).startswith("data set '/empty.jsonl'\n  got:  no rows")
    assert _refusal(config(tmp_path, missing), tmp_path).startswith("data set '/missing.parquet'\n  got:  no such file")
    assert _refusal(config(tmp_path, text), tmp_path).startswith("data set '/text.jsonl' has no column 'prompt'")
    preferences = config(tmp_path, pairs, algorithm=dpo.Config(), **OFFLINE)
    assert _refusal(preferences, tmp_path).startswith("data set '/pairs.jsonl' has no column 'rejected'")
    rows = write(tmp_path / "rows.parquet", verl_rows(3))
    evaluated = config(tmp_path, rows, evaluate=evolve(EVALUATE, data=text))
    assert _refusal(evaluated, tmp_path).startswith("data set '/text.jsonl' has no column 'prompt'")


@pytest.mark.usefixtures("no_models")
def test_chat_settings_without_effect_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    text = write(tmp_path / "text.jsonl", [{"prompt": "a"}])
    with_system = write(tmp_path / "system.jsonl", [{"prompt": [system("s"), user("a")]}])
    for name, value in (("system_prompt", "be"), ("chat_template_kwargs", {"enable_thinking": False})):
        assert _refusal(config(tmp_path, Data(files=(text,), **{name: value})), tmp_path) == (
            f"data.{name} has no effect\n"
            "  got:  plain-text prompts\n"
            "  need: chat messages\n"
            f"  do:   remove {name}, or write the prompts as chat messages"
        )
    assert _refusal(config(tmp_path, Data(files=(with_system,), system_prompt="be")), tmp_path) == (
        "data.system_prompt has no effect\n"
        "  got:  messages that all start with a system prompt\n"
        "  do:   leave data.system_prompt out"
    )
    misspelled = Data(files=(with_system,), chat_template_kwargs={"enable_thinkin": False})
    message = _refusal(config(tmp_path, misspelled), tmp_path)
    assert message.startswith("data.chat_template_kwargs.enable_thinkin has no effect\n")


@pytest.mark.usefixtures("no_models")
def test_tokenizer_that_is_missing_or_has_no_chat_template_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, write(tmp_path / "rows.parquet", verl_rows(3)))
    assert _refusal(settings, tmp_path).startswith("the model '/model' is missing\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}')
    assert _refusal(settings, tmp_path) == (
        "no tokenizer can be loaded from the directory '/model'\n"
        "  got:  no vocabulary: tokenizer.json is missing\n"
        "  need: files as written by transformers' save_pretrained\n"
        "  do:   check model.path; without a network, name a local directory"
    )
    save_model(tmp_path, None)
    assert _refusal(settings, tmp_path).startswith("the tokenizer of '/model' has no chat template\n")


@pytest.mark.usefixtures("no_models")
def test_tokenizer_without_end_token_needs_stop_strings(tmp_path: Path) -> None:
    text = write(tmp_path / "text.jsonl", [{"prompt": "a", "completion": "b"}])
    save_model(tmp_path, None, eos=None)
    message = (
        "the tokenizer of '/model' has no end token\n"
        "  need: one that ends a completion: otherwise each has the maximum length, and the model cannot learn to end\n"
        "  do:   set eos_token in its tokenizer_config.json"
    )
    remedy = ", or set rollout.stop_strings and evaluate.stop_strings"
    assert _refusal(config(tmp_path, text), tmp_path) == message + remedy
    assert _refusal(config(tmp_path, text, algorithm=sft.Config(), **OFFLINE), tmp_path) == message
    stopped = config(tmp_path, text, rollout=Rollout(samples_per_prompt=4, max_tokens=3, stop_strings=("b",)))
    with pytest.raises(AssertionError, match="a model is loaded"):
        train(stopped, directory=tmp_path / "run", fresh=True)


@pytest.mark.usefixtures("no_models")
def test_problem_of_all_rows_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, CHANGING_PREFIX)
    data = write(tmp_path / "conversations.jsonl", CONVERSATIONS)
    message = _refusal(config(tmp_path, data, algorithm=sft.Config(), **OFFLINE), tmp_path)
    assert message.startswith("row 0 of '/conversations.jsonl': the chat template changes earlier turns")


@pytest.mark.usefixtures("no_models")
def test_data_without_remaining_rows_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    short, long = (write(tmp_path / f"{k}.parquet", verl_rows(3, length=9**k)) for k in range(2))
    assert _refusal(config(tmp_path, Data(files=(short,), max_prompt_tokens=5)), tmp_path) == (
        "data set '/0.parquet'\n"
        "  got:  only prompts of more than 5 tokens\n"
        "  need: at least one other\n"
        "  do:   raise data.max_prompt_tokens"
    )
    mixture = config(tmp_path, Data(files=(short, long), weights=(1, 1), max_prompt_tokens=20))
    assert _refusal(mixture, tmp_path).startswith("data set '/1.parquet'\n  got:  only prompts of more than 20 tokens")
    settings = config(tmp_path, Data(files=(short,), validation_fraction=0.99), evaluate=EVALUATE)
    assert _refusal(settings, tmp_path).startswith("data set '/0.parquet'\n  got:  only prompts of the validation set")
    settings = config(tmp_path, Data(files=(short,), validation_fraction=0.001), evaluate=EVALUATE)
    assert _refusal(settings, tmp_path) == (
        "data.validation_fraction\n  got:  none of 3 rows in the validation set\n  need: at least one\n  do:   raise it"
    )
