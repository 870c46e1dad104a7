"""Runs of a sandbox per second, cold and warm, and the memory that each of them needs.

    python -m benchmarks.sandbox [--runs N] [--accounting cgroups|sampling]

cold     `run_python`: each run starts an interpreter. cold command: `run(["/bin/true"])`
warm     `Pool.run_python`, with the default number of concurrent runs, and with one
session  a turn of a session; and a whole session of one turn, forked from a pool
MiB      private memory of all processes of a pool with idle supervisors; what each concurrent run adds to it; and what
         a program needs by itself, as a `Result` has it

On two idle cores, in two calls with cgroups / one with sampling: cold 23 runs per second, warm 145 and 170 / 197, warm
with one thread 87 and 92 / 123, 1,270 turns of a session, 96 and 106 sessions. Beside a process that kept one of the
cores busy: warm 117 and 128 / 129. A pool with 16 idle supervisors has 98 MiB, and each concurrent run adds 3.8 MiB. A
warm run takes 9 to 12 ms of CPU time in all processes together, as a control group counts it. A third of it is
page faults: each process that is forked copies the pages that it writes to.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from purerl.sandbox import Limits, Pool, SandboxSettings, run, run_python
from purerl.sandbox.supervisor.sampling import descendants

_SOURCE = "print(sum(map(int, input().split())))"


def _rate(call: Callable[[], object], runs: int, threads: int) -> float:
    """Calls per second from several threads, the best of three times."""
    call()
    rates = []
    with ThreadPoolExecutor(threads) as executor:
        for _ in range(3):
            start = time.perf_counter()
            list(executor.map(lambda _: call(), range(runs)))
            rates.append(runs / (time.perf_counter() - start))
    return max(rates)


def _memory() -> float:
    """Memory in MiB of all processes that this one has started, with shared pages counted once."""
    total = 0
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
    return total / 1024


def _measure_memory(settings: SandboxSettings) -> None:
    with Pool(settings) as pool, ThreadPoolExecutor(16) as executor:
        list(executor.map(lambda _: pool.run_python(_SOURCE, stdin="1 2"), range(16)))
        idle = _memory()
        sleeping = [executor.submit(pool.run_python, "import time; time.sleep(3)") for _ in range(16)]
        time.sleep(1.5)
        busy = _memory()
        own = max(job.result().memory for job in sleeping) / 2**20
    each = (busy - idle) / 16
    print(f"MiB: a pool with 16 idle supervisors {idle:.0f}, each concurrent run {each:.1f}, by itself {own:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--accounting", default="auto", choices=["auto", "cgroups", "sampling"])
    arguments = parser.parse_args()
    settings = SandboxSettings(accounting=arguments.accounting, limits=Limits(timeout=60))
    cores, few = os.cpu_count() or 1, max(1, arguments.runs // 10)
    print(f"{cores} cores, {os.uname().release}, accounting {arguments.accounting}, runs per second:")
    cold = _rate(lambda: run_python(_SOURCE, stdin="1 2", settings=settings), few, cores)
    print(f"  cold           {cold:8.1f}")
    print(f"  cold command   {_rate(lambda: run(['/bin/true'], settings=settings), few, cores):8.1f}")
    with Pool(settings) as pool:
        warm = _rate(lambda: pool.run_python(_SOURCE, stdin="1 2"), arguments.runs, 4 * cores)
        print(f"  warm           {warm:8.1f}")
        print(f"  warm, 1 thread {_rate(lambda: pool.run_python(_SOURCE, stdin='1 2'), arguments.runs // 2, 1):8.1f}")
        with pool.session() as session:
            print(f"  session, turns {_rate(lambda: session.run('1 + 2'), arguments.runs, 1):8.1f}")

        def open_session() -> None:
            with pool.session() as opened:
                opened.run("1 + 2")

        print(f"  sessions       {_rate(open_session, few, cores):8.1f}")
    _measure_memory(SandboxSettings(accounting=arguments.accounting, max_concurrent_runs=16))


if __name__ == "__main__":
    main()
