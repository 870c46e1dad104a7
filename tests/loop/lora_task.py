"""A task that an adapter of a random model learns in a few steps: to write the digit 7."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from purerl.algos import grpo
from purerl.algos.modifiers import kl_loss
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.tiny_models import write_small_model
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.store.settings import Checkpoint


def sevens(max_steps: int, **lora: Any) -> RunConfig:
    """GRPO with a reference; a checkpoint every second step."""
    return RunConfig(
        name="sevens",
        prepare_data="tests.loop.lora_task:prepare",
        model=Model("{run}/prepared/model"),
        data="{run}/prepared/problems.jsonl",
        algorithm=Composition(grpo.Config(), (kl_loss.Config(coef=0.01),)),
        max_steps=max_steps,
        batch_size=4,
        rollout=Rollout(samples_per_prompt=8, max_tokens=2),
        generator=generator.Config(max_num_seqs=32, device="cpu"),
        trainer=trainer.Config(lr=3e-2, device="cpu", lora=Lora(rank=4, **lora)),
        rewards=("tests.loop.rewards:fraction_of_sevens",),
        checkpoint=Checkpoint(every=2, keep=2),
        num_threads=1,
    )


def prepare(folder: Path, seed: int) -> None:
    """Write some prompts, and a model whose logits are not small."""
    shape: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "head_dim": 16, "initializer_range": 0.2}
    write_small_model(folder / "model", character_tokenizer(), seed=seed, max_length=16, **shape, intermediate_size=64)
    problems = [{"prompt": f"{number:02d}="} for number in range(20)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
