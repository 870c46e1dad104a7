"""`preferences`: the loss falls and the margin rises on pairs that are easy to tell apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.backends.hf.decoder.loading import load_model
from purerl.loop.train import Summary
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model
from tests.data.made import assistant, user, write

from .made import records, train

pytestmark = pytest.mark.slow

PAIRS = [
    {"prompt": [user(f"{k}?")], "chosen": [assistant("Yes")], "rejected": [assistant("No")]} for k in range(10, 30)
]


def _preference(model: Path) -> float:
    """Mean difference of the log-probabilities of chosen and rejected answers, in nats."""
    chosen, rejected = _log_probabilities(model, PAIRS)
    return (chosen - rejected).mean().item()


def _logp(network: Any, tokenizer: Any, prompt: list[dict[str, str]], answer: list[dict[str, str]]) -> float:
    before = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    first = len(tokenizer(before, add_special_tokens=False)["input_ids"])
    text = before + answer[0]["content"] + "<|im_end|>"
    tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    logp = network(tokens).logits.log_softmax(-1)[0, first - 1 : -1]
    return logp.gather(-1, tokens[0, first:, None]).sum().item()


def test_held_out_pairs_have_the_loss_of_the_trained_model(chat_run: Summary, tmp_path: Path) -> None:
    """Computed with transformers alone: logits of the exported model and of the one at the start."""
    held_out = [*PAIRS[:5], {**PAIRS[6], "chosen": PAIRS[6]["rejected"], "rejected": PAIRS[6]["chosen"]}]
    settings = [f"model={chat_run.model}", f"data={write(tmp_path / 'pairs.jsonl', PAIRS)}", "trainer.lr=1e-3"]
    settings += [
        "max_steps=4",
        "batch_size=4",
        "trainer.warmup_steps=0",
        "trainer.mixed_precision=off",
        "num_threads=1",
    ]
    settings += [f"validation={write(tmp_path / 'held_out.jsonl', held_out)}"]
    summary = train("preferences", tmp_path / "run", *settings)
    start, end = (_log_probabilities(path, held_out) for path in (chat_run.model, summary.model))
    chosen, rejected = 0.1 * (end - start)
    scaled = chosen - rejected
    assert scaled[:5].min() > 0 > scaled[5]
    assert summary.after == {
        "validation/loss": pytest.approx(-torch.nn.functional.logsigmoid(scaled).mean().item(), rel=1e-3),
        "validation/accuracy": pytest.approx(5 / 6),
        "validation/margin": pytest.approx(scaled.mean().item(), rel=1e-3),
        "validation/chosen_reward": pytest.approx(chosen.mean().item(), rel=1e-3),
        "validation/rejected_reward": pytest.approx(rejected.mean().item(), rel=1e-3),
    }


def _log_probabilities(model: Path, pairs: list[dict[str, Any]]) -> torch.Tensor:
    """log p of the chosen and of the rejected completion of each pair, [2, pairs]."""
    tokenizer, network = load_tokenizer(Model(str(model))), load_model(Model(str(model)))
    with torch.inference_mode():
        logps = [
            [_logp(network, tokenizer, pair["prompt"], pair[name]) for pair in pairs] for name in ("chosen", "rejected")
        ]
    return torch.tensor(logps)


def test_the_loss_falls_and_the_margin_rises(chat_run: Summary, tmp_path: Path) -> None:
    settings = [f"model={chat_run.model}", f"data={write(tmp_path / 'pairs.jsonl', PAIRS)}"]
    settings += ["max_steps=12", "batch_size=8", "trainer.lr=1e-3", "trainer.warmup_steps=2"]
    settings += ["num_threads=1"]
    summary = train("preferences", tmp_path / "run", *settings)
    _, first, *_, last = records(summary.directory)
    assert abs(first["policy/loss/preference"] - math.log(2)) < 1e-4
    assert abs(first["policy/margin"]) < 1e-4
    assert last["policy/loss/preference"] < 0.5 * math.log(2)
    assert last["policy/margin"] > 0.5
    assert last["policy/accuracy"] == 1
    # beta is 0.1. The last margin was computed before the last optimizer step.
    assert _preference(summary.model) - _preference(chat_run.model) > 10 * last["policy/margin"]


def test_kto_makes_desirable_answers_more_likely_than_undesirable_ones(chat_run: Summary, tmp_path: Path) -> None:
    labeled = [
        {"prompt": pair["prompt"], "completion": pair[name], "label": name == "chosen"}
        for number, pair in enumerate(PAIRS)
        for name in (("chosen",) if number % 2 else ("rejected",))
    ]
    settings = [f"model={chat_run.model}", f"data={write(tmp_path / 'labeled.jsonl', labeled)}", "algorithm.kind=kto"]
    settings += ["max_steps=12", "batch_size=8", "trainer.lr=1e-3", "trainer.warmup_steps=2", "num_threads=1"]
    summary = train("preferences", tmp_path / "run", *settings)
    _, first, *_, last = records(summary.directory)
    assert abs(first["policy/loss/labels"] - 0.5) < 1e-4
    assert first["policy/reference_point"] < 1e-4
    assert last["policy/loss/labels"] < 0.45
    assert last["policy/desirable_reward"] > last["policy/undesirable_reward"] + 0.2
    assert _preference(summary.model) > _preference(chat_run.model) + 2
