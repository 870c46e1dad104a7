"""Token outputs from hidden states, forward and backward: the reference and the chunked path of purerl.kernels.logp.

    python benchmarks/logp.py                                # 2,048 tokens, hidden 896, vocabulary 151,936: minutes
    python benchmarks/logp.py --hidden 128 --vocabulary 64   # a small model
    python benchmarks/logp.py --dtype bfloat16               # hidden states and weight in bfloat16
    python benchmarks/logp.py --only "logp, entropy"         # one set of outputs
    python benchmarks/logp.py --device cuda                  # with the Triton kernels

For some sets of outputs (log-probability; with entropy; of given choices; all five) it prints the times of the forward
and of the backward pass and the peak memory. The loss is the sum of all float outputs. Each row is measured in a new
process with one thread. The first pass is not counted; times are the minimum of `--repeats` passes. On a CPU they are
CPU times, on an accelerator wall times after synchronization. The peak is the largest memory use minus the memory use
before the first pass: it contains the gradients of hidden states and weight, and everything that a pass allocates.

Log-probability and entropy at the default sizes, one thread, two cores that other processes use too, torch 2.13.0:

    float32    reference 39.5 s, 5,948 MiB   chunked 35.6 s (0.90), 612 MiB (0.103)
    bfloat16   reference 45.4 s, 6,478 MiB   chunked 40.1 s (0.88), 478 MiB (0.074)
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import multiprocessing
import resource
import time
from functools import partial
from pathlib import Path

import torch

from purerl.kernels.logp import OUTPUTS, chunk_size, chunked, fused, reference

OUTPUT_SETS = {
    "logp": ("logp",),
    "logp, entropy": ("logp", "entropy"),
    "choices": ("logp", "entropy", "sum_pi_squared", "topk_logp"),
    "all": OUTPUTS,
}


def measure(path: str, outputs: tuple[str, ...], options: argparse.Namespace) -> tuple[float, float, float]:
    """Forward and backward time in ms, and peak memory in MiB."""
    torch.set_num_threads(1)
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    random = torch.Generator().manual_seed(0)
    # Drawn in `dtype`, because a temporary float32 tensor would hide part of the peak.
    hidden, weight = (
        torch.randn(rows, options.hidden, generator=random, dtype=dtype).div_(options.hidden**0.25).to(device)
        for rows in (options.tokens, options.vocabulary)
    )
    tokens = torch.randint(0, options.vocabulary, (options.tokens,), generator=random).to(device)
    temperature = torch.ones(options.tokens, device=device)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    settings = {"outputs": outputs, "scale": 1.0, "softcap": None}
    if outputs == OUTPUTS:
        settings["k"] = options.k
    elif "topk_logp" in outputs:
        choices = torch.randint(0, options.vocabulary, (options.tokens, options.k), generator=random)
        settings["choices"] = choices.to(device)
    run = {
        "reference": partial(reference.token_outputs, **settings),
        "chunked": partial(chunked.token_outputs, **settings, chunk=options.chunk or chunk_size(options.vocabulary)),
        "triton": partial(fused.token_outputs, **settings),
    }[path]
    before, times = peak_memory(device), []
    for _ in range(1 + options.repeats):
        hidden.grad = weight.grad = None
        start = seconds(device)
        results = run(*leaves, None, tokens, temperature)
        middle = seconds(device)
        floats = [result for result in results.values() if result.is_floating_point()]
        torch.autograd.backward([result.sum() for result in floats])
        times.append((middle - start, seconds(device) - middle))
    forward, backward = (1e3 * min(column) for column in zip(*times[1:], strict=True))
    return forward, backward, peak_memory(device) - before


def seconds(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


def peak_memory(device: torch.device) -> float:
    """The largest memory use so far, in MiB; on a CPU, of the process."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return torch.accelerator.max_memory_allocated() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--chunk", type=int, help="tokens per chunk; default: as purerl.kernels.logp selects it")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=[*OUTPUT_SETS], default=[*OUTPUT_SETS])
    parser.add_argument("--json", type=Path, help="also write the results into this file")
    options = parser.parse_args()
    print(f"{options.tokens} tokens, hidden {options.hidden}, vocabulary {options.vocabulary}, {options.dtype}")
    print(f"{'':<26}{'forward':>13}{'backward':>13}{'peak':>13}   of the reference: time, peak")
    results = []
    for name in options.only:
        outputs = OUTPUT_SETS[name]
        has_triton = options.device != "cpu" and outputs != OUTPUTS
        base = None
        for path in ("reference", "chunked", *(["triton"] if has_triton else [])):
            with multiprocessing.get_context("spawn").Pool(1) as process:
                forward, backward, peak = process.apply(measure, (path, outputs, options))
            base = base or (forward + backward, peak)
            results.append(
                {"outputs": name, "path": path, "forward_ms": forward, "backward_ms": backward, "peak_mib": peak}
            )
            ratios = f"{(forward + backward) / base[0]:>21.2f}{peak / base[1]:>8.3f}"
            print(
                f"{name + ': ' + path:<26}{forward:>10.1f} ms{backward:>10.1f} ms{peak:>9.0f} MiB{ratios}", flush=True
            )
    if options.json:
        settings = {name: getattr(options, name) for name in ("tokens", "hidden", "vocabulary", "dtype", "device")}
        options.json.write_text(json.dumps({**settings, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
