"""Fingerprints of models: what they notice, and what they leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.errors import ConfigError
from purerl.models.fingerprint import changed_files, fingerprint
from purerl.settings import Model

_LARGE = 24 * 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(_LARGE))
    return tmp_path


def _flip(file: Path, position: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(b"\x01")


# The start has the header of a safetensors file. 64 blocks of 64 KiB are spread over the rest.
@pytest.mark.parametrize("position", [0, 4 * 2**20 - 1, 4 * 2**20, _LARGE - 1, _LARGE - 2**16])
def test_byte_in_a_sampled_part_is_noticed(folder: Path, position: int) -> None:
    before = fingerprint(Model(str(folder)))
    _flip(folder / "model.safetensors", position)
    assert changed_files(before, fingerprint(Model(str(folder)))) == ["model.safetensors"]


def test_every_byte_is_noticed_by_a_full_fingerprint(folder: Path) -> None:
    sampled, full = Model(str(folder)), Model(str(folder), fingerprint="full")
    before = fingerprint(sampled), fingerprint(full)
    _flip(folder / "model.safetensors", 4 * 2**20 + 2**16 + 1)  # between the first two blocks
    assert fingerprint(sampled) == before[0]
    assert changed_files(before[1], fingerprint(full)) == ["model.safetensors"]


def test_other_size_and_other_files_are_noticed(folder: Path) -> None:
    before = fingerprint(Model(str(folder)))
    with (folder / "model.safetensors").open("ab") as opened:
        opened.write(b"\x00")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").unlink()
    changed = changed_files(before, fingerprint(Model(str(folder))))
    assert changed == ["config.json", "model.safetensors", "tokenizer.json"]


def test_files_that_are_not_loaded_are_left_out(folder: Path) -> None:
    before = fingerprint(Model(str(folder)))
    (folder / "README.md").write_text("about")
    (folder / "logs").mkdir()
    assert fingerprint(Model(str(folder))) == before


def test_unknown_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"the model '.*missing' is missing\n  got:  no such directory"):
        fingerprint(Model(str(tmp_path / "missing")))
