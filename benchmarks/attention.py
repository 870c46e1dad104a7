"""Attention of one token on a CPU: transformers' way beside ours, and ours with and without products.

    python benchmarks/attention.py [--threads 1]

Milliseconds, the best of several, of four layers in turn, so that keys and values come from memory as they do in a
model. `there`: a mask hides the first columns, as it does where rows begin in different ones.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from purerl.backends.hf import attention

LAYERS, TURNS = 4, 8
SHAPES = {  # rows, heads, heads of keys, width, columns
    "narrow": (128, 4, 4, 32, 36),
    "narrow, long": (128, 4, 4, 32, 144),
    "narrow, shared": (128, 4, 2, 32, 144),
    "64 wide": (32, 8, 8, 64, 300),
    "64 wide, shared": (64, 14, 2, 64, 600),
    "128 wide, shared": (16, 16, 8, 128, 1024),
}


def ways(groups: int, there: Tensor | None, width: int) -> dict[str, Callable[[Tensor, Tensor, Tensor], object]]:
    """What is compared, each as a function of queries, keys and values."""
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True, layer_idx=0)
    scale = width**-0.5

    def ours(narrow: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            attention._NARROW = narrow  # noqa: SLF001 - what is measured here is where it should be
            return attention.attend(query, key, value, there, scale)

        return run

    return {
        "transformers": lambda *qkv: sdpa_attention_forward(module, *qkv, there, scaling=scale),
        "kernel": ours(0),
        "products": ours(1024),
    }


@torch.inference_mode()
def measure(shape: tuple[int, ...], dtype: torch.dtype, *, masked: bool) -> dict[str, float]:
    rows, heads, shared, width, columns = shape
    there = (torch.arange(columns) >= 3).expand(rows, 1, 1, columns) if masked else None
    query = torch.randn(rows, heads, 1, width).to(dtype)
    kept = [torch.randn(2, rows, shared, 2 * columns, width).to(dtype)[..., :columns, :] for _ in range(LAYERS)]
    best = dict.fromkeys(compared := ways(heads // shared, there, width), float("inf"))
    for _ in range(TURNS):
        for name, way in compared.items():
            begin = time.perf_counter()
            for key, value in kept:
                way(query, key, value)
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: 1000 * seconds / LAYERS for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"{'':<18}{'dtype':<10}{'mask':<7}{'transformers':>13}{'kernel':>10}{'products':>10}")
    for dtype in (torch.float32, torch.bfloat16):
        for name, shape in SHAPES.items():
            for masked in (False, True):
                found = measure(shape, dtype, masked=masked)
                line = f"{name:<18}{str(dtype).removeprefix('torch.'):<10}{'there' if masked else '':<7}"
                print(line + "{transformers:13.2f}{kernel:10.2f}{products:10.2f}".format(**found), flush=True)


if __name__ == "__main__":
    main()
