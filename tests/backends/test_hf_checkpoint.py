"""The files of the Hugging Face trainer's checkpoints: their digests, and that reading them executes no code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from purerl.backends.hf.checkpoint import read, write
from purerl.digests import DigestWriter, digest_of
from purerl.errors import CheckpointError

WEIGHTS = {
    "b.transposed": torch.arange(12.0).view(3, 4).T,
    "a.bfloat16": torch.linspace(-1, 1, 7).bfloat16(),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "integers": torch.arange(5, dtype=torch.int32),
    "\u00fc": torch.ones(2, dtype=torch.bool),
}


def test_digests_are_those_of_the_files_without_reading_them(tmp_path: Path) -> None:
    digests = write(tmp_path, WEIGHTS, {"moments": {0: torch.ones(1000)}, "position": 3})
    assert digests == {path.name: digest_of(path) for path in tmp_path.iterdir()}
    assert load_file(tmp_path / "weights.safetensors").keys() == WEIGHTS.keys()


def test_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        writer = DigestWriter(file)
        assert writer.write(b"abc") == 3
        writer.flush()
    digest = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert writer.digest == digest_of(tmp_path / "file") == digest
    assert DigestWriter().write(torch.ones(3).numpy()) == 12


class _Command:
    """What executes a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self._command,)


def test_state_that_executes_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path, WEIGHTS, {"moments": _Command(f"touch {tmp_path}/executed")})
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        read(tmp_path)
    assert not (tmp_path / "executed").exists()
