"""The model of a checkpoint in Hugging Face's format."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from attrs import evolve, fields_dict

from purerl.config.requirements import requirements_of
from purerl.config.stored import read_config
from purerl.errors import RunDirectoryError
from purerl.opening.base_models import pin_recorded
from purerl.opening.engines import load_policy
from purerl.opening.start_checkpoint import StartCheckpoint, find_checkpoint
from purerl.seeds import restored_generators
from purerl.store.objects import read_facts
from purerl.system.files import atomic_directory, translate_os_errors
from purerl.system.process import torch_threads

__all__ = ["export_model"]


def export_model(run: Path, step: str = "latest", output: Path | None = None) -> Path:
    """Write the policy of a checkpoint and the tokenizer into a directory, and return it.

    run      the run directory; the run may be in progress
    step     of the checkpoint: a number, "latest" or "best", the one that `checkpoint.best` has selected
    output   the directory, which must not exist or be empty; ``RUN/export/<step>`` if not given

    The model is loaded on the CPU, so that a run in progress keeps the memory of its device.

    Raises: RunDirectoryError if there is no run, or if `output` cannot be written; CheckpointError if there is no such
    checkpoint.
    """
    checkpoint = find_checkpoint(StartCheckpoint(run, step))
    output = output or run / "export" / checkpoint.name
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        need, do = "a new or an empty directory", "name another one with --output"
        raise RunDirectoryError(f"{str(output)!r} cannot be written", got="it exists already", need=need, do=do)
    if not (run / "tokenizer").is_dir():
        raise RunDirectoryError(
            f"{str(run)!r} cannot be exported", got="no directory tokenizer", need="that of the run"
        )
    config = pin_recorded(read_config(run), run)
    device = {"device": "cpu"} if "device" in fields_dict(type(config.trainer)) else {}
    needs = requirements_of(evolve(config, trainer=evolve(config.trainer, **device)))
    output.parent.mkdir(parents=True, exist_ok=True)
    examples = read_facts(run).get("examples", 0)
    with (
        translate_os_errors(output),
        restored_generators(),
        torch_threads(config.num_threads),
        closing(load_policy(needs, checkpoint, examples, seed=config.seed)) as policy,
        atomic_directory(output) as folder,
    ):
        policy.export(folder)
        shutil.copytree(run / "tokenizer", folder, dirs_exist_ok=True)
    return output
