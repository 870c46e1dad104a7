"""Validation: the loss on held-out examples is that of the whole set, repeatable, and without effect on training."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.algos import dpo, sft, spin
from purerl.backends.weights import TensorWeights
from purerl.batch import collate
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import from_dict, to_dict
from purerl.data.examples import rows_at, tokenized_at
from purerl.data.settings import Data
from purerl.errors import ConfigError, DataError, RunDirectoryError
from purerl.evaluation.settings import Evaluate, Validation
from purerl.loop.state import LoopState
from purerl.loop.train import train
from purerl.runs.evaluation import evaluation_of_run
from purerl.settings import Model
from purerl_cli.output import format_summary
from tests.data.made import write

from .runs import opened, records, train_until, without_times
from .small import fake, small_real

PREPARED = "{run}/prepared/held_out.parquet"
NO_SAMPLING: dict[str, Any] = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
PAIRS = [{"prompt": f"{k}+{k}=", "chosen": f"{2 * k}", "rejected": f"{2 * k + 1}" * (1 + k % 3)} for k in range(10, 35)]


def _demonstrations(**changes: Any) -> RunConfig:
    """SFT on sums, with a validation on 10 others."""
    validation = Validation(data=PREPARED, every=2, max_examples=10)
    return fake(**{"algorithm": sft.Config(), "validation": validation} | NO_SAMPLING | changes)


def _pairs(folder: Path, **changes: Any) -> RunConfig:
    """DPO on pairs, with a validation on some of them."""
    data = Data(files=(write(folder / "pairs.jsonl", PAIRS),), validation_fraction=0.3)
    validation = Validation(every=2)
    return fake(**{"algorithm": dpo.Config(), "data": data, "validation": validation} | NO_SAMPLING | changes)


def _validation(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name.startswith("validation/")}


def _with_files(config: RunConfig, prepared: Path) -> RunConfig:
    """`config` with the model and the files in `prepared`."""
    return from_dict(RunConfig, json.loads(json.dumps(to_dict(config)).replace("{run}/prepared", str(prepared))))


def test_loss_of_demonstrations_is_the_mean_over_all_answer_tokens(prepared: Path, tmp_path: Path) -> None:
    run = opened(_with_files(_demonstrations(batch_size=4), prepared), tmp_path / "run")
    data = run.task.training.held_out
    assert len(data.indices) == 10
    total, count = 0.0, 0
    for index, example in zip(data.indices, rows_at(data, data.indices), strict=True):
        [row] = tokenized_at(run.task.chat, data, index, example)
        fields = {"tokens": row.tokens, "action": row.action, "row": 0, "group": 0, "example": 0, "temperature": 1.0}
        logp = run.engines.trainers["policy"].score(collate([fields]), ("logp",))["logp"]
        total, count = total - float(logp.sum()), count + sum(row.action)
    values = run.measures.validate(LoopState())
    assert values["validation/loss"] == pytest.approx(total / count, rel=1e-6)
    assert values["validation/perplexity"] == pytest.approx(math.exp(total / count), rel=1e-6)
    assert values.keys() == {"validation/loss", "validation/perplexity", "validation/token_accuracy"}


def test_token_accuracy_is_the_share_of_tokens_with_the_largest_logit(prepared: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    engines = {"trainer": small_real().trainer, "generator": None}
    config = evolve(_demonstrations(batch_size=4), **engines)
    run = opened(_with_files(config, prepared), tmp_path / "run")
    model, data = AutoModelForCausalLM.from_pretrained(prepared / "model"), run.task.training.held_out
    correct = []
    for index, example in zip(data.indices, rows_at(data, data.indices), strict=True):
        [row] = tokenized_at(run.task.chat, data, index, example)
        predicted = model(torch.tensor([row.tokens])).logits[0].argmax(-1).tolist()
        correct += [predicted[k - 1] == token for k, token in enumerate(row.tokens) if row.action[k]]
    assert len({*correct}) == 2, "some are correct, and some are not"
    assert run.measures.validate(LoopState())["validation/token_accuracy"] == sum(correct) / len(correct)


@pytest.mark.parametrize("kind", ["demonstrations", "pairs"])
def test_metrics_do_not_depend_on_the_batch_size(prepared: Path, tmp_path: Path, kind: str) -> None:
    values = []
    for size in (4, 3, 64):
        sizes = {"batch_size": size, "num_minibatches": 1}
        config = _demonstrations(**sizes) if kind == "demonstrations" else _pairs(tmp_path, **sizes)
        run = opened(_with_files(config, prepared), tmp_path / "run")
        weights = dict(run.engines.trainers["policy"].weights())
        moved = {
            name: weight + torch.arange(weight.numel()).reshape(weight.shape) % 7 for name, weight in weights.items()
        }
        run.engines.trainers["policy"].load_weights(TensorWeights(moved))
        values.append(run.measures.validate(LoopState()))
    assert kind == "demonstrations" or abs(values[0]["validation/margin"]) > 0.01
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert values[0] == pytest.approx(values[2], rel=1e-5)


def test_pairs_have_a_loss_an_accuracy_and_a_margin(tmp_path: Path) -> None:
    config = _pairs(tmp_path, max_steps=4, ppo_epochs=2)
    summary = train(config, directory=tmp_path / "run")
    rewards = ("validation/margin", "validation/chosen_reward", "validation/rejected_reward")
    at_the_start = {"validation/loss": pytest.approx(math.log(2)), "validation/accuracy": 0.0}
    assert summary.before == at_the_start | dict.fromkeys(rewards, 0.0)
    assert summary.after["validation/loss"] < math.log(2)
    assert summary.after["validation/accuracy"] > 0
    margin, chosen, rejected = (summary.after[name] for name in rewards)
    assert margin > 0
    assert margin == pytest.approx(chosen - rejected)
    assert [record["step"] for record in records(summary) if _validation(record)] == [0, 2, 4]
    counts = (summary.directory / "data.json").read_text()
    assert '"validation"' in counts


@pytest.mark.parametrize("kind", ["demonstrations", "pairs"])
def test_validation_changes_nothing_else_and_is_repeated_exactly(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "held_out.jsonl", PAIRS[:7])
    if kind == "demonstrations":
        config = _demonstrations()
    else:
        config = _pairs(tmp_path, data=str(tmp_path / "pairs.jsonl"), validation=Validation(data=file, every=1))
        write(tmp_path / "pairs.jsonl", PAIRS)
    train(config, directory=tmp_path / "whole")
    train_until(3, config, directory=tmp_path / "resumed")
    train(config, directory=tmp_path / "resumed")
    whole = without_times(records(tmp_path / "whole"))
    assert whole == without_times(records(tmp_path / "resumed"))
    train(evolve(config, validation=None), directory=tmp_path / "without")
    others = [{name: value for name, value in record.items() if name not in _validation(record)} for record in whole]
    assert others == without_times(records(tmp_path / "without"))
    losses = [record["validation/loss"] for record in whole if "validation/loss" in record]
    assert all(before != after for before, after in pairwise(losses))


def test_a_run_can_be_validated_and_evaluated(tmp_path: Path) -> None:
    """The problems of the evaluation are the held-out demonstrations."""
    data = Data(files=("{run}/prepared/train.parquet",), validation_fraction=0.01)
    config = fake(
        algorithm=sft.Config(),
        rollout=None,
        data=data,
        evaluate=Evaluate(every=3, max_tokens=2),
        validation=Validation(every=2),
    )
    summary = train(config, directory=tmp_path / "run")
    assert {"eval/accuracy", "validation/loss"} <= summary.before.keys() & summary.after.keys()
    steps = {
        name: [record["step"] for record in records(summary) if name in record]
        for name in ("eval/accuracy", "validation/loss")
    }
    assert steps == {"eval/accuracy": [0, 3, 4], "validation/loss": [0, 2, 4]}
    evaluation = evaluation_of_run(summary.directory, {})
    assert len(evaluation.task.problems["validation"].indices) > 3


@pytest.mark.parametrize("metric", ["eval/length", "validation/margin"])
def test_the_last_policy_is_evaluated_and_validated_whatever_stops_the_run(tmp_path: Path, metric: str) -> None:
    is_evaluation = metric == "eval/length"
    config = _pairs(
        tmp_path,
        max_steps=9,
        generator=fake().generator,
        rewards=fake().rewards,
        evaluate=Evaluate(
            data=PREPARED, every=1 if is_evaluation else 9, before_training=False, max_tokens=2, max_examples=4
        ),
        validation=Validation(every=9 if is_evaluation else 1),
        stop_when=StopWhen(metric=metric, at_least=1e-9),
    )
    summary = train(config, directory=tmp_path / "run")
    assert 0 < summary.steps < 9
    assert {"eval/length", "validation/margin"} <= summary.after.keys()
    without = evolve(config, stop_when=None, max_steps=summary.steps)
    assert train(without, directory=tmp_path / "without").after == summary.after, "they are of the last policy"


def test_unknown_metric_of_a_validation_is_refused_after_the_first_one(tmp_path: Path) -> None:
    config = _demonstrations(stop_when=StopWhen(metric="validation/los", at_least=1.0))
    with pytest.raises(ConfigError) as caught:
        train(config, directory=tmp_path / "run")
    assert str(caught.value).startswith("stop_when.metric\n  got:  validation/los\n")
    assert "did you mean 'validation/loss'?" in str(caught.value)


def test_summary_has_the_loss_before_and_after(tmp_path: Path) -> None:
    config = _demonstrations()
    summary = train(config, directory=tmp_path / "run")
    before, after = summary.before["validation/loss"], summary.after["validation/loss"]
    assert f"validation loss  {before:.3f} before, {after:.3f} after 4 steps" in format_summary(config, summary)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"validation": Validation()},
            "validation.data is missing\n  need: held-out examples\n  do:   set it, or data.v",
        ),
        (
            {"validation": None, "stop_when": StopWhen(metric="validation/loss", at_least=1.0)},
            "stop_when has no effect\n",
        ),
        (
            {"data": Data(files=("{run}/prepared/train.parquet",), validation_fraction=0.1)},
            "data.validation_fraction has no effect\n  got:  0.1\n  need: a validation without validation.data\n",
        ),
    ],
)
def test_settings_without_effect_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(_demonstrations(**changes), directory=tmp_path / "run")
    assert str(caught.value).startswith(message)


def test_validation_is_refused_where_there_is_no_held_out_loss(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="validation has no effect\n.*\n  need: an algorithm that learns from data"):
        train(fake(validation=Validation(data=PREPARED)), directory=tmp_path / "run")
    with pytest.raises(ConfigError, match="validation has no effect\n.*\n.*spin compares the policy with itself"):
        train(_pairs(tmp_path, algorithm=spin.Config()), directory=tmp_path / "run")


def test_held_out_files_are_checked_before_the_first_step(tmp_path: Path) -> None:
    prompts = write(tmp_path / "prompts.jsonl", [{"prompt": "1+1="}])
    with pytest.raises(DataError, match="completion"):
        train(_demonstrations(validation=Validation(data=prompts)), directory=tmp_path / "run")


def test_a_run_is_resumed_only_with_the_same_held_out_files(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "completion": "2"}]
    file = write(tmp_path / "held_out.jsonl", rows)
    config = _demonstrations(validation=Validation(data=file, every=2))
    train_until(2, config, directory=tmp_path / "run")
    write(tmp_path / "held_out.jsonl", rows * 2)
    with pytest.raises(RunDirectoryError, match=r"have changed since it started\n  got:  other content: .*held_out"):
        train(config, directory=tmp_path / "run")


def test_rows_that_are_too_long_for_the_model_are_refused(tmp_path: Path) -> None:
    from .small import small_real

    file = write(tmp_path / "held_out.jsonl", [{"prompt": "1" * 40, "completion": "2"}])
    settings = NO_SAMPLING | {"algorithm": sft.Config(), "validation": Validation(data=file)}
    with pytest.raises(DataError, match="row 0 of '.*held_out.jsonl'\n  got:  a prompt and an answer of 42 tokens"):
        train(small_real(**settings, model=Model("{run}/prepared/model")), directory=tmp_path / "run")
