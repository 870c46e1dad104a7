"""Sampling for many environments in one process: turns with tools between them, beside a single turn.

    python -m benchmarks.turns [--environments 1000] [--tool 0.05] [--repeats 3]

One thread. An episode has 4 turns. The prompt has 64 tokens, each turn samples 32 to 64, and the tool adds 12 tokens
after each turn but the last. It takes 50 ms of wall time to answer, in which the engine decodes other rows; the script
keeps the times in a heap. At most 256 requests are in flight. There are these loads, and they alternate:

    one turn             only the first turn of each environment
    one long turn        a request samples as many tokens as an episode
    turns, cached        a turn reads only what is new: `Request.keep`, and the default of `max_cached_tokens`
    turns, not cached    a turn reads the whole sequence again
    long turn, keep      every completion is copied although no request continues it: the cost of the copies
    event loop           the same episodes through the whole package: `EnvironmentWorkflow`, `Rollouts`, chat template;
                         the environments are async and run in the event loop
    worker processes     the same, with the environments in worker processes

The table has the sampled tokens per second, the median of `--repeats`, and the shares of the first two lines. Seconds
are CPU time and the time in which the engine waits for tools: on an idle machine, that is the wall time. The model is a
Qwen2 model with a million parameters.

With 1,000 environments, one call on an idle machine: 5,064 sampled tokens per second with one turn, and 4,286 through
the event loop, 84.6 % of it (target: 80 %). Requests are admitted in the order of submission; if there is no room for
all kept sequences, the longest of them are continued first. The longer a turn, the smaller the difference: 12 tokens
of an answer are read for each 48 that are sampled, and all rows that are decoded are as wide as the longest one.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import heapq
import random
import time
from collections import deque
from collections.abc import Callable
from statistics import median

import torch
from attrs import evolve

from benchmarks.environments import TURNS, Episodes
from benchmarks.generator import VOCABULARY, tiny_model
from purerl.backends.hf.generator import Config
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.settings import Model
from purerl.system.garbage import gc_frozen

PROMPT, NEW, ANSWER, ROWS = 64, (32, 64), 12, 256


def sampling(environment: int, turn: int) -> Sampling:
    """The number of tokens of a turn is random, and depends on nothing else."""
    return Sampling(max_tokens=random.Random(TURNS * environment + turn).randint(*NEW))


def first_requests(environments: int, *, keep: bool) -> list[Request]:
    """The first turn of each environment."""
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(environments)]
    return [Request(f"{k}/0", prompt, sampling(k, 0), seed=k, keep=keep) for k, prompt in enumerate(prompts)]


def next_request(request: Request, completion: Completion) -> Request | None:
    """The next turn of an environment, or None after the last."""
    environment, turn = map(int, request.key.split("/"))
    if turn + 1 == TURNS:
        return None
    tokens = [*request.tokens, *completion.tokens, *((environment + turn + k) % VOCABULARY for k in range(ANSWER))]
    keep = request.keep and turn + 2 < TURNS
    return Request(f"{environment}/{turn + 1}", tokens, sampling(environment, turn + 1), request.seed + 10**6, keep)


def run_turns(generator: HFGenerator, requests: list[Request], *, tool: float) -> tuple[int, float]:
    """Run all episodes; return the number of sampled tokens, and the seconds in which all environments were waiting."""
    ready, tools, in_flight, tokens, idle = deque(requests), [], dict[str, Request](), 0, 0.0
    while ready or tools or in_flight:
        while tools and tools[0][0] <= time.monotonic():
            ready.appendleft(heapq.heappop(tools)[2])
        batch = [ready.popleft() for _ in range(min(len(ready), ROWS - len(in_flight)))]
        generator.submit(batch)
        in_flight.update((request.key, request) for request in batch)
        if not in_flight:
            wait = max(0.0, tools[0][0] - time.monotonic())
            time.sleep(wait)
            idle += wait
        for completion in generator.collect(timeout=0.0):
            tokens += len(completion.tokens)
            request = next_request(in_flight.pop(completion.key), completion)
            if request:
                heapq.heappush(tools, (time.monotonic() + tool, request.key, request))
    return tokens, idle


def run_one_turn(generator: HFGenerator, requests: list[Request], *, turns: int) -> tuple[int, float]:
    """Sample as many tokens for each of `requests` as its episode has in `turns` turns."""
    lengths = [sum(sampling(k, turn).max_tokens for turn in range(turns)) for k in range(len(requests))]
    whole = [
        evolve(request, sampling=Sampling(max_tokens=length)) for request, length in zip(requests, lengths, strict=True)
    ]
    tokens = sum(len(completion.tokens) for completion in generate(generator, whole))
    generator.cancel([request.key for request in whole])
    return tokens, 0.0


def tokens_per_second(loads: dict[str, Callable[[], tuple[int, float]]], repeats: int) -> dict[str, float]:
    """The median of each of `loads`, which are called alternately."""
    speeds: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(repeats):
        for name, load in loads.items():
            start = time.process_time()
            tokens, idle = load()
            speeds[name].append(tokens / (time.process_time() - start + idle))
    return {name: median(values) for name, values in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=1000)
    parser.add_argument("--tool", type=float, default=0.05, help="seconds of a call")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loads", nargs="+", metavar="LOAD", help="only these loads, such as 'one turn'")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = tiny_model().eval()
    generator = HFGenerator(Config(max_num_seqs=ROWS, device="cpu"), model, Model("none"))
    plain, kept = (first_requests(options.environments, keep=keep) for keep in (False, True))
    run_one_turn(generator, plain[:ROWS], turns=1)  # warm-up
    loads = {
        "one turn": lambda: run_one_turn(generator, plain, turns=1),
        "one long turn": lambda: run_one_turn(generator, plain, turns=TURNS),
        "turns, cached": lambda: run_turns(generator, kept, tool=options.tool),
        "turns, not cached": lambda: run_turns(generator, plain, tool=options.tool),
        "long turn, keep": lambda: run_one_turn(generator, kept, turns=TURNS),
    }
    hosts = {"event loop": "event_loop", "worker processes": "process"}
    episodes = {
        name: Episodes(generator, options.environments, run_in=run_in, tool=options.tool, vocabulary=VOCABULARY)
        for name, run_in in hosts.items()
        if name in (options.loads or hosts)
    }
    loads |= {name: each.run for name, each in episodes.items()}
    with gc_frozen():
        chosen = {name: load for name, load in loads.items() if name in (options.loads or loads)}
        speeds = tokens_per_second(chosen, options.repeats)
    for each in episodes.values():
        each.runtime.close()
    references = [name for name in ("one turn", "one long turn") if name in speeds]
    print(f"{'':<24}{'tokens/s':>12}" + "".join(f"{f'of {name}':>20}" for name in references))
    for name, speed in speeds.items():
        print(f"{name:<24}{speed:>12,.0f}" + "".join(f"{speed / speeds[other]:>20.1%}" for other in references))


if __name__ == "__main__":
    main()
