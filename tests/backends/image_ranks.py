"""Rows with images on two ranks: training equals that of one process, for each mesh that can read them.

torchrun --nproc-per-node 2 -m tests.backends.image_ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.training.engine import HFTrainer
from purerl.data.chat import Chat
from purerl.images import ImageStore
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.image_rows import PROMPTS, chat_of, make_image_batch, store_of
from tests.backends.tiny import make_trainer
from tests.backends.training import POLICY, weights_of
from tests.backends.vision import write_vision_model
from tests.ranks import run_cases

_FAMILY = "qwen3_vl"
_TEXT = PROMPTS[2]

MESHES: dict[str, dict[str, Any]] = {
    "replicated": {"mesh": Mesh(replicate=2)},
    "sharded": {"mesh": Mesh(shard=2), "recompute": "layers", "max_tokens_per_microbatch": 1},
    "sharded, prefixes shared": {"mesh": Mesh(shard=2), "share_prefixes": True},
    "sharded, frozen": {"mesh": Mesh(shard=2), "freeze": ("vision",), "max_tokens_per_microbatch": 1},
    "packed": {"mesh": Mesh(shard=2), "packing": True, "max_tokens_per_microbatch": 90},
    "sequence": {"mesh": Mesh(sequence=2)},
    "sequence, packed": {"mesh": Mesh(sequence=2), "packing": True},
}


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    current_ranks().on_first(lambda: write_vision_model(directory, _FAMILY))
    path = str(directory / f"{_FAMILY}-0")
    chat, store = chat_of(path, _FAMILY), store_of(directory)
    for frozen in ((), ("vision",)):
        with mock.patch("purerl.ranks.current_ranks", Ranks):
            expected = _results(_open(path, store, freeze=frozen), chat)
        for name, settings in MESHES.items():
            if settings.get("freeze", ()) == frozen:
                yield name, partial(_check, name, path, store, chat, expected, **settings)


def _check(name: str, path: str, store: ImageStore, chat: Chat, expected: dict[str, Tensor], **settings: Any) -> None:
    assert_close(name, _results(_open(path, store, **settings), chat), expected, 1e-6)


def _open(path: str, store: ImageStore, **settings: Any) -> HFTrainer:
    # An eps that is not small, so that AdamW depends on the scale of the gradient.
    trainer = make_trainer(path, **{"lr": 1e-2, "eps": 1e-2, "share_prefixes": False, **settings})
    trainer.use_images(store)
    return trainer


def _results(trainer: HFTrainer, chat: Chat) -> dict[str, Tensor]:
    """Log-probabilities after two steps, and the weights.

    One rank has images in the first micro-batches, and the other one in none: there is one row with an image.
    """
    for prompts in ((PROMPTS[0], _TEXT, _TEXT), PROMPTS):
        step, counts = prepare_step(POLICY, make_image_batch(chat, prompts=prompts, samples=1))
        trainer.step(step, POLICY, counts)
    scores = trainer.score(make_image_batch(chat), ["logp"])
    return {"logp": scores["logp"], **weights_of(trainer)}


if __name__ == "__main__":
    run_cases(cases)
