"""`preference_classifier`: a small model learns which answers are preferred, and transformers loads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.errors import DataError
from purerl.loop.train import Summary
from purerl.recipes import resolve
from purerl.runs.export import export_model
from tests.data.made import HEADERS, assistant, user, write

from .made import records, train, write_model

PAIRS = [
    {"prompt": [user(f"{k}?")], "chosen": [assistant(f"{k} Yes")], "rejected": [assistant(f"{k} No")], "margin": k / 50}
    for k in range(10, 60)
]
TEXTS = [{"prompt": f"{k}?", "chosen": f" {k} Yes", "rejected": f" {k} No"} for k in range(10, 60)]
SETTINGS = (
    *("batch_size=8", "trainer.lr=3e-3", "trainer.mixed_precision=off", "trainer.recompute=none", "num_threads=1"),
    *("data.validation_fraction=0.2", "checkpoint.every=100"),
)


def learn(folder: Path, *settings: str, pairs: Sequence[Any] = PAIRS, template: str = "") -> Summary:
    model = write_model(folder / "model", *([template] if template else []))
    data = write(folder / "pairs.jsonl", pairs)
    return train("preference_classifier", folder / "run", f"model={model}", f"data={data}", *SETTINGS, *settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return learn(tmp_path_factory.mktemp("reward_model"), "max_steps=16")


def scores(model: Path, conversations: Sequence[Any]) -> torch.Tensor:
    """The scores that transformers computes for all `conversations` in one batch, with its own padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    texts = [
        each if isinstance(each, str) else tokenizer.apply_chat_template(each, tokenize=False) for each in conversations
    ]
    options = {"add_special_tokens": isinstance(conversations[0], str)}
    inputs = tokenizer(texts, padding=True, return_tensors="pt", **options)
    with torch.inference_mode():
        return network(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]


def margins(model: Path, pairs: Sequence[Any], ending: str = "") -> torch.Tensor:
    sides = [[pair["prompt"] + pair[side] for pair in pairs] for side in ("chosen", "rejected")]
    sides = [[each + ending if ending else each for each in side] for side in sides]
    chosen, rejected = (scores(model, side) for side in sides)
    return chosen - rejected


def test_it_learns_to_tell_answers_apart(run: Summary) -> None:
    before, first, *_, last = records(run.directory)
    assert abs(before["validation/loss"] - math.log(2)) < 0.1
    assert abs(first["policy/loss/preference"] - math.log(2)) < 0.1
    assert last["policy/accuracy"] == 1
    assert run.after["validation/accuracy"] == 1
    assert run.after["validation/margin"] > 2
    assert abs(last["policy/score"]) < last["policy/margin"]  # centered


def test_transformers_computes_the_scores_that_the_run_has_measured(run: Summary) -> None:
    from purerl.data.split import is_validation

    held_out = [pair for pair in PAIRS if is_validation(pair["prompt"], fraction=0.2)]
    assert run.after["validation/margin"] == pytest.approx(margins(run.model, held_out).mean().item(), rel=1e-4)


def test_a_checkpoint_is_exported_as_the_same_classifier(run: Summary, tmp_path: Path) -> None:
    exported = export_model(run.directory, output=tmp_path / "exported")
    torch.testing.assert_close(margins(exported, PAIRS[:4]), margins(run.model, PAIRS[:4]))


def test_it_learns_from_text_and_with_another_template(tmp_path: Path) -> None:
    summary = learn(tmp_path, "max_steps=3", pairs=TEXTS, template=HEADERS)
    got = margins(summary.model, TEXTS, ending="<eos>")
    last = records(summary.directory)[-1]
    assert last["policy/margin"] != pytest.approx(got.mean().item())  # before the last optimizer step
    from purerl.data.split import is_validation

    held_out = [pair for pair in TEXTS if is_validation(pair["prompt"], fraction=0.2)]
    got = margins(summary.model, held_out, ending="<eos>")
    assert summary.after["validation/margin"] == pytest.approx(got.mean().item(), rel=1e-4)


def test_a_resumed_run_has_the_metrics_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", "max_steps=4", "checkpoint.every=2")
    (tmp_path / "cut").mkdir()
    model, data = write_model(tmp_path / "cut" / "model"), write(tmp_path / "cut" / "pairs.jsonl", PAIRS)
    cut = [
        "preference_classifier",
        tmp_path / "cut" / "run",
        f"model={model}",
        f"data={data}",
        *SETTINGS,
        "checkpoint.every=2",
    ]
    train(*cut, "max_steps=2", "trainer.lr_scheduler_steps=4", "trainer.warmup_ratio=", "trainer.warmup_steps=0")
    resumed = train(
        *cut, "max_steps=4", "trainer.lr_scheduler_steps=4", "trainer.warmup_ratio=", "trainer.warmup_steps=0"
    )
    assert resumed.after == whole.after


def test_the_margin_of_the_data_changes_the_loss(tmp_path: Path) -> None:
    without = learn(tmp_path / "without", "max_steps=1")
    with_margin = learn(tmp_path / "with", "max_steps=1", "algorithm.margin_coef=1.0")
    losses = [records(summary.directory)[1]["policy/loss/preference"] for summary in (without, with_margin)]
    assert losses[1] > losses[0] + 0.1


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda pair: {name: value for name, value in pair.items() if name != "margin"}, "no such column"),
        (lambda pair: {**pair, "margin": "large"}, "type string"),
        (lambda pair: {**pair, "margin": None if pair is PAIRS[3] else 1.0}, "None in row 3"),
    ],
)
def test_a_margin_that_is_missing_is_refused(tmp_path: Path, change: Any, got: str) -> None:
    with pytest.raises(DataError) as error:
        learn(tmp_path, "max_steps=1", "algorithm.margin_coef=1.0", pairs=[change(pair) for pair in PAIRS])
    assert str(error.value).splitlines()[:2] == [
        f"column 'margin' of {str(tmp_path / 'pairs.jsonl')!r}",
        f"  got:  {got}",
    ]


def test_held_out_pairs_of_a_file_replace_those_of_the_data() -> None:
    config = resolve(
        "preference_classifier", ["model=m", "data=d", "data.validation_fraction=0", "validation=held_out.jsonl"]
    )
    assert config.validation is not None
    assert config.validation.data == ("held_out.jsonl",)
    assert resolve("preference_classifier", ["model=m", "data=d"]).data.validation_fraction == 0.05
