"""The default recipe learns addition, and it learns from its rewards."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch

from purerl.batch import collate, with_fields
from purerl.loop.train import Summary, train
from purerl.recipes.addition import addition, prepare

from . import shuffled
from .controls import train_with_shuffled_rewards


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(addition(), directory=tmp_path_factory.mktemp("addition") / "run")


@pytest.mark.training
def test_rl_raises_the_accuracy_on_held_out_problems(run: Summary) -> None:
    assert run.before["eval/accuracy"] < 0.65
    assert run.after["eval/accuracy"] > 0.9


@pytest.mark.training
def test_the_exported_model_adds(run: Summary) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    problems = parquet.read_table(run.directory / "prepared" / "held_out.parquet").slice(0, 200).to_pylist()
    prompts = tokenizer([problem["prompt"] for problem in problems], return_tensors="pt")
    tokens = model.generate(**prompts, max_new_tokens=4, do_sample=False)
    answers = tokenizer.batch_decode(tokens[:, 6:], skip_special_tokens=True)
    correct = sum(answer == problem["answer"] for answer, problem in zip(answers, problems, strict=True))
    assert correct / len(problems) > 0.85


@pytest.mark.training
def test_shuffled_rewards_do_not_raise_the_accuracy(run: Summary, tmp_path: Path) -> None:
    control = train_with_shuffled_rewards(addition(max_steps=80), run, tmp_path / "run")
    records = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert control.before == run.before
    assert control.after["eval/accuracy"] < control.before["eval/accuracy"] + 0.1
    assert records[80]["eval/accuracy"] > control.before["eval/accuracy"] + 0.15


def test_shuffling_permutes_the_rewards_of_each_group() -> None:
    rows = [{"tokens": [1, 2, 3], "action": [0, 1, k % 2], "row": k, "group": -(k % 3)} for k in range(24)]
    batch = with_fields(collate(rows), reward=torch.rand(24, 3))
    result = shuffled.shuffle(batch)
    for label in (0, -1, -2):
        members = batch["group"] == label
        before, after = batch["reward"][members].sum(-1), result["reward"][members].sum(-1)
        torch.testing.assert_close(before.sort().values, after.sort().values)
        assert not torch.equal(before, after)


def test_held_out_problems_are_not_in_the_training_set(tmp_path: Path) -> None:
    prepare(tmp_path, seed=5)
    train_set, held_out = (
        parquet.read_table(tmp_path / f"{name}.parquet")["prompt"].to_pylist() for name in ("train", "held_out")
    )
    sums = {frozenset(prompt.rstrip("=").split("+")) for prompt in train_set}
    assert not any(frozenset(prompt.rstrip("=").split("+")) in sums for prompt in held_out)
    assert len(train_set) + len(held_out) == 10_000
    assert 900 < len(held_out) < 1100


def test_the_seed_determines_which_problems_are_held_out(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        prepare(tmp_path / name, seed)
    a, b, c = ((tmp_path / name / "held_out.parquet").read_bytes() for name in "abc")
    assert a == b != c
