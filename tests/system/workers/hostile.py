"""Code in worker processes that attacks the run: it writes into the socket and the status file of its worker."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from purerl.envs.protocol import Observation, ToolCall
from purerl.envs.worker import Answer
from purerl.rewards.outcomes import Failure, Logged
from purerl.rewards.worker import Loaded, Report
from purerl.system.messages import encode

__all__ = [
    "ANSWERS",
    "ATTACKS",
    "REPORTS",
    "STATUS_ATTACKS",
    "HostileEnvironment",
    "hostile_reward",
    "returns_a_failure_that_is_no_data",
]


class _Payload:
    """A pickle of it creates the file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self._path}",))


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(8, "little") + message


def _message(text: str) -> bytes:
    return _framed(len(text).to_bytes(8, "little") + text.encode())


def _pickled(path: str) -> bytes:
    return pickle.dumps(_Payload(path))


ATTACKS: Mapping[str, Any] = {
    "a pickle": _pickled,
    "a pickle with the length of multiprocessing": lambda path: len(_pickled(path)).to_bytes(4, "big") + _pickled(path),
    "a pickle as a message": lambda path: _framed(_pickled(path)),
    "a pickle in a message": lambda path: _framed(len(_pickled(path)).to_bytes(8, "little") + _pickled(path)),
    "a huge message": lambda path: (2**62).to_bytes(8, "little") + b"\0" * 100,
    "an empty message": lambda path: _framed(b""),
    "zeros": lambda path: b"\0" * 1000,
    "ones": lambda path: b"\xff" * 1000,
    "deep JSON": lambda path: _message("[" * 100_000),
    "the name of a function": lambda path: _message('{"error": [["os", "system"], ["true"], {"dict": {}}]}'),
    "an exception": lambda path: _framed(encode(SystemExit(1))),
    "a text": lambda path: _framed(encode("a text")),
    "an object of another class": lambda path: _framed(encode(ToolCall("a"))),
    "an object without fields": lambda path: _message('{"object": [["purerl.envs.protocol", "Observation"], {}]}'),
}
"""Hostile messages by name: functions of the path of a file that must not be created."""

REPORTS: Mapping[str, Report | Loaded] = {
    "no calls": Report(0, 0, {}),
    "fewer than no calls": Report(0, -1, {}),
    "more calls than inputs": Report(0, 10**9, {}),
    "a call that is no number": Report(0, "1", {}),  # pyright: ignore[reportArgumentType]
    "an outcome of another input": Report(0, 1, {10**6: None}),
    "an outcome before the first": Report(0, 1, {-1: None}),
    "an outcome that is a text": Report(0, 1, {0: "1.0"}),  # pyright: ignore[reportArgumentType]
    "a reward that is a text": Report(0, 1, {0: {"a": "1.0"}}),  # pyright: ignore[reportArgumentType]
    "a reward that is not a number": Report(0, 1, {0: {"a": float("nan")}}),
    "a reward of the name of another metric": Report(0, 1, {0: {"mean": 1.0}}),
    "a name with control characters": Report(0, 1, {0: {"\x1b[2J": 1.0}}),
    "a failure of no kind": Report(0, 1, {0: Failure("a", "unknown", "")}),  # pyright: ignore[reportArgumentType]
    "a failure without text": Report(0, 1, {0: Failure("a", "raised", None)}),  # pyright: ignore[reportArgumentType]
    "a metric of no values": Report(0, 1, {0: Logged({}, metrics={"a": (1.0, 0)})}),
    "a total that is infinite": Report(0, 1, {0: Logged({}, totals={"a": float("inf")})}),
    "other functions": Loaded({"other": 1}, closes=False),
    "no functions": Loaded({}, closes=False),
}
"""Reports that are data, but not about the task of the worker; 0 stands for the number of the task."""

ANSWERS: Mapping[str, Any] = {
    "no observation": None,
    "a failure of no kind": Failure("a", "unknown", ""),  # pyright: ignore[reportArgumentType]
    "a reward that is not a number": Observation(reward=float("nan")),
    "the reward of another player": Observation(reward={7: 1.0}),
    "another player": Observation(player=3),
    "a message without a role": Observation(messages=[{"content": "a"}]),
    "an image": Observation(messages=[{"role": "user", "content": "a"}], images=[b"no image"]),
    "the path of an image": Observation(messages=[{"role": "user", "content": "a"}], images=["/etc/hostname"]),
    "a component of the name of another metric": Observation(components={"mean": 1.0}),
    "done that is no boolean": Observation(done=1),  # pyright: ignore[reportArgumentType]
}
"""Hostile values in place of an observation."""

STATUS_ATTACKS: Mapping[str, bytes] = {
    "a huge index": b"99999999",
    "a negative index": b"-9999999",
    "no number": b"abcdefgh",
    "no text": b"\xff\xfe\x00\xff\xff\xff\xff\xff",
}
"""Hostile contents of the status file."""


def _descriptors(word: str) -> Iterator[int]:
    """The open files of this process whose name contains `word`."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if word in str(path.readlink()) and int(path.name) > 2:
                yield int(path.name)


def _write_to_run(data: bytes) -> None:
    for descriptor in _descriptors("socket:"):
        with suppress(OSError):  # the run has ended the connection
            os.write(descriptor, data)


def _write_status(data: bytes) -> None:
    for descriptor in _descriptors("purerl-worker-"):
        os.pwrite(descriptor, data, 0)


def hostile_reward(completion: str, example: Mapping[str, Any]) -> float:
    """It attacks the run, if the completion is "bad": with the bytes of ATTACKS, a report, or its status."""
    if completion != "bad":
        return float(len(completion))
    attack = example["attack"]
    if attack in STATUS_ATTACKS:
        _write_status(STATUS_ATTACKS[attack])
        os._exit(3)
    if attack in REPORTS:
        for number in range(1000):  # it does not know the number of its task
            report = REPORTS[attack]
            _write_to_run(_framed(encode(report._replace(number=number) if isinstance(report, Report) else report)))
    else:
        _write_to_run(ATTACKS[attack](example["path"]))
    time.sleep(60)
    return 1.0


def returns_a_failure_that_is_no_data(completion: str, example: Mapping[str, Any]) -> Any:
    return Failure("own", "raised", open) if completion == "bad" else 1.0  # pyright: ignore[reportArgumentType]


class HostileEnvironment:
    """It attacks the run, if the turn of the model is the name of an attack and the path of a file."""

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return Observation()

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        name, _, path = text.partition(": ")
        if name not in (*ANSWERS, *ATTACKS):
            return Observation(reward=1.0)
        if name in ANSWERS:
            for number in range(1, 4):  # those of open, reset and this step
                _write_to_run(_framed(encode(Answer(number, ANSWERS[name]))))
        else:
            _write_to_run(ATTACKS[name](path))
        return Observation()

    async def close(self) -> None:
        pass
