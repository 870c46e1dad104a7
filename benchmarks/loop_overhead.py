"""How much of a step is the loop's own: everything but generating, forward, backward, optimizing and judging.

    python benchmarks/loop_overhead.py

One thread, CPU time. 16 prompts x 8 completions of 32 tokens on a Qwen2 model of about a million parameters. The
same run gives both sides: engines and rewards are timed by wrappers around their methods, and the step as a whole.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from purerl.algos import grpo
from purerl.backends.hf import generator, trainer
from purerl.config.schema import Checkpoint, Rollout, RunConfig
from purerl.loop import train as loop
from purerl.loop.run import State
from purerl.protocols import Model
from purerl.recipes.addition import character_tokenizer
from purerl.tracking.trackers import Trackers

STEPS, WARM_UP = 12, 3


def reward(completion: str, example: dict[str, Any]) -> float:
    """Something that differs from row to row."""
    return completion.count("0") / 32


def config(folder: Path) -> RunConfig:
    """GRPO as the figure is defined; no completion ends early."""
    rows = [{"prompt": f"{k:016d}"} for k in range(256)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _model(folder / "model")
    return RunConfig(
        name="overhead",
        model=Model(str(folder / "model")),
        data=str(folder / "prompts.jsonl"),
        algorithm=grpo.Config(),
        max_steps=STEPS,
        batch_size=16,
        # What ends a completion has to be said; none of these tokens spells it.
        rollout=Rollout(samples_per_prompt=8, max_tokens=32, stop_strings=("\n",)),
        generator=generator.Config(),
        trainer=trainer.Config(),
        rewards=("benchmarks.loop_overhead:reward",),
        checkpoint=Checkpoint(every=1000),
    )


def _model(folder: Path) -> None:
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


def timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    """`function`, its CPU time added to `spent[name]`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        result = function(*args, **kwargs)
        spent[name] = spent.get(name, 0.0) + time.process_time() - begin
        return result

    return wrapper


def main() -> None:
    """Print milliseconds by part, medians over the steps after the first few."""
    torch.set_num_threads(1)
    steps: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = config(folder)
        place = loop.claim(folder / "run", settings, fresh=False)
        spent: dict[str, float] = {}
        run = loop.open_run(settings, place, {settings.rewards[0].function: timed(reward, spent, "reward")})
        trainer = run.trainers["policy"]
        work = {"generate": (run.generator, "submit", "collect"), "forward": (trainer.module, "forward")}
        work |= {"backward": (torch.Tensor, "backward"), "optimize": (trainer.optimizer, "step")}
        for part, (owner, *methods) in work.items():
            for method in methods:
                setattr(owner, method, timed(getattr(owner, method), spent, part))
        state = State(transform=run.algorithm.advantage.init())
        for _ in range(STEPS):
            spent.clear()
            begin = time.process_time()
            state, _ = loop.advance(run, state, place, Trackers())
            steps.append({**spent, "step": time.process_time() - begin})
        place.release()
    measured = steps[WARM_UP:]
    parts = {name: 1000 * median(step[name] for step in measured) for name in measured[0]}
    parts["all else"] = 1000 * median(2 * step["step"] - sum(step.values()) for step in measured)
    for part, milliseconds in parts.items():
        print(f"{part:<10}{milliseconds:9.2f} ms {100 * milliseconds / parts['step']:6.2f} %")
    print(f"the loop's own overhead: {100 * parts['all else'] / parts['step']:.2f} % of a step (bound: 5 %)")


if __name__ == "__main__":
    main()
