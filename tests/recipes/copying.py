"""A task that a model with random weights learns in seconds: copying two digits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import write_small_model
from purerl.config.schema import RunConfig
from purerl.evaluation.optimal_values import add_optimal_values
from purerl.evaluation.settings import Evaluate
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.settings import Rollout
from purerl.runs.evaluation import evaluation_of_model, run_evaluation, write_json
from purerl.settings import Model
from purerl.store.settings import Checkpoint


def copying(**changes: Any) -> RunConfig:
    """60 steps of 32 prompts x 8 completions, evaluated on the training problems."""
    settings: dict[str, Any] = {
        "name": "copying",
        "prepare_data": "tests.recipes.copying:prepare",
        "model": Model("{run}/prepared/model"),
        "data": "{run}/prepared/problems.jsonl",
        "max_steps": 60,
        "batch_size": 32,
        "num_minibatches": 2,
        "rollout": Rollout(samples_per_prompt=8, max_tokens=2),
        "generator": generator.Config(max_num_seqs=256, device="cpu"),
        "trainer": trainer.Config(lr=3e-3, betas=(0.9, 0.99), lr_scheduler="cosine", device="cpu"),
        "rewards": ("tests.recipes.copying:correct_digits",),
        "evaluate": Evaluate(data="{run}/prepared/problems.jsonl", every=1000, max_tokens=2),
        "checkpoint": Checkpoint(every=1000, keep=1),
        "num_threads": 1,
    }
    return RunConfig(**settings | changes)


def correct_digits(completion: str, example: Mapping[str, Any]) -> float:
    """The fraction of digits that are copied."""
    return sum(a == b for a, b in zip(completion, example["prompt"][:2], strict=False)) / 2


def prepare(folder: Path, seed: int) -> None:
    """Write the 100 problems, and a model with random weights, into `folder`."""
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    write_small_model(folder / "model", character_tokenizer(), seed=seed, max_length=16, **shape, intermediate_size=64)
    problems = [{"prompt": f"{number:02d}=", "completion": f"{number:02d}"} for number in range(100)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))


def prepare_with_values(folder: Path, seed: int) -> None:
    """The same, with the optimal values of the problems for the model with random weights, in `values.parquet`."""
    prepare(folder, seed)
    problems, results = str(folder / "problems.jsonl"), folder / "reference.json"
    evaluation = evaluation_of_model(
        Model(str(folder / "model")),
        Evaluate(data=problems, samples_per_prompt=8, temperature=1.0, max_tokens=2),
        generator=generator.Config(max_num_seqs=256, device="cpu"),
        rewards=["tests.recipes.copying:correct_digits"],
        seed=seed,
    )
    write_json(results, evaluation, run_evaluation(evaluation))
    add_optimal_values(problems, str(results), str(folder / "values.parquet"), beta=0.5, data_set=None)
