"""Messages of strangers: whatever the bytes are, nothing of them is executed, and what is no message is an error."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.envs.protocol import ToolCall
from purerl.errors import EngineError
from purerl.rewards.outcomes import Failure, Logged
from purerl.system.messages import decode, encode
from tests.system.test_messages import OBJECTS


def _message(node: Any, buffers: bytes = b"\0" * 64) -> bytes:
    text = (node if isinstance(node, str) else json.dumps(node)).encode()
    return struct.pack("<Q", len(text)) + text + buffers


class _Attack:
    """A pickle of it creates the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self._path}",))


def test_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(_Attack(tmp_path / "executed"), protocol)
        for message in (data, struct.pack("<Q", len(data)) + data, struct.pack("!i", len(data)) + data):
            with pytest.raises(EngineError, match="a message"):
                decode(message)
    assert not (tmp_path / "executed").exists()


_CLASSES: list[tuple[Any, Any]] = [
    ("os", "system"),
    ("posix", "system"),
    ("builtins", "eval"),
    ("builtins", "object"),
    ("builtins", "print"),
    ("subprocess", "Popen"),
    ("purerl.system.messages", "encode"),  # a function
    ("purerl.system.messages", "_Source"),  # private, of the reader itself: its fields are no data
    ("purerl.system.messages", "json.JSONDecoder"),  # what it has imported
    ("purerl.system.messages", "sys.modules"),
    ("purerl.system.messages", "Path"),
    ("purerl.system.messages", "Enum"),
    ("purerl.system.messages", "__builtins__"),
    ("purerl.system.messages", "__dict__"),
    ("purerl.system.workers.processes", "subprocess.Popen"),
    ("purerl.system.workers.processes", "Worker"),  # no fields
    ("purerl.rewards.adapters", "RewardInput.conversation"),  # a property
    ("purerl.rewards.adapters", "RewardInput.__class__"),
    ("purerl.errors", "EngineError.__init__"),
    ("purerl", "run"),
    ("purerl.", ""),
    ("purerl.no_such_module", "Class"),
    ("purerl_cli.main", "main"),
    ("purerl.rewards..os", "system"),
    ("torch.serialization", "load"),
    ("torch.distributed.checkpoint.metadata", "os"),
    (None, None),
    (["os"], {"system": 1}),
    ("", ""),
]


@pytest.mark.parametrize("name", _CLASSES, ids=str)
@pytest.mark.parametrize("kind", ["object", "error", "enum"])
def test_names_that_are_no_classes_of_data_are_refused(name: tuple[Any, Any], kind: str) -> None:
    contents: dict[str, list[Any]] = {
        "object": [[[*name], {}], [[*name], {"args": ["true"]}]],
        "error": [[[*name], [], {"dict": {}}], [[*name], ["true"], {"dict": {}}]],
        "enum": [[[*name], "RED"], [[*name], "__class__"]],
    }
    for content in contents[kind]:
        with pytest.raises(EngineError):
            decode(_message({kind: content}))


