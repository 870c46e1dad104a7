"""Log-probability and entropy from hidden states, forward and backward: the reference beside the chunked path.

    python benchmarks/logp.py [--tokens 1024] [--hidden 256] [--vocabulary 32000] [--dtype float32] [--device cpu]

One thread. Each path runs in a process of its own, so that its peak of memory is its own; on the CPU that is what the
process held at most, less what it held before. Times are CPU time; on an accelerator, time until it has finished.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import multiprocessing
import resource
import time
from functools import partial

import torch

from purerl.kernels.logp import chunk_size, chunked, reference

SHAPE = {"scale": 1.0, "softcap": None}


def paths(vocabulary: int) -> dict[str, partial]:
    """What is compared: the definition, and chunks of several sizes, the one that the trainer takes among them."""
    chosen = chunk_size(vocabulary)
    chunks = {f"chunked, {chunk} tokens": chunk for chunk in (chosen // 4, chosen, 4 * chosen)}
    made = {name: partial(chunked.logp_entropy, chunk=chunk) for name, chunk in chunks.items()}
    return {"reference": partial(reference.logp_entropy)} | made


def measure(name: str, options: argparse.Namespace, repeats: int = 3) -> tuple[float, float, float]:
    """Forward and backward in ms, the best of `repeats`, and the peak of memory in MiB."""
    torch.set_num_threads(1)
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    draw = torch.Generator().manual_seed(0)
    shapes = (options.tokens, options.hidden), (options.vocabulary, options.hidden)
    hidden, weight = (torch.randn(shape, generator=draw).to(device, dtype).requires_grad_() for shape in shapes)
    tokens = torch.randint(0, options.vocabulary, (options.tokens,), generator=draw).to(device)
    temperature = torch.ones(options.tokens, device=device)
    before, times = held(device), []
    for _ in range(repeats):
        hidden.grad = weight.grad = None
        begin = now(device)
        logp, _ = paths(options.vocabulary)[name](hidden, weight, None, tokens, temperature, **SHAPE)
        middle = now(device)
        logp.sum().backward()
        times.append((middle - begin, now(device) - middle))
    forward, backward = (1e3 * min(column) for column in zip(*times, strict=True))
    return forward, backward, held(device) - before


def now(device: torch.device) -> float:
    """Seconds."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


def held(device: torch.device) -> float:
    """The most memory so far, in MiB."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return torch.accelerator.max_memory_allocated() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"{options.tokens} tokens, hidden {options.hidden}, vocabulary {options.vocabulary}, {options.dtype}")
    print(f"{'':<24}{'forward':>12}{'backward':>12}{'peak':>12}")
    for name in paths(options.vocabulary):
        with multiprocessing.get_context("spawn").Pool(1) as process:
            forward, backward, peak = process.apply(measure, (name, options))
        print(f"{name:<24}{forward:>9.0f} ms{backward:>9.0f} ms{peak:>8.0f} MiB")


if __name__ == "__main__":
    main()
