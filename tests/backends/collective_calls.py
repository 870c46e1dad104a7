"""``python -m tests.backends.collective_calls DIRECTORY RANK``: collective calls of one of two ranks, with gloo.

The results are written into DIRECTORY, for test_collective_ranks.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import distributed as dist

from purerl.algos.algebra import Largest, Weighted
from purerl.backends.collective import check_call, sum_metrics, sum_scores
from purerl.errors import CheckpointError, PurerlError
from purerl.ranks import Ranks, current_ranks
from tests.backends.training import CRITIC, POLICY, make_batch

RANKS = 2


def error_of(call: Callable[[], object]) -> list[str]:
    """Type and message of the error that `call` raises; empty if it raises none."""
    try:
        call()
    except PurerlError as error:
        return [type(error).__name__, str(error)]
    return []


def sums(ranks: Ranks) -> dict[str, Any]:
    rank = ranks.rank
    tensor = torch.tensor([1.0 + rank, 10.0 * rank])
    tensors = [
        torch.full((2, 2), 1.0 + rank, dtype=torch.float64),
        torch.tensor([2.0**-30 + rank], dtype=torch.float32),
        torch.tensor(0.5 - rank, dtype=torch.float64),  # a scalar
        torch.tensor([[2**40 + rank]]),
    ]
    ranks.sum_in_place(tensors)
    metrics = {
        "loss": Weighted(torch.tensor(2.0 + rank), torch.tensor(4)),
        "other": Weighted(torch.tensor(0.1, dtype=torch.float64), torch.tensor(rank)),
        "largest": Largest(torch.tensor(3.0 - rank), torch.tensor(1.0)),
    }
    scores = {"logp": torch.zeros(4, 3), "topk_tokens": torch.zeros(4, 3, 2, dtype=torch.int64)}
    for score in scores.values():
        score[rank::RANKS] = rank + 1
    return {
        "sum": ranks.sum(tensor),
        "sum_in_place": tensors,
        "sum_metrics": sum_metrics(metrics, ranks),
        "sum_scores": dict(sum_scores(TensorDict(scores, batch_size=4), ranks).items()),
    }


def calls_on_first(ranks: Ranks, directory: Path) -> dict[str, Any]:
    called = []

    def fail() -> None:
        raise CheckpointError("a checkpoint", got="a full disk", need="space")

    def write() -> None:
        called.append(ranks.rank)
        (directory / "written").write_text("complete")

    error = error_of(lambda: ranks.on_first(fail))
    ranks.on_first(write)
    return {"called": called, "error": error, "written": (directory / "written").read_text()}


def checks(ranks: Ranks) -> dict[str, list[str]]:
    """Errors of calls that are the same on all ranks ("same"), and of calls that differ in one way."""
    batch, rank = make_batch(), ranks.rank
    calls = {
        "same": ("step", batch, POLICY),
        "no row labels": ("score", batch.exclude("row"), ("logp",)),
        "no attention mask": ("score", batch.exclude("attention_mask"), ("logp",)),
        "row labels on one rank": ("score", (batch, batch.exclude("row"))[rank], ("logp",)),
        "method": (("score", "step")[rank], batch, ("logp",)),
        "number of rows": ("score", batch[rank:], ("logp",)),
        "rows": ("score", batch[torch.tensor([[0, 1], [0, 2]][rank])], ("logp",)),
        "lengths": ("score", batch.clone(), ("logp",)),
        "outputs": ("score", batch, (("logp",), ("logp", "entropy"))[rank]),
        "objective": ("step", batch, (POLICY, CRITIC)[rank]),
        "weight of a term": ("step", batch, POLICY._replace(terms=(POLICY.terms[0]._replace(weight=1.0 + rank),))),
    }
    calls["lengths"][1]["attention_mask"][0, -1] ^= rank == 1
    return {name: error_of(lambda call=call: check_call(ranks, *call)) for name, call in calls.items()}


def main(directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    method = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    ranks = current_ranks()
    results = {
        "ranks": [ranks.rank, ranks.size, ranks.is_first],
        "gather": ranks.gather({"rank": ranks.rank, "values": (1, None)}),
        "check_same": error_of(lambda: ranks.check_same("settings", {"lr": 1.0})),
        "check_different": error_of(lambda: ranks.check_same("settings", {"lr": 1.0 + ranks.rank})),
        "on_first": calls_on_first(ranks, directory),
        "sums": sums(ranks),
        "checks": checks(ranks),
    }
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
