"""Data sets in whole runs: chat messages, mixtures, prompts that are too long or held out, and what is refused when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import dpo, sft
from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.check import check
from purerl.config.schema import Data, Evaluate, Rollout, RunConfig
from purerl.data.examples import rows_at
from purerl.errors import ConfigError, InputError, RewardError, RunDirectoryError
from purerl.loop import open as opening
from purerl.loop.open import open_run
from purerl.loop.run import Run
from purerl.loop.train import Summary, train
from purerl.protocols import Model
from purerl.store.directory import claim
from purerl.store.rollouts import read_rollouts
from tests.data.made import CHANGING_PREFIX, CHATML, HEADERS, assistant, system, tokenizer, user, write

from .small import fake

ENDS = Evaluate(every=100, max_tokens=2)
NOTHING = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}


def _model(folder: Path, template: str | None = CHATML, **settings: Any) -> str:
    made = tokenizer(template, **settings)
    made.save_pretrained(folder / "model")
    return str(folder / "model")


def _config(folder: Path, data: Data | str, **changes: Any) -> RunConfig:
    """A few steps on `data`, with the tokenizer of these tests and a bigram table for a model."""
    size = len(tokenizer())
    settings: dict[str, Any] = {
        "prepare_data": None,
        "model": Model(str(folder / "model")),
        "trainer": fake_trainer.Config(vocabulary=size),
        "generator": fake_generator.Config(vocabulary=size),
        "rollout": Rollout(samples_per_prompt=4, max_tokens=3),
        "rewards": ("tests.loop.test_data:with_all_columns",),
        "evaluate": None,
        "data": data,
    }
    return fake(**settings | changes)


def with_all_columns(completion: str, example: Mapping[str, Any]) -> float:
    """How a file's reward reads its own columns, as they are in the file."""
    assert example["prompt"][0]["role"] == "user"
    assert example["extra_info"]["index"] is not None
    return float(completion[:1] < example["reward_model"]["ground_truth"])


def _verl(count: int, length: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "made",
            "prompt": [user(f"{k}" * length)],
            "reward_model": {"style": "rule", "ground_truth": "Z"},
            "extra_info": {"index": k},
        }
        for k in range(count)
    ]


def _opened(config: RunConfig, folder: Path) -> Run:
    check(config)
    return open_run(config, claim(folder / "run", config, fresh=True), {})


# --- what goes through -------------------------------------------------------------------------------------------


def test_verls_files_are_sampled_judged_and_evaluated_through_the_chat_template(tmp_path: Path) -> None:
    _model(tmp_path)
    problems = write(tmp_path / "problems.jsonl", _verl(2))
    settings = Data(
        files=(write(tmp_path / "rows.parquet", _verl(9)),),
        system_prompt="be",
        chat_template_kwargs={"enable_thinking": False},
    )
    config = _config(tmp_path, settings, evaluate=evolve(ENDS, data=problems))
    summary = train(config, directory=tmp_path / "run")
    assert summary.after["eval/valid_fraction"] == 1
    made = tokenizer()
    for row in read_rollouts(summary.directory / "rollouts", 2):
        assert row["prompt"] == (
            f"<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n{row['example']}<|im_end|>\n"
            "<|im_start|>assistant\n<think></think>"
        )
        assert made.decode([t for t, a in zip(row["tokens"], row["action"], strict=True) if not a]) == row["prompt"]


def test_a_completion_ends_where_the_template_ends_a_turn(tmp_path: Path) -> None:
    _model(tmp_path, HEADERS)
    run = _opened(_config(tmp_path, write(tmp_path / "rows.parquet", _verl(9))), tmp_path)
    assert run.tokenizer.convert_ids_to_tokens(run.stop_tokens) == ["<|eot|>", "<eos>"]


