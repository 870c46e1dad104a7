"""Everything that is tested on several ranks. They are forks of one process, because the imports take long.

    python -m tests.megatron.world [RANKS [JOB ...]]

Rank 0 prints a line for each job that has passed. A job that fails ends all ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.serving.process import free_port
from tests.megatron import offloaded, planned, replayed, roundtrip, sampled, saved, training
from tests.megatron.conformance import count_checks
from tests.megatron.cuda_stand_in import install
from tests.ranks import TIMEOUT, count_cases, leave_process_group, print_on_first

__all__ = ["JOBS"]

JOBS: Mapping[int, Mapping[str, Callable[[], int]]] = {
    1: {
        "suite: qwen3": partial(count_checks, "qwen3", Mesh()),
        "round trip": partial(count_cases, roundtrip.cases),
        "planned": partial(count_cases, planned.cases),
        "offloaded": partial(count_cases, offloaded.cases),
    },
    2: {
        "suite: qwen3": partial(count_checks, "qwen3", Mesh()),
        "suite: qwen3, sequence": partial(count_checks, "qwen3", Mesh(tensor=2, sequence_parallel=True)),
        "suite: qwen3, context": partial(count_checks, "qwen3", Mesh(context=2)),
        "suite: qwen2, pipeline": partial(count_checks, "qwen2", Mesh(pipeline=2)),
        "suite: qwen3_moe, expert": partial(count_checks, "qwen3_moe", Mesh(expert=2)),
        "suite: experts in one layer, pipeline": partial(count_checks, "experts in one layer", Mesh(pipeline=2)),
        "round trip": partial(count_cases, roundtrip.cases),
        "planned": partial(count_cases, planned.cases),
        "training": partial(count_cases, training.cases),
        "replayed routes": partial(count_cases, replayed.cases),
        "sampled routes": partial(count_cases, sampled.cases),
        "offloaded": partial(count_cases, offloaded.cases),
        "resumes": partial(count_cases, saved.resumes),
        "files": partial(count_cases, saved.files),
    },
    4: {
        "suite: qwen3, tensor and pipeline": partial(count_checks, "qwen3", Mesh(tensor=2, pipeline=2)),
        "round trip": partial(count_cases, roundtrip.cases),
        "planned": partial(count_cases, planned.cases),
        "training": partial(count_cases, training.cases),
        "replayed routes": partial(count_cases, replayed.cases),
        "sampled routes": partial(count_cases, sampled.cases),
    },
}
"""Functions that return the number of their checks or cases, by the number of ranks they need, and by name."""


def run_jobs(rank: int, ranks: int, names: Iterable[str], port: int) -> None:
    """Run the jobs of these `names`, or all of them, as `rank` of this number of ranks."""
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}"}
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    for name in names or JOBS[ranks]:
        print_on_first(f"{ranks} ranks, {name}: {JOBS[ranks][name]()} passed")
    leave_process_group()


def main(ranks: Iterable[int], names: Iterable[str]) -> int:
    """Run the jobs of these `names`, or all, on each of these numbers of ranks; how many of the numbers have failed.

    Errors are written last, after all warnings.
    """
    errors = []
    for number in ranks:
        try:
            start_processes(run_jobs, (number, names, free_port()), nprocs=number, start_method="fork")
        except ProcessException as error:
            errors.append(f"{number} ranks: {error}\n")
    sys.stderr.writelines(errors)
    return len(errors)


if __name__ == "__main__":
    install()
    numbers, names = sys.argv[1:2], sys.argv[2:]
    sys.exit(main(map(int, numbers) if numbers else JOBS, names))
