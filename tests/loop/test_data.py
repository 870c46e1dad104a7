"""Data sets in whole runs: chat messages, mixtures, the validation set, and files that change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import a_star_po, dpo, kto, sft
from purerl.data.settings import Data
from purerl.errors import DataError, RewardError, RunDirectoryError
from purerl.loop.train import Summary, train
from purerl.rollouts.settings import Rollout
from purerl.store.rollouts import read_rollouts
from tests.data.made import tokenizer, user, write
from tests.data.runs import (
    CONVERSATIONS,
    DEMONSTRATIONS,
    EVALUATE,
    LABELED,
    OFFLINE,
    PAIRS,
    config,
    save_model,
    verl_rows,
)

from .runs import losses, records


def _rollouts(summary: Summary, steps: range) -> list[dict[str, Any]]:
    return [row for step in steps for row in read_rollouts(summary.directory / "rollouts", step)]


def test_files_of_verl_are_sampled_rewarded_and_evaluated_with_the_chat_template(tmp_path: Path) -> None:
    save_model(tmp_path)
    problems, rows = write(tmp_path / "problems.jsonl", verl_rows(2)), write(tmp_path / "rows.parquet", verl_rows(9))
    data = Data(files=(rows,), system_prompt="be", chat_template_kwargs={"enable_thinking": False})
    settings = config(tmp_path, data, evaluate=evolve(EVALUATE, data=problems))
    summary = train(settings, directory=tmp_path / "run")
    assert summary.after["eval/valid_fraction"] == 1
    for row in _rollouts(summary, range(2, 3)):
        assert row["prompt"] == (
            f"<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n{row['example']}<|im_end|>\n"
            "<|im_start|>assistant\n<think></think>"
        )
        prompt = [token for token, action in zip(row["tokens"], row["action"], strict=True) if not action]
        assert tokenizer().decode(prompt) == row["prompt"]


def test_completion_ends_at_every_stop_token_of_the_model(tmp_path: Path) -> None:
    ends = tokenizer(None, eos=None).convert_tokens_to_ids([*"abcdefghi"])
    model = save_model(tmp_path, None, eos=None)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    data = write(tmp_path / "rows.jsonl", [{"prompt": f"{k}"} for k in range(9)])
    rollout = Rollout(samples_per_prompt=4, max_tokens=40)
    settings = config(tmp_path, data, rewards=("tests.loop.rewards:first_is_even",), rollout=rollout)
    rows = _rollouts(train(settings, directory=tmp_path / "run"), range(1, 3))
    sampled = [[t for t, action in zip(row["tokens"], row["action"], strict=True) if action] for row in rows]
    assert any(tokens[-1] in ends for tokens in sampled)
    assert not any(set(tokens[:-1]) & set(ends) for tokens in sampled)


@pytest.mark.parametrize(
    ("algorithm", "rows"),
    [
        (sft.Config(), CONVERSATIONS),
        (sft.Config(), DEMONSTRATIONS),
        (dpo.Config(), PAIRS),
        (kto.Config(beta=1.0), LABELED),
    ],
    ids=["conversations", "prompt and completion", "preferences", "labels"],
)
def test_training_on_chats_lowers_the_loss(algorithm: Any, rows: list, tmp_path: Path) -> None:
    save_model(tmp_path)
    settings = config(tmp_path, write(tmp_path / "rows.jsonl", rows), algorithm=algorithm, max_steps=20, **OFFLINE)
    values = losses(records(train(settings, directory=tmp_path / "run")))
    assert values[-1] < 0.8 * values[0]


def test_a_single_labeled_completion_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    path = write(tmp_path / "rows.jsonl", LABELED[:1])
    with pytest.raises(DataError) as caught:
        train(config(tmp_path, path, algorithm=kto.Config(), **OFFLINE), directory=tmp_path / "run")
    assert str(caught.value) == (
        f"labeled completions of {path}\n"
        "  got:  1 row\n"
        "  need: at least 2: the completion of another row estimates a KL divergence"
    )


def test_files_are_mixed_by_their_weights(tmp_path: Path) -> None:
    save_model(tmp_path)
    files = tuple(write(tmp_path / f"{k}.parquet", verl_rows(20)) for k in range(2))
    summary = train(config(tmp_path, Data(files=files, weights=(3, 1)), max_steps=5), directory=tmp_path / "run")
    for step in range(1, 6):
        rows = read_rollouts(summary.directory / "rollouts", step)
        assert sum(row["example"] >= 20 for row in rows) == 4, "1 of 4 prompts, each with 4 completions"


@pytest.mark.parametrize("changed", ["rows/0.jsonl", "rows/1.jsonl", "problems.jsonl"])
def test_run_resumes_only_with_the_same_data(tmp_path: Path, changed: str) -> None:
    save_model(tmp_path)
    (tmp_path / "rows").mkdir()
    write(tmp_path / "rows" / "0.jsonl", verl_rows(9))
    problems, path = write(tmp_path / "problems.jsonl", verl_rows(2)), tmp_path / changed
    settings = config(tmp_path, f"{tmp_path}/rows", evaluate=evolve(EVALUATE, data=problems), max_steps=1, rewards=())

    def broken(completion: str, example: Any) -> float:
        raise ValueError("no")

    def resume() -> Summary:
        return train(settings, rewards=[broken], directory=tmp_path / "run")

    with pytest.raises(RewardError):
        resume()
    before = path.read_bytes() if path.exists() else None
    write(path, verl_rows(3))
    with pytest.raises(RunDirectoryError) as caught:
        resume()
    assert str(caught.value) == (
        f"the data of the run in '{tmp_path}/run' have changed since it started\n"
        f"  got:  other content: {path}\n"
        "  need: the same files, to resume the run\n"
        "  do:   restore them, name another directory, or discard the run with --fresh"
    )
    path.unlink() if before is None else path.write_bytes(before)
    with pytest.raises(RewardError):
        resume()


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    save_model(tmp_path)
    rows = write(tmp_path / "rows.parquet", [*verl_rows(3, length=9), *verl_rows(7)])
    settings = config(tmp_path, Data(files=(rows,), max_prompt_tokens=20), max_steps=2)
    summary = train(settings, directory=tmp_path / "run")
    counts = json.loads((summary.directory / "data.json").read_text())
    del counts["files"], counts["models"]
    assert counts.pop("learns_from_rewards")
    assert counts.pop("mismatch_level") < 1e-6 < counts.pop("mismatch_limit")
    assert counts == {"max_steps": 2, "rows": 10, "too_long": 3, "examples": 7, "accuracy": None, "preset": None}
    note = "7 of 10 rows are used for training (3 with a prompt that is too long)\n"
    assert f"addition: {note}" in capsys.readouterr().out
    assert {row["example"] for row in _rollouts(summary, range(1, 3))} == {*range(3, 10)}


def test_demonstrations_can_have_a_validation_set(tmp_path: Path) -> None:
    save_model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.jsonl", CONVERSATIONS * 3),), validation_fraction=0.5)
    changes = {"algorithm": sft.Config(), "rollout": None, "rewards": ("tests.loop.rewards:check_messages",)}
    settings = config(tmp_path, data, max_steps=2, evaluate=EVALUATE, **changes)
    assert train(settings, directory=tmp_path / "run").after["eval/valid_fraction"] == 1


@pytest.mark.parametrize("is_text", [True, False])
def test_plain_text_prompts_of_a_chat_model_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture, is_text: bool
) -> None:
    save_model(tmp_path)
    demonstrations = [{"prompt": "1+1=", "completion": "2"}] * 4 if is_text else CONVERSATIONS
    path = write(tmp_path / "rows.jsonl", demonstrations)
    train(config(tmp_path, path, max_steps=1, algorithm=sft.Config(), **OFFLINE), directory=tmp_path / "run")
    note = (
        "addition: the prompts are plain text, so the chat template of the model is not applied; write the prompts as"
    )
    assert (note in capsys.readouterr().out) == is_text


def test_special_tokens_in_prompts_are_escaped_in_a_run(tmp_path: Path) -> None:
    save_model(tmp_path)
    rows = [{"prompt": [user("1<|im_end|>2")]}] * 4
    lengths = []
    for special_tokens in ("keep", "escape"):
        data = Data(files=(write(tmp_path / "rows.jsonl", rows),), special_tokens=special_tokens)
        rewards = ("tests.loop.rewards:starts_with_a_digit",)
        summary = train(config(tmp_path, data, max_steps=1, rewards=rewards), directory=tmp_path / special_tokens)
        row = _rollouts(summary, range(1, 2))[0]
        lengths.append(len(row["tokens"]) - sum(row["action"]))
        assert row["prompt"].startswith("<|im_start|>user\n1<|im_end|>2<|im_end|>")
    assert lengths[1] == lengths[0] + len("<|im_end|>") - 1


# --- values of prompts -------------------------------------------------------------------------------------------


_NEED_VALUES = (
    "  need: a number in every row\n"
    "  do:   estimate it with the reference model: `purerl eval --json`, then `purerl data values`"
)


def _with_values(*values: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{k}", "optimal_value": value} for k, value in enumerate(values)]


def test_rows_have_the_optimal_value_of_their_prompt(tmp_path: Path) -> None:
    """One completion per prompt is enough, and several optimizer steps take the rows of a step."""
    save_model(tmp_path, None)
    data = write(tmp_path / "rows.jsonl", _with_values(*(k / 8 for k in range(9))))
    rollout = Rollout(samples_per_prompt=1, max_tokens=4)
    settings = config(
        tmp_path, data, algorithm=a_star_po.Config(), rewards=("tests.loop.rewards:first_is_even",), rollout=rollout
    )
    rows = _rollouts(train(settings, directory=tmp_path / "run"), range(1, 3))
    assert {row["optimal_value"] for row in rows} >= {row["example"] / 8 for row in rows}
    for row in rows:
        assert row["optimal_value"] == row["example"] / 8
        advantages = {a for a, is_counted in zip(row["advantage"], row["mask"], strict=True) if is_counted}
        assert advantages == {sum(row["reward"]) - row["optimal_value"]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "1"}, {"prompt": "2"}], f"  got:  no such column\n{_NEED_VALUES}"),
        (_with_values("high", "low"), f"  got:  type string\n{_NEED_VALUES}"),
        (_with_values(0.5, None), "  got:  None in row 1\n  need: a finite number in every row\n  do:   remove"),
    ],
)
def test_data_without_values_of_prompts_are_refused_before_a_model_is_loaded(
    rows: list, message: str, tmp_path: Path
) -> None:
    save_model(tmp_path, None)
    data = write(tmp_path / "rows.jsonl", rows)
    settings = config(tmp_path, data, algorithm=a_star_po.Config(), rewards=("tests.loop.rewards:first_is_even",))
    with pytest.raises(DataError) as error:
        train(settings, directory=tmp_path / "run")
    assert str(error.value).startswith(f"column 'optimal_value' of {data!r}\n{message}")
