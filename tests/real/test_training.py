"""Two optimizer steps of SFT, DPO with LoRA, and GRPO with LoRA and KL, against plain transformers and peft."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from transformers import PreTrainedTokenizerBase

import purerl
from purerl.algos import dpo, grpo, sft
from purerl.algos.modifiers import kl_loss
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.lora import Lora
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.evaluation.settings import Evaluate
from purerl.recipes.char_count import Problem, compared
from purerl.rollouts.settings import Rollout
from purerl.runs.export import export_model
from purerl.seeds import derive_seed
from purerl.settings import Model
from purerl.store.evaluations import read_evaluation
from purerl.store.rollouts import read_batch
from tests.real import plain

pytestmark = pytest.mark.real

PROBLEMS = [Problem("r", "rare"), Problem("b", "cab"), Problem("z", "zzyzx"), Problem("e", "tepee"), Problem("o", "no")]
PROMPTS = [f"Name a {thing}." for thing in ("color", "river")]
BETA = 0.1
FILE, TOKENS = "model.safetensors", 12
LORA = Lora(rank=8, alpha=16.0, export="adapter")


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _train(config: RunConfig, directory: Path, **arguments: Any) -> list[dict[str, Any]]:
    purerl.train(config, directory=directory, **arguments)
    return plain.records(directory)[1:]


def _initial_adapter(config: RunConfig, path: Path) -> Path:
    """The adapter with which the run of `config` starts."""
    seed = derive_seed(config.seed, "policy") % 2**31
    policy = trainer.build(config.trainer, model=config.model, role="policy", outputs=("logp",), updates=2, seed=seed)
    with closing(policy):
        path.mkdir()
        policy.export(path)
    return path


def test_sft_equals_transformers(model: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    data = [problem.row(compared) for problem in PROBLEMS]
    config = RunConfig(
        name="sft",
        model=Model(str(model)),
        data=_write(tmp_path / "data.jsonl", data),
        algorithm=sft.Config(),
        max_steps=2,
        batch_size=len(data),
        trainer=trainer.Config(lr=1e-4, max_rows_per_microbatch=2),
        generator=generator.Config(),
        rewards=("purerl.rewards.math:boxed",),
        evaluate=Evaluate(data=str(tmp_path / "data.jsonl"), every=2, before_training=False, max_tokens=TOKENS),
    )
    found = _train(config, tmp_path / "run")

    policy = plain.load(model)
    rows = [plain.row(tokenizer, row["prompt"], row["completion"][0]["content"]) for row in data]
    losses = plain.train(policy, lambda: plain.sft_loss(policy, rows), lr=1e-4)
    assert [step["policy/loss/nll"] for step in found] == pytest.approx(losses, rel=1e-6)
    policy.save_pretrained(tmp_path / "plain")
    runs = [plain.weights(path) for path in (tmp_path / "run" / "final", tmp_path / "plain", model)]
    assert plain.difference(*runs) < 5e-5

    # The exported model answers as the one in the run, and as that of a checkpoint.
    answers = [row["completion"] for row in read_evaluation(tmp_path / "run" / "evaluations", 2)]
    assert answers == _answers(tmp_path / "run" / "final", tokenizer, data)
    exported = export_model(tmp_path / "run", "2", tmp_path / "exported")
    assert (exported / FILE).read_bytes() == (tmp_path / "run" / "final" / FILE).read_bytes()


def _answers(path: Path, tokenizer: PreTrainedTokenizerBase, data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Greedy completions of transformers."""
    prompts = [plain.ids_of(tokenizer, row["prompt"]) for row in data]
    completions = plain.greedy(plain.load(path), prompts, max_tokens=TOKENS)
    return [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in completions]