def test_a_completion_ends_where_the_model_says(tmp_path: Path) -> None:
    """A tokenizer without an end token does, where the model has one; and every token that it has ends a rollout."""
    made = tokenizer(None, eos=None)
    ends = made.convert_tokens_to_ids([*"abcdefghi"])
    (Path(_model(tmp_path, None, eos=None)) / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    data = write(tmp_path / "rows.jsonl", [{"prompt": f"{k}"} for k in range(9)])
    config = _config(
        tmp_path,
        data,
        rewards=("tests.loop.rewards:first_is_even",),
        rollout=Rollout(samples_per_prompt=4, max_tokens=40),
    )
    assert _opened(config, tmp_path).stop_tokens == tuple(ends)
    train(config, directory=tmp_path / "other")
    rows = [row for step in (1, 2) for row in read_rollouts(tmp_path / "other" / "rollouts", step)]
    sampled = [[t for t, a in zip(row["tokens"], row["action"], strict=True) if a] for row in rows]
    assert any(row[-1] in ends for row in sampled)
    assert not any(set(row[:-1]) & set(ends) for row in sampled)


TALKS = [{"messages": [system("s"), user(f"{k}"), assistant("yes"), user("2"), assistant("no")]} for k in range(5)]
PAIRS = [{"chosen": [user(f"{k}"), assistant("yes")], "rejected": [user(f"{k}"), assistant("no")]} for k in range(5)]
GIVEN = [{"prompt": [user(f"{k}")], "completion": [assistant("yes")]} for k in range(5)]


@pytest.mark.parametrize(
    ("algorithm", "rows"),
    [(sft.Config(), TALKS), (sft.Config(), GIVEN), (dpo.Config(), PAIRS)],
    ids=["conversations", "prompt and completion", "preferences"],
)
def test_chats_are_learned_from(algorithm: Any, rows: list, tmp_path: Path) -> None:
    _model(tmp_path)
    data = write(tmp_path / "rows.jsonl", rows)
    summary = train(_config(tmp_path, data, algorithm=algorithm, max_steps=20, **NOTHING), directory=tmp_path / "run")
    lines = [json.loads(line) for line in (summary.directory / "metrics.jsonl").read_text().splitlines()]
    losses = [value for line in lines[1:] for name, value in line.items() if name.startswith("policy/loss/")]
    assert losses[-1] < 0.8 * losses[0]


def test_files_are_mixed_by_their_weights(tmp_path: Path) -> None:
    _model(tmp_path)
    one, other = (write(tmp_path / f"{k}.parquet", _verl(20)) for k in range(2))
    config = _config(tmp_path, Data(files=(one, other), weights=(3, 1)), max_steps=5)
    summary = train(config, directory=tmp_path / "run")
    for step in range(1, 6):
        rows = read_rollouts(summary.directory / "rollouts", step)
        assert sum(row["example"] >= 20 for row in rows) == 4, (
            "4 prompts with 4 completions each: 1 of 4 is of the other"
        )


# --- what may not change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["rows/0.jsonl", "rows/1.jsonl", "problems.jsonl"])
def test_a_run_goes_on_with_the_same_data_or_not_at_all(tmp_path: Path, changed: str) -> None:
    _model(tmp_path)
    (tmp_path / "rows").mkdir()
    write(tmp_path / "rows" / "0.jsonl", _verl(9))
    problems = write(tmp_path / "problems.jsonl", _verl(2))
    config = _config(tmp_path, f"{tmp_path}/rows", evaluate=evolve(ENDS, data=problems), max_steps=1)

    def broken(completion: str, example: Any) -> float:
        raise ValueError("no")

    def on() -> Summary:
        return train(evolve(config, rewards=()), rewards=[broken], directory=tmp_path / "run")

    with pytest.raises(RewardError):
        on()
    before = (tmp_path / changed).read_bytes() if (tmp_path / changed).exists() else None
    write(tmp_path / changed, _verl(3))
    with pytest.raises(RunDirectoryError) as caught:
        on()
    assert str(caught.value) == (
        f"the data of the run in '{tmp_path}/run' have changed since it began\n"
        f"  got:  other contents: {tmp_path}/{changed}\n"
        "  need: the same files, for a run that goes on\n"
        "  do:   put them back as they were, name another directory, or throw the run away with --fresh"
    )
    (tmp_path / changed).unlink() if before is None else (tmp_path / changed).write_bytes(before)
    with pytest.raises(RewardError):
        on()


# --- what is left out --------------------------------------------------------------------------------------------


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    _model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.parquet", [*_verl(3, length=9), *_verl(7)]),), max_prompt_tokens=20)
    summary = train(_config(tmp_path, data, max_steps=2), directory=tmp_path / "run")
    counts = json.loads((summary.directory / "data.json").read_text())
    del counts["files"]
    assert counts == {"rows": 10, "too_long": 3, "examples": 7}
    assert "addition: 7 of 10 rows to learn from (3 with too long a prompt)\n" in capsys.readouterr().out
    rows = [row for step in (1, 2) for row in read_rollouts(summary.directory / "rollouts", step)]
    assert {row["example"] for row in rows} == {*range(3, 10)}


def test_what_is_held_out_is_evaluated_on_and_never_drawn(tmp_path: Path) -> None:
    _model(tmp_path)
    rows = _verl(200)
    few, many = (write(tmp_path / f"{k}.parquet", part) for k, part in enumerate((rows[:150], rows[::-1])))

    def problems(path: str) -> tuple[set[int], set[int]]:
        run = _opened(_config(tmp_path, Data(files=(path,), validation_fraction=0.2), evaluate=ENDS), tmp_path)
        sides = [rows_at(side, side.indices) for side in (run.data.examples, run.data.problems["held_out"])]
        learned, out = ({row["extra_info"]["index"] for row in side} for side in sides)
        assert run.data.counts["held_out"] == run.data.counts["problems"] == len(out)
        return learned, out

    (learned, out), (learned_of_more, out_of_more) = problems(few), problems(many)
    assert learned | out == {*range(150)}
    assert learned_of_more | out_of_more == {*range(200)}
    assert not learned & out
    assert not learned_of_more & out_of_more
    assert out == out_of_more & {*range(150)}, "more rows in another order change nothing for those that were there"
    assert 15 <= len(out) <= 45


def test_only_the_first_problems_that_are_held_out(tmp_path: Path) -> None:
    _model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.parquet", _verl(200)),), validation_fraction=0.2)
    run = _opened(_config(tmp_path, data, evaluate=evolve(ENDS, max_examples=3)), tmp_path)
    assert run.data.counts["problems"] == 3 < run.data.counts["held_out"]


def test_demonstrations_can_be_held_out_from_too(tmp_path: Path) -> None:
    _model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.jsonl", TALKS * 3),), validation_fraction=0.5)
    changes = {
        "algorithm": sft.Config(),
        "rollout": None,
        "evaluate": ENDS,
        "rewards": ("tests.loop.test_data:any_of",),
    }
    summary = train(_config(tmp_path, data, max_steps=2, **changes), directory=tmp_path / "run")
    assert summary.after["eval/valid_fraction"] == 1


def any_of(completion: str, example: Mapping[str, Any]) -> float:
    """Any completion of a row of messages."""
    assert example["messages"]
    return 1.0


# --- what is refused, and when -----------------------------------------------------------------------------------


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""

    def load(*args: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(opening, "open_trainer", load)
    monkeypatch.setattr(opening, "_generator", load)


def _refused(config: RunConfig, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        train(config, directory=folder / "run", fresh=True)
    return str(caught.value).replace(str(folder), "")


@pytest.mark.usefixtures("no_models")
def test_a_file_that_does_not_do_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    _model(tmp_path)
    empty, none = write(tmp_path / "empty.jsonl", []), str(tmp_path / "none.parquet")
    other = write(tmp_path / "other.jsonl", [{"text": "a"}])
    pairs = write(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b"}])
    assert _refused(_config(tmp_path, empty), tmp_path).startswith("data set '/empty.jsonl'\n  got:  no rows")
    assert _refused(_config(tmp_path, none), tmp_path).startswith("data set '/none.parquet'\n  got:  no such file")
    assert _refused(_config(tmp_path, other), tmp_path).startswith("data set '/other.jsonl' has no column 'prompt'")
    config = _config(tmp_path, pairs, algorithm=dpo.Config(), **NOTHING)
    assert _refused(config, tmp_path).startswith("data set '/pairs.jsonl' has no column 'rejected'")
    good = write(tmp_path / "rows.parquet", _verl(3))
    config = _config(tmp_path, good, evaluate=evolve(ENDS, data=other))
    assert _refused(config, tmp_path).startswith("data set '/other.jsonl' has no column 'prompt'")


@pytest.mark.usefixtures("no_models")
def test_settings_of_chats_without_effect_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    _model(tmp_path)
    texts = write(tmp_path / "texts.jsonl", [{"prompt": "a"}])
    own = write(tmp_path / "own.jsonl", [{"prompt": [system("s"), user("a")]}])
    for name, value in (("system_prompt", "be"), ("chat_template_kwargs", {"enable_thinking": False})):
        assert _refused(_config(tmp_path, Data(files=(texts,), **{name: value})), tmp_path) == (
            f"data.{name} has no effect\n"
            "  got:  plain-text prompts\n"
            "  need: chat messages\n"
            f"  do:   remove {name}, or write the prompts as chat messages"
        )
    assert _refused(_config(tmp_path, Data(files=(own,), system_prompt="be")), tmp_path) == (
        "data.system_prompt has no effect\n"
        "  got:  messages that all begin with a system prompt of their own\n"
        "  do:   leave data.system_prompt out"
    )
    config = _config(tmp_path, Data(files=(own,), chat_template_kwargs={"enable_thinkin": False}))
    assert _refused(config, tmp_path).startswith("data.chat_template_kwargs.enable_thinkin has no effect\n")


@pytest.mark.usefixtures("no_models")
def test_a_tokenizer_that_does_not_do_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    chats = write(tmp_path / "rows.parquet", _verl(3))
    texts = write(tmp_path / "texts.jsonl", [{"prompt": "a", "completion": "b"}])
    assert _refused(_config(tmp_path, chats), tmp_path).startswith(
        "no tokenizer can be loaded from the hub's repository"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}')
    assert _refused(_config(tmp_path, chats), tmp_path) == (
        "no tokenizer can be loaded from the directory '/model'\n"
        "  got:  no vocabulary: tokenizer.json is missing\n"
        "  need: files as transformers' save_pretrained writes them\n"
        "  do:   check model.path; without a network, name a local directory"
    )
    _model(tmp_path, None)
    assert _refused(_config(tmp_path, chats), tmp_path).startswith("the tokenizer of '/model' has no chat template\n")
    _model(tmp_path, None, eos=None)
    assert _refused(_config(tmp_path, texts), tmp_path) == (
        "the tokenizer of '/model' has no end token\n"
        "  need: one that ends a completion: without it, each goes on to its limit, and none learns to end\n"
        "  do:   set eos_token in its tokenizer_config.json, or rollout.stop_strings and evaluate.stop_strings to "
        "texts that end one"
    )
    assert _refused(_config(tmp_path, texts, algorithm=sft.Config(), **NOTHING), tmp_path) == (
        "the tokenizer of '/model' has no end token\n"
        "  need: one that ends a completion: without it, each goes on to its limit, and none learns to end\n"
        "  do:   set eos_token in its tokenizer_config.json"
    )
    # A text that ends completions does instead, and only then a model is loaded.
    stopped = _config(tmp_path, texts, rollout=Rollout(samples_per_prompt=4, max_tokens=3, stop_strings=("b",)))
    with pytest.raises(AssertionError, match="a model is loaded"):
        train(stopped, directory=tmp_path / "run", fresh=True)


@pytest.mark.usefixtures("no_models")
def test_what_is_wrong_with_every_row_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    _model(tmp_path, CHANGING_PREFIX)
    config = _config(tmp_path, write(tmp_path / "talks.jsonl", TALKS), algorithm=sft.Config(), **NOTHING)
    assert _refused(config, tmp_path).startswith("row 0 of '/talks.jsonl': the chat template changes earlier turns")


@pytest.mark.usefixtures("no_models")
def test_data_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    _model(tmp_path)
    one, other = (write(tmp_path / f"{k}.parquet", _verl(3, length=9**k)) for k in range(2))
    assert _refused(_config(tmp_path, Data(files=(one,), max_prompt_tokens=5)), tmp_path) == (
        "data set '/0.parquet'\n"
        "  got:  nothing but prompts of more than 5 tokens\n"
        "  need: at least one other\n"
        "  do:   raise data.max_prompt_tokens"
    )
    config = _config(tmp_path, Data(files=(one, other), weights=(1, 1), max_prompt_tokens=20))
    assert _refused(config, tmp_path).startswith("data set '/1.parquet'\n  got:  nothing but prompts of more than 20")
    config = _config(tmp_path, Data(files=(one,), validation_fraction=0.99), evaluate=ENDS)
    assert _refused(config, tmp_path).startswith("data set '/0.parquet'\n  got:  nothing but prompts that are held out")
    assert _refused(_config(tmp_path, Data(files=(one,), validation_fraction=0.001), evaluate=ENDS), tmp_path) == (
        "data.validation_fraction\n  got:  none of 3 rows\n  need: at least one\n  do:   raise it"
    )


def test_an_evaluation_has_problems_from_one_place() -> None:
    base = fake()
    without = evolve(base.evaluate, data={})
    for config, message in (
        (
            evolve(base, evaluate=without),
            (
                "evaluate.data is missing\n"
                "  need: problems to evaluate on\n"
                "  do:   set it, or data.validation_fraction to a share of the data"
            ),
        ),
        (
            evolve(base, data=evolve(base.data, validation_fraction=0.1)),
            (
                "data.validation_fraction has no effect\n"
                "  got:  0.1\n"
                "  need: an evaluation without data of its own\n"
                "  do:   leave data.validation_fraction or evaluate.data out"
            ),
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            check(config)
        assert str(caught.value) == message
    check(evolve(base, evaluate=without, data=evolve(base.data, validation_fraction=0.1)))