MALFORMED: dict[str, Any] = {
    "tensor beyond the end": {"tensor": ["float32", [100], 0, 400]},
    "tensor at a negative position": {"tensor": ["float32", [1], -4, 4]},
    "tensor of a negative size": {"tensor": ["uint8", [1], 8, -4]},
    "tensor of a huge size": {"tensor": ["float32", [1], 0, 2**70]},
    "tensor of another shape": {"tensor": ["float32", [3, 5], 0, 16]},
    "tensor of a huge shape": {"tensor": ["float32", [2**40, 2**40], 0, 4]},
    "tensor of a broken size": {"tensor": ["float32", [1], 0, 3]},
    "tensor of no dtype": {"tensor": ["load", [1], 0, 4]},
    "tensor of a private name": {"tensor": ["__loader__", [1], 0, 4]},
    "tensor of a fraction": {"tensor": ["float32", [1], 0.0, 4.0]},
    "tensor of booleans": {"tensor": ["float32", [1], False, True]},
    "tensor without content": {"tensor": []},
    "dtype that is none": {"dtype": "load"},
    "dtype of a list": {"dtype": ["float32"]},
    "array of objects": {"array": ["|O", [8], 0, 64]},
    "array of objects in a list": {"array": [[["a", "O"]], [8], 0, 64]},
    "array of objects in a structure": {"array": ["O,O", [4], 0, 64]},
    "array of texts by reference": {"array": ["T", [4], 0, 64]},
    "array of no dtype": {"array": ["os.system", [1], 0, 4]},
    "array beyond the end": {"array": ["<f4", [1], 62, 4]},
    "array of a huge shape": {"array": ["<f4", [2**62], 0, 4]},
    "scalar without content": {"scalar": []},
    "numbers beyond the end": {"numbers": ["q", 0, 128]},
    "numbers of no type": {"numbers": ["load", 0, 8]},
    "numbers of half a number": {"numbers": ["q", 0, 7]},
    "bytes beyond the end": {"bytes": [0, 65]},
    "bytes at a text": {"bytes": ["0", "8"]},
    "unknown kind": {"call": ["os.system", "true"]},
    "private kind": {"__class__": []},
    "two kinds": {"tuple": [], "bytes": [0, 1]},
    "no kind": {},
    "map with keys that have no hash": {"map": [[[1], 2]]},
    "set of lists": {"set": ["set", [[1]]]},
    "set of another type": {"set": ["list", [1]]},
    "object with another field": {"object": [["purerl.envs.protocol", "ToolCall"], {"__class__": 1}]},
    "named tuple without fields": {"object": [["purerl.rewards.adapters", "RewardInput"], {}]},
    "object that is an error": {"object": [["purerl.errors", "EngineError"], {}]},
    "error that is an object": {"error": [["purerl.envs.protocol", "ToolCall"], [], {"dict": {}}]},
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep tuples": '{"tuple":[' * 20_000 + "]}" * 20_000,
    "deep maps": '{"map":[[1,' * 20_000 + "1" + "]]}" * 20_000,
    "a number of a million digits": "9" * 1_000_000,
    "no JSON": "None",
    "half a JSON": '{"tuple": [1, 2',
    "two JSONs": "1 2",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_message_is_an_error(name: str) -> None:
    for node in (
        MALFORMED[name],
        MALFORMED[name] if isinstance(MALFORMED[name], str) else [1, {"tuple": [MALFORMED[name]]}],
    ):
        with pytest.raises(EngineError, match="a message") as error:
            decode(_message(node))
        assert len(str(error.value)) < 1000


BOMBS = {
    "no bytes": b"",
    "half a length": b"\0\0\0",
    "only a length": struct.pack("<Q", 10),
    "a huge length": struct.pack("<Q", 2**64 - 1) + b"1",
    "a length of nothing": struct.pack("<Q", 0) + b"1",
    "no ASCII": struct.pack("<Q", 3) + '"ä"'.encode(),
    "zeros": b"\0" * 1000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bytes_that_are_no_message_are_an_error(name: str) -> None:
    with pytest.raises(EngineError, match="a message"):
        decode(BOMBS[name])


@given(st.data())
@settings(max_examples=200)
def test_changed_messages_are_values_or_errors(data: st.DataObject) -> None:
    """Any change of a message gives another value, or an EngineError; never anything else."""
    value = [{"a": (1, b"bytes", torch.ones(3))}, *OBJECTS, np.arange(3), [1.0] * 20, ValueError("x")]
    message = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(message) - 1))
        message[index] = data.draw(st.integers(0, 255) | st.sampled_from(b'[]{},:"09-'))
    if data.draw(st.booleans()):
        del message[data.draw(st.integers(0, len(message))) :]
    with suppress(EngineError):
        decode(bytes(message))


def test_only_the_named_classes_are_accepted() -> None:
    allowed = (Failure, Logged)
    value = Logged(Failure("f", "raised", ""))
    assert decode(encode([value]), allowed) == [value]
    for other in (ToolCall("a"), ValueError("a"), EngineError("a"), KeyboardInterrupt()):
        with pytest.raises(EngineError, match="a message"):
            decode(encode([value, other]), allowed)
    assert decode(encode([1, "a"]), ()) == [1, "a"]


_IMPORTS = """
import sys
from purerl.errors import EngineError
from purerl.system.messages import decode, encode
assert decode(encode({"a": [1, 2.0, (b"", {3})]})) == {"a": [1, 2.0, (b"", {3})]}
before = {*sys.modules}
assert not before & {"torch", "numpy"}, "a worker process need not import them"
for name in ("antigravity", "this", "xml.dom", "purerl_cli.main", "tests", "purerl/../os", "torch.jit"):
    for kind in ("object", "error", "enum"):
        text = '{"%s": [["%s", "main"], [], {"dict": {}}]}' % (kind, name)
        try:
            decode(len(text).to_bytes(8, "little") + text.encode())
        except EngineError:
            continue
        raise AssertionError(name)
assert {*sys.modules} == before, {*sys.modules} - before
"""


def test_nothing_outside_of_purerl_is_imported_by_a_message() -> None:
    process = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
