"""Attention of one new token on a CPU: transformers' implementation, and the two implementations of purerl.

    python benchmarks/attention.py [--threads 1] [--repeats 8]

Milliseconds per layer, the minimum of several repeats. Four layers are computed in turn, so that keys and values are
read from memory, as in a model. With `mask`, the first columns are masked, as for rows that start in different columns.
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

from purerl.backends.hf.sampling import attention

LAYERS = 4
SHAPES = {  # rows, query heads, key heads, width of a head, columns
    "narrow": (128, 4, 4, 32, 36),
    "narrow, long": (128, 4, 4, 32, 144),
    "narrow, shared": (128, 4, 2, 32, 144),
    "64 wide": (32, 8, 8, 64, 300),
    "64 wide, shared": (64, 14, 2, 64, 600),
    "128 wide, shared": (16, 16, 8, 128, 1024),
}


def implementations(
    groups: int, attention_mask: Tensor | None, width: int
) -> dict[str, Callable[[Tensor, Tensor, Tensor], object]]:
    """Functions of queries, keys and values. `groups` is the number of query heads per key head."""
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True, layer_idx=0)
    scale = width**-0.5

    def attend(max_width: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """`attention.attend`, which uses matrix products for heads up to `max_width` wide."""

        def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            attention._NARROW = max_width  # noqa: SLF001 - this benchmark determines its value
            return attention.attend(query, key, value, attention_mask, scale)

        return run

    return {
        "transformers": lambda *qkv: sdpa_attention_forward(module, *qkv, attention_mask, scaling=scale),
        "kernel": attend(0),
        "products": attend(1024),
    }


@torch.inference_mode()
def measure(shape: tuple[int, ...], dtype: torch.dtype, *, masked: bool, repeats: int) -> dict[str, float]:
    """Milliseconds per layer by implementation."""
    rows, heads, key_heads, width, columns = shape
    attention_mask = (torch.arange(columns) >= 3).to(dtype).log().expand(rows, 1, 1, columns) if masked else None
    query = torch.randn(rows, heads, 1, width).to(dtype)
    cache = [torch.randn(2, rows, key_heads, 2 * columns, width).to(dtype)[..., :columns, :] for _ in range(LAYERS)]
    functions = implementations(heads // key_heads, attention_mask, width)
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            for key, value in cache:
                function(query, key, value)
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: 1000 * seconds / LAYERS for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'':<18}{'dtype':<10}{'mask':<7}{'transformers':>13}{'kernel':>10}{'products':>10}")
    for dtype in (torch.float32, torch.bfloat16):
        for name, shape in SHAPES.items():
            for masked in (False, True):
                times = measure(shape, dtype, masked=masked, repeats=options.repeats)
                line = f"{name:<18}{str(dtype).removeprefix('torch.'):<10}{'mask' if masked else '':<7}"
                print(line + "{transformers:13.2f}{kernel:10.2f}{products:10.2f}".format(**times), flush=True)


if __name__ == "__main__":
    main()
