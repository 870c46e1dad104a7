"""The files of the Hugging Face trainer's checkpoints: what is in them, and that reading them executes no code."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp

from purerl.backends.hf.weights.checkpoint import SavePlans, ShardFiles, kind_of
from purerl.errors import CheckpointError
from purerl.ranks import ONE_RANK
from purerl.system.digests import DigestWriter, digest_of
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import train

TENSORS = {
    "weights.transposed": torch.arange(12.0).view(3, 4).T,
    "weights.bfloat16": torch.linspace(-1, 1, 7).bfloat16(),
    "weights.part": torch.arange(10.0)[3:5],
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "integers": torch.arange(5, dtype=torch.int32),
    "\u00fc": torch.ones(2, dtype=torch.bool),
}


def _save(path: Path, *, copy: bool = False) -> dict[str, str]:
    return SavePlans(ONE_RANK).stage(TENSORS, copy=copy).write(path, ONE_RANK)


@pytest.mark.parametrize("copy", [False, True])
def test_tensors_are_read_as_they_were_written_with_digests_of_the_files(tmp_path: Path, copy: bool) -> None:
    digests = _save(tmp_path, copy=copy)
    assert digests == {path.name: digest_of(path) for path in tmp_path.iterdir()}
    files, read = ShardFiles(tmp_path), {name: torch.zeros_like(value) for name, value in TENSORS.items()}
    assert files.kinds == {name: kind_of(value) for name, value in TENSORS.items()}
    files.read(read)
    for name, value in TENSORS.items():
        assert torch.equal(read[name], value), name


def test_torch_reads_the_files(tmp_path: Path) -> None:
    _save(tmp_path)
    read = {name: torch.zeros_like(value) for name, value in TENSORS.items()}
    with warnings.catch_warnings(action="ignore"):
        dcp.load(read, checkpoint_id=tmp_path)
    for name, value in TENSORS.items():
        assert torch.equal(read[name], value), name


def test_staged_copies_do_not_change(tmp_path: Path) -> None:
    tensors = {"weights.a": torch.ones(3), "step": torch.tensor(1.0)}
    staged = SavePlans(ONE_RANK).stage(tensors, copy=True)
    for tensor in tensors.values():
        tensor.zero_()
    staged.write(tmp_path, ONE_RANK)
    ShardFiles(tmp_path).read(tensors)
    assert tensors["weights.a"].tolist() == [1, 1, 1]
    assert tensors["step"] == 1


def test_equal_tensors_are_equal_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.mkdir()
    assert _save(first) == _save(second)


def test_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        writer = DigestWriter(file)
        assert writer.write(b"abc") == 3
        writer.flush()
    digest = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert writer.digest == digest_of(tmp_path / "file") == digest
    assert DigestWriter().write(torch.ones(3).numpy()) == 12


class _Command:
    """An object that executes a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self._command,)


def test_metadata_that_execute_code_are_refused(tmp_path: Path) -> None:
    _save(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Command(f"touch {tmp_path}/executed")))
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read from .*\n  got:  \w+\.system is no part of"):
        ShardFiles(tmp_path).kinds  # noqa: B018
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("content", [None, b"", b"x"])
def test_missing_and_damaged_files_are_refused(tmp_path: Path, file: str, content: bytes | None) -> None:
    _save(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match="no checkpoint can be read from"):
        ShardFiles(tmp_path).read({"weights.bfloat16": torch.zeros(7).bfloat16()})


def test_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(write_model(tmp_path, "qwen3"), outputs=("logp",))
    train(trainer, 1)
    (tmp_path / "saved").mkdir()
    trainer.save(tmp_path / "saved")
    sizes = {"intermediate_size": 32, "num_hidden_layers": 3}
    other = make_trainer(write_model(tmp_path, "qwen3", seed=1, **sizes), outputs=("logp",), dtype="float32")
    before = {name: value.clone() for name, value in other.weights()}
    with pytest.raises(CheckpointError) as caught:
        other.load(tmp_path / "saved")
    first, got, need, do = str(caught.value).splitlines()
    assert first == f"'{tmp_path}/saved' is a checkpoint of another model"
    assert got.startswith(
        "  got:  model.lm_head.weight is float64 [19, 16] in the checkpoint and float32 [19, 16] in the model; "
    )
    assert got.endswith(" more")
    assert need == "  need: the names, shapes and dtypes of the model that is loaded"
    assert do == "  do:   load it into the model that it was saved from"
    for name, value in other.weights():
        assert torch.equal(value, before[name])
    assert other.position == 0


def test_moments_are_stored_by_the_name_of_the_parameter(tmp_path: Path) -> None:
    trainer = make_trainer(write_model(tmp_path, "qwen3"), outputs=("logp", "value"), lr=1e-2)
    trainer.save(tmp_path)
    assert not any(name.startswith("optimizer.") for name in ShardFiles(tmp_path).kinds)
    train(trainer, 2)
    (tmp_path / "later").mkdir()
    trainer.save(tmp_path / "later")
    kinds = ShardFiles(tmp_path / "later").kinds
    for name, parameter in trainer.trained.items():
        for key in (f"weights.{name}", f"optimizer.exp_avg.{name}", f"optimizer.exp_avg_sq.{name}"):
            assert kinds.pop(key) == kind_of(parameter)
    assert kinds.keys() == {"optimizer.step", "position", "replaced"}
    step = {"optimizer.step": torch.tensor(0.0), "position": torch.tensor(0)}
    ShardFiles(tmp_path / "later").read(step)
    assert [int(value) for value in step.values()] == [2, 2]
