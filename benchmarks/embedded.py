"""The generator in this process beside `generate` of transformers, on rollouts of 64 prompts with 8 completions each.

    python -m benchmarks.embedded [--rounds 5] [--engine vllm=engines/vllm/bin/python]

Both sample from the same Qwen3 model with 0.2 million parameters, on a CPU with one thread. `generate` gets all 512
rows as one batch, with `do_sample` and a cache of keys and values, and decodes until the longest completion is
finished. It returns only tokens; the generator also returns their log-probabilities, and has a seed for each
completion. There are three loads:

    equal   prompts of 32 tokens, 64 new tokens
    skewed  prompts of 32 tokens; seven of eight completions have 8 to 16 new tokens, the others 64
    shared  prompts of 256 tokens, 64 new tokens; the generator reads the prompt of 8 completions once

The two alternate. The table has the median CPU time of each in seconds, the ratio of `generate` to the generator (above
1 the generator is faster), of the medians and of each round, and the target of the ratio. With `--engine`, a server of
this engine gets the same loads afterwards. Its seconds are wall time, and its processes use all cores.

On a server (AMD EPYC, one thread, beside other work; torch 2.13, transformers 5.23), CPU seconds of 5 rounds:

              generate  generator   ratio  target  rounds
    equal         1.44       0.81     1.8     1.1  1.3 to 2.3
    skewed        1.29       0.30     4.3     3.0  4.1 to 4.6
    shared        9.09       1.81     5.0     1.4  4.2 to 5.6

In another run, three rounds beside tests on both cores: the generator .85, .27 and 1.94 CPU seconds, and vLLM 0.32 as a
server 5.5, 3.1 and 7.7 seconds of wall time. With a model as small as this, vLLM's own work for a request counts most.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.serving import NEW, PROMPTS, SAMPLES, VOCABULARY, start_engine, write_model
from purerl.backends.hf import generator as hf
from purerl.protocols import Generator, Request, Sampling, generate


class Load(NamedTuple):
    """`target` is the ratio that the generator should reach."""

    prompt: int
    lengths: tuple[int, ...]
    target: float


LOADS = {
    "equal": Load(32, (NEW,), 1.1),
    "skewed": Load(32, (8, 9, 10, 12, 13, 14, 16, NEW), 3.0),
    "shared": Load(256, (NEW,), 1.4),
}


def requests(load: Load, attempt: int) -> list[Request]:
    """New prompts in each attempt."""
    rng = random.Random(attempt)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(load.prompt)] for _ in range(PROMPTS)]
    rows = [prompt for prompt in prompts for _ in range(SAMPLES)]
    lengths = [load.lengths[k % len(load.lengths)] for k in range(len(rows))]
    rng.shuffle(lengths)
    pairs = enumerate(zip(rows, lengths, strict=True))
    return [Request(str(k), row, Sampling(max_tokens=length), seed=k) for k, (row, length) in pairs]


def with_transformers(model: Any, rows: Sequence[Request]) -> None:
    """One batch, until the longest row is finished."""
    prompts = torch.tensor([row.tokens for row in rows])
    new = max(row.sampling.max_tokens for row in rows)
    limits = dict(max_new_tokens=new, min_new_tokens=new, pad_token_id=0, eos_token_id=None)
    model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, use_cache=True, **limits)


def measure(
    functions: dict[str, Callable[[list[Request]], object]], load: Load, rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds by `clock` of each round, after a first one for warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for attempt in range(rounds + 1):
        for name, function in functions.items():
            rows, start = requests(load, attempt), clock()
            function(rows)
            seconds[name].append(clock() - start)
    return {name: values[1:] for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", help="vllm=PYTHON or sglang=PYTHON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        from transformers import AutoModelForCausalLM

        model = write_model(Path(folder, "model"))
        plain = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
        embedded: Generator = hf.build(hf.Config(device="cpu", max_num_seqs=PROMPTS * SAMPLES), model=model, seed=0)
        functions: dict[str, Callable[[list[Request]], object]] = {
            "generate": lambda rows: with_transformers(plain, rows),
            "generator": lambda rows: generate(embedded, rows),
        }
        print(f"{'':10}{'generate':>10}{'generator':>11}{'ratio':>8}{'target':>8}  by round")
        for name, load in LOADS.items():
            seconds = measure(functions, load, options.rounds, time.process_time)
            slow, fast = (median(values) for values in seconds.values())
            by_round = ", ".join(f"{a / b:.2f}" for a, b in zip(*seconds.values(), strict=True))
            print(f"{name:10}{slow:10.2f}{fast:11.2f}{slow / fast:8.2f}{load.target:8.2f}  {by_round}")
        if options.engine:
            served = start_engine(options.engine, model, folder)
            for name, load in LOADS.items():
                seconds = measure({"": lambda rows: generate(served, rows)}, load, options.rounds, time.perf_counter)
                print(f"{name:10}{median(seconds['']):10.2f} s, wall time of {options.engine.partition('=')[0]}")
            served.close()


if __name__ == "__main__":
    main()
