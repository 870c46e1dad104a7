"""The models that a run starts from may not change under it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.errors import ConfigError, RunDirectoryError
from purerl.loop.train import train
from purerl.settings import Model

from .runs import records, train_until, without_times
from .small import fake, small_real


def _flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_changed_model_is_refused_and_the_restored_one_is_accepted(prepared: Path, tmp_path: Path) -> None:
    model = shutil.copytree(prepared / "model", tmp_path / "model")
    config = fake(model=Model(str(model)))
    train_until(2, config, directory=tmp_path / "run")
    _flip_last_byte(model / "model.safetensors")
    with pytest.raises(RunDirectoryError, match=r"(?s)model of the policy.*model\.safetensors"):
        train(config, directory=tmp_path / "run")
    _flip_last_byte(model / "model.safetensors")
    assert train(config, directory=tmp_path / "run").steps == 4


def test_run_directory_with_a_model_of_its_own_can_be_moved(tmp_path: Path) -> None:
    train_until(2, fake(), directory=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert train(fake(), directory=tmp_path / "moved").steps == 4


_HUB_RUN = """
import sys
from pathlib import Path
from purerl.loop.train import train
from purerl.settings import Model
from tests.loop.runs import train_until
from tests.loop.small import small_real

folder, ref = Path(sys.argv[1]), Path(sys.argv[2])
config = small_real(max_steps=3, model=Model("org/tiny"))
train(config, directory=folder / "uninterrupted")
train_until(2, config, directory=folder / "resumed")
ref.write_text("b" * 40)
train(config, directory=folder / "resumed")
train(config, directory=folder / "other")
"""


@pytest.mark.slow
def test_model_on_the_hub_keeps_the_commit_with_which_the_run_started(
    prepared: Path, other_model: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hub" / "models--org--tiny"
    for commit, source in (("a" * 40, prepared / "model"), ("b" * 40, other_model)):
        shutil.copytree(source, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    command = [sys.executable, "-c", _HUB_RUN, str(tmp_path), str(repository / "refs" / "main")]
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, check=True, timeout=300)
    runs = {name: without_times(records(tmp_path / name)) for name in ("uninterrupted", "resumed", "other")}
    assert runs["resumed"] == runs["uninterrupted"]
    assert runs["other"] != runs["uninterrupted"]
    recorded = json.loads((tmp_path / "resumed" / "data.json").read_text())["models"]
    assert recorded == {"policy": {"commit": "a" * 40}}


def test_full_fingerprint_of_a_model_on_the_hub_is_refused() -> None:
    config = small_real()
    check(evolve(config, model=evolve(config.model, fingerprint="full")))
    with pytest.raises(ConfigError, match=r"model\.fingerprint has no effect"):
        check(evolve(config, model=Model("org/tiny", fingerprint="full")))
