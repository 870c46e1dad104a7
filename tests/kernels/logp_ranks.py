"""``python -m tests.kernels.logp_ranks PATH DIRECTORY RANK``: one of two ranks that share a head, with gloo.

PATH is "chunked" or "fused"; the latter needs TRITON_INTERPRET=1. The results are written into DIRECTORY, for
test_logp_ranks.py.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from purerl.errors import InputError
from purerl.kernels.logp import OUTPUTS, VocabularyShard, chunked, fused, token_outputs
from tests.kernels.logp_examples import (
    FLOATS,
    SELECTIONS,
    SHAPES,
    TILE,
    LargestTensor,
    choices_for,
    example,
    value_and_gradient,
)

RANKS = 2

CASES = {
    **{
        f"{selection}, {shape}": (dict(v=17), (*SELECTIONS[selection], SHAPES[shape]))
        for selection in ("logp-of-choices", "logp+entropy-of-top-k", "+".join(OUTPUTS) + "-of-top-k")
        for shape in range(len(SHAPES))
    },
    "all of choices": (dict(v=17), (FLOATS, {"choices": 3}, SHAPES[3])),
    "no bias": (dict(v=17, bias=False), (OUTPUTS, {"k": 3}, SHAPES[3])),
    "no tokens": (dict(v=17, n=0), (OUTPUTS, {"k": 3}, SHAPES[3])),
    "no tokens, of choices": (dict(v=17, n=0), (FLOATS, {"choices": 3}, SHAPES[0])),
    "no bias, of choices": (dict(v=17, bias=False), (FLOATS, {"choices": 3}, SHAPES[2])),
    "slices of 2 and 1": (dict(v=3), (OUTPUTS, {"k": 3}, SHAPES[0])),
    "equal slices": (dict(v=20), (OUTPUTS, {"k": 20}, SHAPES[0])),
}
"""Arguments of `example`, and names, options and shape."""


def run(case: tuple[dict, tuple], path, shard: VocabularyShard | None = None) -> dict[str, Tensor]:
    """Values and gradients: with a shard, of the rows of this rank."""
    example_arguments, (names, keywords, shape) = case
    arguments = example(**example_arguments)
    if "choices" in keywords:
        keywords = {"choices": choices_for(arguments)}
    if shard is not None:
        arguments[1:3] = [None if rows is None else rows[shard.rows] for rows in arguments[1:3]]
        keywords = keywords | {"shard": shard}
    return value_and_gradient(path, arguments, outputs=names, **keywords, **shape)


def largest_tensor(group: dist.ProcessGroup) -> int:
    """With 40 tokens, 2 hidden states, 50 tokens in the vocabulary, and chunks of 7 tokens."""
    case = (dict(n=40, d=2, v=50), (OUTPUTS, {"k": 3}, SHAPES[3]))
    with LargestTensor() as mode:
        run(case, partial(chunked.token_outputs, chunk=7), VocabularyShard(group, 50))
    return max(mode.elements.values())


def error_of(size: int, group: dist.ProcessGroup, rows: int | None = None) -> str:
    try:
        shard = VocabularyShard(group, size)
        hidden, weight, _, tokens, temperature = example(v=rows)
        options = dict(outputs=("logp",), scale=1.0, softcap=None, shard=shard)
        token_outputs(hidden, weight, None, tokens, temperature, **options)
    except InputError as error:
        return str(error)
    return ""


def cases_of(path: str) -> dict[str, tuple[dict, tuple]]:
    """The cases that a path computes: fused.py has no most likely tokens."""
    return {name: case for name, case in CASES.items() if path == "chunked" or "k" not in case[1][1]}


def main(directory: Path, path_name: str, rank: int) -> None:
    torch.set_num_threads(1)
    chunked._TILE_ELEMENTS = TILE
    method = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    group = dist.group.WORLD
    assert group is not None
    path = {
        "chunked": partial(chunked.token_outputs, chunk=4),
        "fused": partial(fused.token_outputs, chunk=4, blocks=fused.Blocks(16, 16, 16, 4, 2)),
    }[path_name]
    cases = cases_of(path_name).items()
    results = {name: run(case, path, VocabularyShard(group, case[0]["v"])) for name, case in cases}
    torch.save(
        {
            "cases": results,
            "public": run(CASES["all of choices"], token_outputs, VocabularyShard(group, 17)),
            "rows": {size: VocabularyShard(group, size).rows for size in (2, 3, 17, 20)},
            "largest tensor": largest_tensor(group),
            "errors": [error_of(1, group), error_of(17, group, rows=17)],
        },
        directory / f"{rank}.pt",
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
