"""Small run directories for tests, with any metrics, prompts, completions and tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from purerl.batch import collate, with_fields
from purerl.store.evaluations import write_evaluation
from purerl.store.rollouts import Metadata, write_rollouts

__all__ = ["make_byte_tokenizer", "make_evaluation", "make_metrics", "make_run"]

_CONFIG = """
name = "sample"
max_steps = {steps}
rewards = ["exact"]

[algorithm]
kind = "{algorithm}"
"""


def make_byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with one token per byte, and one end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def make_metrics(step: int) -> dict[str, float]:
    """An increasing reward, a decreasing entropy, and timings."""
    seconds = {"time/step": 2.0, "time/generate": 1.5, "time/update": 0.25, "time/cpu": 1.0}
    learning = {"reward/mean": step / 10, "policy/entropy": 1 / (step + 1), "policy/skipped": 0.0}
    return {**learning, **seconds, "time/tokens_per_second": 50.0}


def make_run(
    path: Path,
    *,
    steps: int = 4,
    groups: Sequence[tuple[str, Sequence[str]]] = (("1+1=", ("2", "3")),),
    metrics: Any = make_metrics,
    algorithm: str = "grpo",
    settings: Mapping[str, Any] | None = None,
    unrewarded: Collection[str] = (),
) -> Path:
    """Write a run of `steps` steps to `path`. Every step has the same `groups`, each a prompt and its completions.

    The first completion of a group has reward 1, the others have reward 0. Those in `unrewarded` have no reward.
    """
    path.mkdir(parents=True)
    extra_settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (settings or {}).items())
    (path / "config.toml").write_text(extra_settings + _CONFIG.format(steps=steps, algorithm=algorithm))
    records = [{"step": 0, "eval/accuracy": 0.25}] + [{"step": step, **metrics(step)} for step in range(1, steps + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer = make_byte_tokenizer()
    (path / "tokenizer").mkdir()
    tokenizer.save(str(path / "tokenizer" / "tokenizer.json"))
    for step in range(1, steps + 1):
        rows = [
            _make_row(tokenizer, prompt, completion, group, sample, has_reward=completion not in unrewarded)
            for group, (prompt, completions) in enumerate(groups)
            for sample, completion in enumerate(completions)
        ]
        batch = collate([fields for fields, _ in rows])
        advantage = torch.where(batch["action"], batch["reward"].sum(-1, keepdim=True) - 0.5, 0.0)
        batch = with_fields(batch, old_logp=batch["rollout_logp"] + 0.01 * batch["action"], advantage=advantage)
        write_rollouts(path / "rollouts", step, batch, [strings for _, strings in rows], Metadata(algorithm, ()))
    return path


def make_evaluation(run: Path, step: int, *, data_sets: Sequence[str] = ("math",), attempts: int = 2) -> None:
    """Write an evaluation of two problems to the directory of a run. The first attempt at each is correct."""
    rows = [
        {
            "data_set": data_set,
            "index": index,
            "attempt": attempt,
            "prompt": f"{index}+{index}=",
            "completion": str(2 * index + attempt),
            "tokens": 7,
            "finish": "stop",
            "answer": str(2 * index + attempt),
            "correct": attempt == 0,
            "reward": 1.0 - attempt,
            "ground_truth": str(2 * index),
            "reward/exact": 1.0 - attempt,
            "reward/short": 0.25,
        }
        for data_set in data_sets
        for index in range(2)
        for attempt in range(attempts)
    ]
    write_evaluation(run / "evaluations", step, rows)


def _make_row(
    tokenizer: Tokenizer, prompt: str, completion: str, group: int, sample: int, *, has_reward: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    prompt_ids = tokenizer.encode(prompt).ids
    completion_ids = [*tokenizer.encode(completion).ids, tokenizer.token_to_id("<end>")]
    zeros, ones = [0] * len(prompt_ids), [1] * len(completion_ids)
    fields = {
        "tokens": prompt_ids + completion_ids,
        "action": zeros + ones,
        "mask": zeros + [int(has_reward)] * len(completion_ids),
        "reward": zeros + [0.0] * (len(completion_ids) - 1) + [float(sample == 0 and has_reward)],
        "rollout_logp": zeros + [-0.1 * (k + 1) for k in range(len(completion_ids))],
        "row": 100 * group + sample,
        "group": group,
        "example": group,
        "temperature": 1.0,
        "truncated": False,
        "version": zeros + ones,
    }
    return fields, {
        "prompt": prompt,
        "completion": completion,
        "finish": "stop" if sample == 0 else "length",
        "ground_truth": f"the answer to {prompt}",
        "reward/exact": float(sample == 0) if has_reward else None,
    }
