"""Small runs with images: a random vision-language model and a few questions about pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.algos import dpo, grpo, sft
from purerl.backends.hf import generator, trainer
from purerl.config.schema import RunConfig
from purerl.evaluation.settings import Evaluate
from purerl.recipes.tiny_task import write_parquet
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.store.settings import Checkpoint
from tests.backends.vision import picture, user, write_vision_model

TRUNCATED = picture(100)[:-700]


def prepare(folder: Path, family: str = "qwen2_vl", *, damaged: bool = False, wide: bool = False) -> None:
    """Write a model, and files for each kind of training; with `damaged`, every fourth image is truncated."""
    write_vision_model(folder, family, dtype="float32", wide=wide)
    rows = []
    for k in range(16):
        data = TRUNCATED if damaged and k % 4 == 3 else picture(k, (40, 16) if k % 3 else (16, 24))
        prompt = [user(data, f"{k}?")] if k % 5 else [user(f"{k}+1?")]
        answer = {"role": "assistant", "content": [{"type": "text", "text": str(k)}]}
        other = {"role": "assistant", "content": [{"type": "text", "text": "no"}]}
        row = {"prompt": prompt, "completion": [answer], "answer": str(k)}
        rows.append(row | {"chosen": [answer], "rejected": [other]})
    write_parquet(folder / "rows.parquet", rows)


def image_run(folder: Path, family: str = "qwen2_vl", **changes: Any) -> RunConfig:
    """GRPO on the files that `prepare` has written."""
    data = str(folder / "rows.parquet")
    config = RunConfig(
        name="images",
        model=Model(str(folder / f"{family}-0")),
        data=data,
        algorithm=grpo.Config(),
        rewards=("tests.loop.rewards:fraction_of_digits",),
        max_steps=3,
        batch_size=4,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=4, max_tokens=5),
        generator=generator.Config(),
        trainer=trainer.Config(lr=1e-3),
        evaluate=Evaluate(data=data, every=2, max_examples=6, max_tokens=4),
        checkpoint=Checkpoint(every=1, keep=3),
        num_threads=1,
    )
    return evolve(config, **changes)


def without_sampling(folder: Path, kind: str, **changes: Any) -> RunConfig:
    """SFT or DPO on the same files."""
    algorithm = {"sft": sft.Config(), "dpo": dpo.Config()}[kind]
    nothing: dict[str, Any] = {"rollout": None, "generator": None, "evaluate": None, "rewards": ()}
    return image_run(folder, algorithm=algorithm, **nothing | changes)
