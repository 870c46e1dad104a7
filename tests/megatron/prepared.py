"""Functions `prepare_data` of runs: the problems of the default recipe, and a model that Megatron-core can divide."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from purerl.recipes.addition import character_tokenizer
from tests.backends.tiny import write_model
from tests.loop import prepared
from tests.megatron.models_table import MODELS

__all__ = ["dense", "experts"]


def dense(folder: Path, seed: int) -> None:
    _prepare(folder, seed, "qwen3")


def experts(folder: Path, seed: int) -> None:
    _prepare(folder, seed, "qwen3_moe")


def _prepare(folder: Path, seed: int, name: str) -> None:
    prepared.prepare(folder, seed)
    family, changes = MODELS[name]
    tokenizer = character_tokenizer()
    with TemporaryDirectory() as parent:
        path = Path(write_model(Path(parent), family, vocab_size=len(tokenizer), seed=seed, **changes))
        for file in (folder / "model").iterdir():
            file.unlink()
        for file in path.iterdir():
            (folder / "model" / file.name).write_bytes(file.read_bytes())
    tokenizer.save_pretrained(folder / "model")
