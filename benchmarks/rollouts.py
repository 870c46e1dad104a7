"""The cost of the package `purerl.rollouts` itself: groups of single-turn requests, beside a plain call of `generate`.

    python -m benchmarks.rollouts [--groups 64] [--samples 16] [--repeats 5]

There are three loads with the same 1,024 requests and the same generator, and they alternate:

    generate   `purerl.protocols.generate`: nothing but the generator
    by hand    a loop that also decodes the texts, calls the reward function, and makes the rows: what any code must do
    rollouts   `Rollouts` with the workflow `SingleTurn`: event loop, engine, reward runner

A prompt has 64 tokens, and a completion has 64. The reward function is trivial and runs in this process. Times are CPU
seconds of all threads of the process, with one thread of torch; the table has the median, and the median of the ratio
to `generate` in the same repetition. The bound is 5 % more than `generate`. The model is a Qwen2 model with a million
parameters: with any larger one, the share of the package is smaller.

On an idle machine with two cores: `by hand` 1.0 % and `rollouts` 2.5 % more than `generate`, which took 3.7 s. Beside
other work: 1.2 % and 0.6 %. These are CPU ratios that vary by two percent, so they say only that the bound holds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.generator import VOCABULARY, tiny_model
from purerl.backends.hf.generator import Config
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.data.chat import Prompt
from purerl.protocols import Request, Sampling, generate
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.single_turn import SingleTurn
from purerl.rollouts.types import Draw
from purerl.seeds import derive_seed
from purerl.settings import Model
from purerl.system.garbage import gc_frozen

PROMPT, NEW, ROWS, BOUND = 64, 64, 256, 0.05


def reward(completion: str, example: dict[str, Any]) -> float:
    """A trivial reward that differs between rows."""
    return completion.count("0") / NEW


def draws_of(groups: int, first: int) -> list[Draw]:
    """The draws `first`, ..., with random prompts that are the same in each repetition."""
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(VOCABULARY) for _ in range(PROMPT)) for _ in range(groups)]
    return [
        Draw(first + k, k, {"answer": str(k)}, Prompt("a prompt", prompt), key=str(first + k), seeds=(0, k))
        for k, prompt in enumerate(prompts)
    ]


def requests_of(draws: list[Draw], samples: int) -> list[Request]:
    """The requests that `SingleTurn` makes."""
    sampling = Sampling(max_tokens=NEW)
    return [
        Request(f"{draw.key}/{k}", draw.prompt.tokens, sampling, derive_seed(*draw.seeds, k))
        for draw in draws
        for k in range(samples)
    ]


def run_by_hand(generator: HFGenerator, tokenizer: Any, draws: list[Draw], samples: int) -> list[dict[str, Any]]:
    """Completions, texts, rewards and rows, without a class of purerl.rollouts."""
    completions = generate(generator, requests_of(draws, samples))
    texts = tokenizer.batch_decode([list(completion.tokens) for completion in completions], skip_special_tokens=True)
    origins = [draw for draw in draws for _ in range(samples)]
    return [
        {
            "tokens": [*draw.prompt.tokens, *completion.tokens],
            "action": [False] * PROMPT + [True] * len(completion.tokens),
            "reward": [0.0] * (PROMPT + len(completion.tokens) - 1) + [reward(text, draw.example)],
            "rollout_logp": [0.0] * PROMPT + [*completion.logp],
            "version": [0] * PROMPT + [*completion.version],
        }
        for draw, completion, text in zip(origins, completions, texts, strict=True)
    ]


def cpu_seconds(loads: dict[str, Callable[[], object]], repeats: int) -> list[dict[str, float]]:
    """The CPU seconds of all threads in each of `loads`, which are called alternately."""
    measured = []
    for _ in range(repeats):
        seconds = {}
        for name, load in loads.items():
            start = time.process_time()
            load()
            seconds[name] = time.process_time() - start
        measured.append(seconds)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("groups", 64), ("samples", 16), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = HFGenerator(Config(max_num_seqs=ROWS, device="cpu"), tiny_model().eval(), Model("none"))
    tokenizer, name = character_tokenizer(), "benchmarks.rollouts:reward"
    runner = RewardRunner([name], functions={name: reward}, timeout=60.0, num_workers=None)
    runtime = Runtime(generator)
    workflow = SingleTurn(
        tokenizer=tokenizer,
        sampling=Sampling(max_tokens=NEW),
        samples=options.samples,
        score=runner.score,
        row_fields=lambda draw: {"group": draw.number, "example": draw.index},
    )
    rollouts = Rollouts(runtime, workflow)

    def run_rollouts() -> None:
        draws = draws_of(options.groups, 0)
        rollouts.submit(draws)
        groups = rollouts.collect(draws=[draw.number for draw in draws])
        if sum(len(group.trajectories) for group in groups) != options.groups * options.samples:
            raise SystemExit("rows are missing")

    loads = {
        "generate": lambda: generate(generator, requests_of(draws_of(options.groups, 0), options.samples)),
        "by hand": lambda: run_by_hand(generator, tokenizer, draws_of(options.groups, 0), options.samples),
        "rollouts": run_rollouts,
    }
    with runner, gc_frozen():
        runner.start(runtime.run_here)
        cpu_seconds(loads, 1)  # warm-up
        measured = cpu_seconds(loads, options.repeats)
    runtime.close()
    print(f"{'':<12}{'CPU s':>10}{'more than generate':>22}")
    for load in loads:
        ratio = median(seconds[load] / seconds["generate"] for seconds in measured) - 1
        print(f"{load:<12}{median(seconds[load] for seconds in measured):>10.3f}{ratio:>22.2%}")
    print(f"bound of rollouts: {BOUND:.0%}")


if __name__ == "__main__":
    main()
