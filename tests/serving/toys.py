"""Generators whose servers are toy engines, for tests of what all engines share."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import torch
from attrs import field, frozen

from purerl.backends.requests import PendingRequest
from purerl.backends.serving import process
from purerl.backends.serving.access import token_of_run
from purerl.backends.serving.api import Answer, Call, Command
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.http import Http
from purerl.backends.serving.server import Server
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.serving.shared import open_servers
from purerl.backends.serving.weights import WeightFiles, WeightStream
from purerl.backends.transfer.engine.purerl_messages import Address
from purerl.backends.transfer.engine.purerl_receiver import Receiver
from purerl.backends.weights import TensorWeights
from purerl.protocols import Capabilities, Request, Sampling
from purerl.system.workers import program
from tests.serving import toy_engine

WEIGHTS = TensorWeights({"model.weight": torch.zeros(2, 3), "model.bias": torch.zeros(3)})


@frozen
class ToyModel:
    """Stands for `ServedModel`; `files` are the weights that servers load at the start."""

    files: TensorWeights | None = None
    vocab_size = 1000

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in WEIGHTS.tensors.items()}

    def weights(self) -> TensorWeights | None:
        return self.files


@frozen(eq=False)
class Toy:
    """The interface of tests/serving/toy_engine.py. `starts` has other options, of the first starts."""

    options: tuple[str, ...] = ()
    starts: list[tuple[str, ...]] = field(factory=list)
    keeps: bool = True
    loaded: list[list[str]] = field(factory=list)
    memory: list[str] = field(factory=list)
    receivers: dict[str, Receiver] = field(factory=dict)
    problem: str | None = None
    update_seconds: float = 0.0
    name: str = "toy"

    def keeps_requests(self, *, is_adapter: bool) -> bool:
        return self.keeps

    def command(self, host: str, port: int) -> Command:
        script = str(toy_engine.__file__)
        options = self.starts.pop(0) if self.starts else self.options
        return Command((sys.executable, script, str(port), *options), {})

    def request(self, pending: PendingRequest, identity: str, adapter: str | None) -> Call:
        tokens = [*pending.request.tokens, *pending.tokens]
        return Call("/generate", {"tokens": tokens, "max_tokens": pending.remaining, "id": identity})

    def answer(self, response: Any, pending: PendingRequest) -> Answer:
        tokens = response["tokens"]
        versions = [(version, 1) for version in response["versions"]]
        return Answer(tokens, [-1.0] * len(tokens), versions, response["finish"])

    async def check(self, http: Http, *, timeout: float) -> str | None:
        return self.problem

    async def abort(self, http: Http, identity: str, *, timeout: float) -> None:
        await http.post("/abort", {"id": identity}, timeout=timeout)

    async def processes(self, http: Http, *, timeout: float) -> int:
        return 1

    async def update(self, http: Http, weights: WeightFiles | WeightStream, *, timeout: float) -> None:
        await asyncio.sleep(self.update_seconds)
        if isinstance(weights, WeightFiles):
            self.loaded.append(sorted(path.name for path in weights.directory.iterdir()))
        else:
            await asyncio.to_thread(self.receive, weights.address, http.token)
        await http.post("/load", {"version": str(weights.version)}, timeout=timeout)

    async def sleep(self, http: Http, *, level: int, timeout: float) -> None:
        self.memory.append(f"sleep {level}")
        await http.post("/sleep", {}, timeout=timeout)

    async def wake(self, http: Http, part: str, *, timeout: float) -> None:
        self.memory.append(f"wake {part}, {len(self.loaded)} loaded")
        await http.post("/wake", {"part": part}, timeout=timeout)

    def receive(self, address: Address, token: str | None) -> None:
        """Receive weights in a thread of this process, instead of the process of an engine."""
        if address.name not in self.receivers:
            self.receivers[address.name] = Receiver(address, 1, token=token)
        receiver = self.receivers[address.name]
        receiver.receive(address.number, lambda stream: self.loaded.append([name for name, _ in stream]))


@contextmanager
def toys(
    folder: Path,
    toy: Toy | None = None,
    *,
    model: Any = None,
    connections: int = 64,
    are_started: bool = False,
    **settings: Any,
) -> Iterator[ServedGenerator]:
    """A generator whose servers are toy engines; their logs are in `folder`.

    With `are_started` they are programs, as the servers of engines are. Otherwise their workers run them.
    """
    logs = {} if "urls" in settings else {"logs": str(folder)}
    settings = {**logs, "start_timeout": 60.0, "weights_directory": str(folder / "weights"), **settings}
    with patch.object(process, "WORK", program.WORK if are_started else toy_engine.WORK):
        generator = open_servers(
            toy or Toy(),
            ServerSettings(**settings),
            Capabilities(max_sequence_length=1000, sleeps=settings.get("sleep_level", 0) > 0),
            model or ToyModel(),
            connections=connections,
        )
        try:
            yield generator
        finally:
            generator.close()


def sampled(generator: ServedGenerator) -> int:
    """The number of tokens that the servers have sampled."""
    return sum(map(sampled_by, generator.servers))


def sampled_by(server: Server) -> int:
    """The number of tokens that `server` has sampled."""
    headers = {"Authorization": f"Bearer {token_of_run()}"}
    with urlopen(HttpRequest(f"{server.url}/sampled", headers=headers), timeout=60) as answer:
        return json.load(answer)


def requests(number: int, *, tokens: int = 4, prompts: int = 1000) -> list[Request]:
    return [Request(str(k), [100 + k % prompts], Sampling(max_tokens=tokens), seed=k) for k in range(number)]


def completions(generator: ServedGenerator, number: int) -> Mapping[str, Any]:
    """The next `number` completions, by their keys."""
    completions: dict[str, Any] = {}
    while len(completions) < number:
        finished = generator.collect(timeout=60.0)
        assert finished, f"{len(completions)} of {number} after 60 seconds"
        for completion in finished:
            assert completion.key not in completions
            completions[completion.key] = completion
    return completions


def engines() -> list[int]:
    """The process ids of the toy engines, and of what they have started, that descend from this process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            parents[int(path.parent.name)] = int(parent)
    return [pid for pid in parents if _is_engine(pid) and _descends(pid, parents)]


def _is_engine(pid: int) -> bool:
    try:
        name, command = (Path(f"/proc/{pid}/{each}").read_bytes() for each in ("comm", "cmdline"))
    except OSError:
        return False
    return name.strip() == toy_engine.NAME.encode() or b"toy_engine.py" in command or b"time.sleep(600)" in command


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