def test_dpo_with_lora_equals_peft(model: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    data = [_pair(problem) for problem in PROBLEMS[:3]]
    config = RunConfig(
        name="dpo",
        model=Model(str(model)),
        data=_write(tmp_path / "data.jsonl", data),
        algorithm=dpo.Config(beta=BETA),
        max_steps=2,
        batch_size=len(data),
        trainer=trainer.Config(lr=2e-4, lora=LORA, max_rows_per_microbatch=2),
        roles={"reference": Role()},
    )
    found = _train(config, tmp_path / "run")

    adapter = _initial_adapter(config, tmp_path / "adapter")
    policy = plain.load_adapter(model, adapter)
    rows = [
        plain.row(tokenizer, pair["prompt"], pair[name][0]["content"])
        for pair in data
        for name in ("chosen", "rejected")
    ]
    with torch.no_grad(), policy.disable_adapter():
        reference = plain.score(policy, rows)[0].sum(-1)
    losses = plain.train(policy, lambda: plain.dpo_loss(policy, rows, reference, beta=BETA), lr=2e-4)
    assert [step["policy/loss/preference"] for step in found] == pytest.approx(losses, rel=1e-6)
    policy.save_pretrained(tmp_path / "plain")
    runs = [plain.weights(path) for path in (tmp_path / "run" / "final", tmp_path / "plain", adapter)]
    assert plain.difference(*runs) < 5e-4


def _pair(problem: Problem) -> dict[str, Any]:
    demonstration = problem.row(compared)
    text = demonstration["completion"][0]["content"]
    other = text.replace(f"{{{demonstration['answer']}}}", "{9}")
    assert other != text
    return {
        "prompt": demonstration["prompt"],
        "chosen": demonstration["completion"],
        "rejected": [{"role": "assistant", "content": other}],
    }


def _letters(completion: str, example: Mapping[str, Any]) -> float:
    """Something that differs between completions."""
    return completion.count("e") / 4


def test_grpo_with_lora_and_kl_equals_peft(model: Path, tmp_path: Path) -> None:
    """The second optimizer step is on the same rows, so its ratios are not 1, and its divergence is not 0."""
    data = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
    config = RunConfig(
        name="grpo",
        model=Model(str(model)),
        data=_write(tmp_path / "data.jsonl", data),
        algorithm=Composition(grpo.Config(), (kl_loss.Config(coef=plain.KL, estimator="k3"),)),
        max_steps=1,
        ppo_epochs=2,
        batch_size=len(data),
        rollout=Rollout(samples_per_prompt=3, max_tokens=12),
        generator=generator.Config(),
        trainer=trainer.Config(lr=5e-4, lora=LORA, max_rows_per_microbatch=2),
        roles={"reference": Role()},
    )
    [found] = _train(config, tmp_path / "run", rewards=[_letters])

    batch = read_batch(tmp_path / "run" / "rollouts", 1)
    rows = [_row(*each) for each in zip(batch["tokens"], batch["action"], batch["attention_mask"], strict=True)]
    adapter = _initial_adapter(config, tmp_path / "adapter")
    policy = plain.load_adapter(model, adapter)
    with torch.no_grad():
        old, _ = plain.score(policy, rows)  # the adapter does nothing yet, so this is the reference too
    advantage = plain.advantages(batch["reward"].sum(-1).view(len(data), -1))
    assert batch["group"].unique_consecutive(return_counts=True)[1].tolist() == [3, 3]
    assert advantage.abs().max() > 0.5
    losses = plain.train(policy, lambda: plain.grpo_loss(policy, rows, advantage, old, old), lr=5e-4)
    ours = found["policy/loss/policy"] + found["policy/loss/ref_kl"]  # means of the two optimizer steps
    assert ours == pytest.approx(sum(losses) / 2, abs=1e-6)
    assert abs(losses[1]) > 1e-3
    policy.save_pretrained(tmp_path / "plain")
    runs = [plain.weights(path) for path in (tmp_path / "run" / "final", tmp_path / "plain", adapter)]
    assert plain.difference(*runs) < 1.5e-3


def _row(tokens: torch.Tensor, action: torch.Tensor, attention: torch.Tensor) -> plain.Row:
    return plain.Row(tokens[attention & ~action].tolist(), tokens[action].tolist())


def test_mixed_precision_trains_nearly_the_same(model: Path, tmp_path: Path) -> None:
    data = _write(tmp_path / "data.jsonl", [problem.row(compared) for problem in PROBLEMS])
    config = RunConfig(
        name="sft",
        model=Model(str(model)),
        data=data,
        algorithm=sft.Config(),
        max_steps=2,
        batch_size=len(PROBLEMS),
        trainer=trainer.Config(lr=1e-4),
    )
    mixed = evolve(config, trainer=evolve(config.trainer, mixed_precision="bfloat16"))
    exact = _train(config, tmp_path / "float32")
    found = _train(mixed, tmp_path / "bfloat16")
    for ours, theirs, tolerance in zip(found, exact, (0.01, 0.1), strict=True):
        assert ours["policy/loss/nll"] == pytest.approx(theirs["policy/loss/nll"], rel=tolerance)
        assert ours["policy/loss/nll"] != theirs["policy/loss/nll"]
    runs = [plain.weights(path) for path in (tmp_path / "bfloat16" / "final", tmp_path / "float32" / "final", model)]
    assert plain.difference(*runs) < 0.5
