"""The time of the training loop itself: a step without generation, forward, backward, optimizer and rewards.

    python -m benchmarks.loop_overhead [--steps 12]

CPU time with one thread. A step has 16 prompts with 8 completions of 32 tokens. The model is a Qwen2 model with about a
million parameters. One run gives all times: the methods of the engines and the reward function are wrapped.

Four runs: the loop took 3.36 to 3.61 % of a step. Beside two of them, 2.96 % and 3.05 % were measured before
sampling moved to an event loop (5d3cc9d). So it has grown, and the bound is not met. These are CPU ratios.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.steps import opened_steps
from purerl.algos import grpo
from purerl.backends.hf import generator, trainer
from purerl.config.schema import RunConfig
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.store.settings import Checkpoint

WARM_UP = 3


def reward(completion: str, example: dict[str, Any]) -> float:
    """A reward that differs between rows."""
    return completion.count("0") / 32


def config(folder: Path, steps: int) -> RunConfig:
    """A GRPO run in which every completion has the maximum length."""
    rows = [{"prompt": f"{k:016d}"} for k in range(256)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_model(folder / "model")
    return RunConfig(
        name="overhead",
        model=Model(str(folder / "model")),
        data=str(folder / "prompts.jsonl"),
        algorithm=grpo.Config(),
        max_steps=steps,
        batch_size=16,
        # A stop string is needed because there is no stop token. No token of the model contains this one.
        rollout=Rollout(samples_per_prompt=8, max_tokens=32, stop_strings=("\n",)),
        generator=generator.Config(),
        trainer=trainer.Config(),
        rewards=("benchmarks.loop_overhead:reward",),
        checkpoint=Checkpoint(every=1000),
    )


def _write_model(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = character_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
    settings = Qwen2Config(
        vocab_size=64, intermediate_size=512, max_position_embeddings=256, eos_token_id=None, **shape
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(settings).save_pretrained(folder)


def timed(function: Callable[..., Any], times: dict[str, float], name: str) -> Callable[..., Any]:
    """`function`, which adds its CPU time to `times[name]`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = function(*args, **kwargs)
        times[name] = times.get(name, 0.0) + time.process_time() - start
        return result

    return wrapper


def measure(folder: Path, steps: int) -> list[dict[str, float]]:
    """CPU seconds of each step and of its parts."""
    settings, times, measured = config(folder, steps), {}, []
    functions = {settings.rewards[0].function: timed(reward, times, "reward")}
    with opened_steps(settings, folder / "run", functions) as opened:
        engines = opened.run.engines
        trainer = engines.trainers["policy"]
        parts = {"generate": (engines.generator, "submit", "collect"), "forward": (trainer.module, "forward")}
        parts |= {"backward": (torch.Tensor, "backward"), "optimizer": (trainer.optimizer, "step")}
        for part, (owner, *methods) in parts.items():
            for method in methods:
                setattr(owner, method, timed(getattr(owner, method), times, part))
        for _ in range(steps):
            times.clear()
            start = time.process_time()
            opened.step()
            measured.append({**times, "step": time.process_time() - start})
    return measured


def main() -> None:
    """Print the milliseconds of each part: medians over the steps after the warm-up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help=f"steps of the run; the first {WARM_UP} are not counted")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        measured = measure(Path(name), steps)[WARM_UP:]
    times = {part: 1000 * median(step[part] for step in measured) for part in measured[0]}
    times["loop"] = 1000 * median(2 * step["step"] - sum(step.values()) for step in measured)
    for part, milliseconds in times.items():
        print(f"{part:<10}{milliseconds:9.2f} ms {100 * milliseconds / times['step']:6.2f} %")
    print(f"overhead of the loop: {100 * times['loop'] / times['step']:.2f} % of a step (bound: 3 %)")


if __name__ == "__main__":
    main()
