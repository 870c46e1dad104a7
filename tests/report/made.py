"""Run directories made by hand: small, with whatever metrics, texts and tokens a test wants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from purerl.batch import collate, with_fields
from purerl.store.rollouts import write_rollouts

__all__ = ["bytes_tokenizer", "hand_made", "plain_metrics"]

_CONFIG = """
name = "made"
max_steps = {steps}
rewards = ["exact"]

[algorithm]
kind = "{algorithm}"
"""


def bytes_tokenizer() -> Tokenizer:
    """A token for each byte, as byte-level tokenizers have them, and one for the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def plain_metrics(step: int) -> dict[str, float]:
    """A reward that grows, an entropy that falls, and a time."""
    seconds = {"time/step": 2.0, "time/generate": 1.5, "time/update": 0.25, "time/cpu": 1.0}
    learning = {"reward/mean": step / 10, "policy/entropy": 1 / (step + 1), "policy/skipped": 0.0}
    return {**learning, **seconds, "time/tokens_per_second": 50.0}


def hand_made(
    path: Path,
    *,
    steps: int = 4,
    texts: Sequence[tuple[str, Sequence[str]]] = (("1+1=", ("2", "3")),),
    metrics: Any = plain_metrics,
    algorithm: str = "grpo",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """A run of `max_steps` steps at `path`, each with a group for each of `texts`: a prompt and its completions.

    The first completion of a group has reward 1, the others 0.
    """
    path.mkdir(parents=True)
    changes = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (settings or {}).items())
    (path / "config.toml").write_text(changes + _CONFIG.format(steps=steps, algorithm=algorithm))
    lines = [{"step": 0, "eval/accuracy": 0.25}] + [{"step": step, **metrics(step)} for step in range(1, steps + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = bytes_tokenizer()
    (path / "tokenizer").mkdir()
    tokenizer.save(str(path / "tokenizer" / "tokenizer.json"))
    for step in range(1, steps + 1):
        rows = [
            _row(tokenizer, prompt, said, group, number)
            for group, (prompt, completions) in enumerate(texts)
            for number, said in enumerate(completions)
        ]
        batch = collate([fields for fields, _ in rows])
        advantage = torch.where(batch["action"], batch["reward"].sum(-1, keepdim=True) - 0.5, 0.0)
        batch = with_fields(batch, old_logp=batch["rollout_logp"] + 0.01 * batch["action"], advantage=advantage)
        write_rollouts(path / "rollouts", step, batch, [told for _, told in rows])
    return path


def _row(
    tokenizer: Tokenizer, prompt: str, said: str, group: int, number: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    before = tokenizer.encode(prompt).ids
    after = [*tokenizer.encode(said).ids, tokenizer.token_to_id("<end>")]
    given, own = [0] * len(before), [1] * len(after)
    fields = {
        "tokens": before + after,
        "action": given + own,
        "reward": given + [0.0] * (len(after) - 1) + [float(number == 0)],
        "rollout_logp": given + [-0.1 * (k + 1) for k in range(len(after))],
        "row": 100 * group + number,
        "group": group,
        "example": group,
        "temperature": 1.0,
        "truncated": False,
        "version": given + own,
    }
    return fields, {"prompt": prompt, "completion": said, "finish": "stop" if number == 0 else "length"}
