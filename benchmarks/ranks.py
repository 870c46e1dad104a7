"""One optimizer step of the trainer hf: in one process, on one rank of a process group, and on two ranks.

    python -m benchmarks.ranks [--rounds 3] [--steps 3] [--ranks 2]

The kinds are measured one after the other in each round, in new processes. The wall time of the shortest step is
printed. Every rank has one thread, so two ranks need two free cores. The rows are those of benchmarks/packing.py, 64 of
up to 512 tokens, packed. The kinds are:

    process      no process group
    one rank     torchrun with one rank: the collective calls of a rank that has no others
    replicated   two ranks with a copy of the model each
    sharded      two ranks with half of the parameters each, by FSDP2

One round of two steps, two cores, torch 2.13.0: process 3.23 s, one rank 2.92 s, replicated 1.68 s, sharded 1.58 s. Two
ranks are 1.7 to 2.0 times as fast as one.

`--ranks 1 --rounds 5` on an idle machine (AMD EPYC): process 2.153 s, one rank 2.181 s, so ranks add 1.3 % to a step of
one rank. Replicated 2.055 s and sharded 2.137 s, also on one rank, show a noise of about 5 %.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks.packing import LOADS, OBJECTIVE, make_batch, make_trainer, write_model
from purerl.algos.algebra import prepare_step
from purerl.backends.hf.mesh import Mesh

LOAD = LOADS["many rows"]
KINDS = ("process", "one rank", "replicated", "sharded")


def measure(kind: str, model: Path, steps: int) -> float:
    """Seconds of a step in this process, which is a rank if torchrun has started it."""
    torch.set_num_threads(1)
    if kind != "process":
        dist.init_process_group("gloo")
    mesh = Mesh(shard=dist.get_world_size()) if kind == "sharded" else Mesh()
    trainer = make_trainer(model, {"packing": True, "mesh": mesh})
    step, counts = prepare_step(OBJECTIVE, make_batch(LOAD))
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        trainer.step(step, OBJECTIVE, counts)
        times.append(time.perf_counter() - start)
    if kind != "process":
        dist.destroy_process_group()
    return min(times[1:])  # the first one warms up


def run(kind: str, model: Path, steps: int, ranks: int) -> float:
    """Seconds of a step in new processes."""
    number = {"process": 0, "one rank": 1}.get(kind, ranks)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)] if number else []
    command = [sys.executable, *torchrun, "-m", "benchmarks.ranks", "--of", kind, str(model), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return max(json.loads(line) for line in done.stdout.splitlines())  # the slowest rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2, help="of the last two kinds")
    parser.add_argument("--of", nargs=2, metavar=("KIND", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        kind, model = options.of
        sys.stdout.write(json.dumps(measure(kind, Path(model), options.steps)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(LOAD, Path(folder))
        rounds = [
            {kind: run(kind, Path(folder), options.steps, options.ranks) for kind in KINDS}
            for _ in range(options.rounds)
        ]
    best = {kind: min(times[kind] for times in rounds) for kind in KINDS}
    for kind, seconds in best.items():
        print(f"{kind:<12}{seconds:7.3f} s{best['process'] / seconds:8.2f} times one process", flush=True)


if __name__ == "__main__":
    main()
