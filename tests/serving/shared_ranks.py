"""``python -m tests.serving.shared_ranks DIRECTORY CASE RANK``: one of two ranks that share toy engines.

What `CASES[CASE]` returns is written into DIRECTORY, for test_shared.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist

from purerl.backends.serving import process
from purerl.backends.serving.access import TOKEN, token_of_run
from purerl.backends.serving.http import Http
from purerl.backends.serving.lease import Owner, check_free, new_owner
from purerl.backends.serving.process import ServerProcess, free_port
from purerl.backends.serving.shared import SharedGenerator
from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from purerl.ranks import current_ranks
from purerl.system.run_secret import adopt_secret
from tests.serving import toy_engine
from tests.serving.toys import WEIGHTS, Toy, ToyModel, completions, engines, requests, toys

RANKS = 2


class GatheredWeights(TensorWeights):
    """Weights whose iteration is collective."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for item in super().__iter__():
            dist.barrier()
            yield item


def load(generator: SharedGenerator, version: int) -> None:
    generator.load_weights(GatheredWeights(dict(WEIGHTS)), version=version)


def summary(generator: SharedGenerator, number: int) -> dict[str, Any]:
    """The common values of the completions of this rank."""
    found = completions(generator, number)
    return {
        "tokens": [list(found[key].tokens) for key in sorted(found)],
        "versions": [list(found[key].version) for key in sorted(found)],
        "finish": {completion.finish for completion in found.values()},
    }


def sample(folder: Path, rank: int) -> dict[str, Any]:
    """Two servers, of which rank 0 is the parent."""
    with toys(folder, number=2) as generator:
        load(generator, 1)
        generator.submit(requests(20))
        result = {**summary(generator, 20), "processes": len(engines())}
        urls = current_ranks().gather([server.url for server in generator.local.servers])
        current_ranks().gather(None)
    return {**result, "urls": urls, "left": len(engines())}


def load_in_flight(folder: Path, *, keeps: bool) -> dict[str, Any]:
    toy = Toy(("--seconds", "0.01"), keeps=keeps)
    with toys(folder, toy) as generator:
        load(generator, 1)
        generator.submit(requests(4, tokens=300))
        for version in (2, 3):
            time.sleep(0.2)
            load(generator, version)
        result = summary(generator, 4)
        current_ranks().gather(None)
    return {**result, "loaded": len(toy.loaded)}


def fail(folder: Path, rank: int, *, signal_number: int, stall_timeout: float) -> dict[str, Any]:
    """A server ends or hangs while only rank 1 has requests."""
    with toys(folder, Toy(("--seconds", "0.02")), stall_timeout=stall_timeout) as generator:
        load(generator, 7)
        if rank == 1:
            generator.submit(requests(8, tokens=60))
            time.sleep(0.3)
        current_ranks().gather(None)
        if rank == 0:
            for pid in engines():
                os.kill(pid, signal_number)
        result = summary(generator, 8 if rank == 1 else 0)
        current_ranks().gather(None)
        return {**result, "restarts": generator.local.servers[0].restarts}


def fail_for_good(folder: Path, rank: int) -> str:
    """The server cannot be started again."""
    try:
        with toys(folder, Toy(("--seconds", "0.02")), max_restarts=0) as generator:
            current_ranks().gather(None)
            if rank == 0:
                for pid in engines():
                    os.kill(pid, signal.SIGKILL)
            generator.submit(requests(4, tokens=200))
            completions(generator, 4)
    except EngineError as error:
        current_ranks().gather(None)
        return str(error)
    return ""


def sleep(folder: Path) -> dict[str, Any]:
    with toys(folder, sleep_level=1) as generator:
        generator.sleep()
        generator.submit(requests(4))
        early = len(generator.collect(timeout=0.3))
        load(generator, 2)
        result = {**summary(generator, 4), "early": early}
        current_ranks().gather(None)
    return result


def refuse(folder: Path) -> str:
    """Weights of another model are an error on every rank, before any is gathered."""
    with toys(folder) as generator:
        try:
            generator.load_weights(GatheredWeights({"unknown": torch.zeros(2)}), version=1)
        except EngineError as error:
            return str(error)
        finally:
            current_ranks().gather(None)
    return ""


def given(folder: Path, rank: int) -> dict[str, Any]:
    """A server that runs already; rank 0 has its lease, and the requests of both ranks have its identity."""
    os.environ[TOKEN] = token_of_run()
    processes: list[ServerProcess] = []

    def start() -> int:
        port = free_port()
        command = Toy().command("127.0.0.1", port)
        processes.append(ServerProcess(command.arguments, {}, folder / "engine.log", token=token_of_run()))
        return port

    with patch.object(process, "WORK", toy_engine.WORK):
        url = f"http://127.0.0.1:{current_ranks().on_first(start)}"
    settings: dict[str, Any] = {"urls": (url,), "model": ToyModel(WEIGHTS), "logs": str(folder / "run/servers")}
    with toys(folder, **settings) as generator:
        load(generator, 1)
        generator.submit(requests(20))
        result = summary(generator, 20)
        current_ranks().gather(None)
        owner = new_owner(folder / "other")
        refused = [f"{error}" for error in [_refusal(url, owner)] if error is not None]
        current_ranks().gather(None)
    current_ranks().gather(None)
    free = _refusal(url, new_owner(folder / "other")) is None
    current_ranks().gather(None)
    for each in processes:
        each.end()
    return {**result, "refused": refused, "free": free}


def _refusal(url: str, owner: Owner) -> EngineError | None:
    """The error that refuses the server to a run of `owner` now; None if it may use it."""

    async def look() -> None:
        http = Http(url, token=token_of_run(), connections=1)
        try:
            await check_free(http, "the server", owner)
        finally:
            await http.close()

    try:
        asyncio.run(look())
    except EngineError as error:
        return error
    return None


CASES: dict[str, Callable[[Path, int], Any]] = {
    "sample": sample,
    "load, requests stay": lambda folder, rank: load_in_flight(folder, keeps=True),
    "load, requests are sent again": lambda folder, rank: load_in_flight(folder, keeps=False),
    "killed": lambda folder, rank: fail(folder, rank, signal_number=signal.SIGKILL, stall_timeout=60.0),
    "stopped": lambda folder, rank: fail(folder, rank, signal_number=signal.SIGSTOP, stall_timeout=3.0),
    "failed": fail_for_good,
    "sleep": lambda folder, rank: sleep(folder),
    "given": given,
    "refuse": lambda folder, rank: refuse(folder),
}


def main(directory: Path, cases: list[str], rank: int) -> None:
    torch.set_num_threads(1)
    adopt_secret(bytes(32))
    method = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=RANKS, timeout=timedelta(minutes=2))
    results = {name: CASES[name](directory / name, rank) for name in cases or CASES}
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:-1], int(sys.argv[-1]))
