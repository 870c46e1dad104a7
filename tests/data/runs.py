"""Configurations of small runs on data files that a test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.evaluation.settings import Evaluate
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from tests.loop.small import fake

from .made import CHATML, assistant, system, tokenizer, user

EVALUATE = Evaluate(every=100, max_tokens=2)
"""An evaluation before the first step and one after the last."""

OFFLINE: dict[str, Any] = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
"""Changes for an algorithm that learns from the data only."""

CONVERSATIONS = [
    {"messages": [system("s"), user(f"{k}"), assistant("yes"), user("2"), assistant("no")]} for k in range(5)
]
PAIRS = [{"chosen": [user(f"{k}"), assistant("yes")], "rejected": [user(f"{k}"), assistant("no")]} for k in range(5)]
DEMONSTRATIONS = [{"prompt": [user(f"{k}")], "completion": [assistant("yes")]} for k in range(5)]


LABELED = [
    {"prompt": [user(f"{k}")], "completion": [assistant("yes" if k % 2 else "no")], "label": k % 2 == 1}
    for k in range(6)
]


def save_model(folder: Path, template: str | None = CHATML, **settings: Any) -> Path:
    """Save a tokenizer as ``folder/model``, the model of `config`."""
    tokenizer(template, **settings).save_pretrained(folder / "model")
    return folder / "model"


def config(folder: Path, data: Data | str, **changes: Any) -> RunConfig:
    """A few steps on `data`, with the tokenizer in ``folder/model`` and a bigram table as the model."""
    size = len(tokenizer())
    settings: dict[str, Any] = {
        "prepare_data": None,
        "model": Model(str(folder / "model")),
        "trainer": fake_trainer.Config(vocab_size=size),
        "generator": fake_generator.Config(vocab_size=size),
        "rollout": Rollout(samples_per_prompt=4, max_tokens=3),
        "rewards": ("tests.loop.rewards:check_columns",),
        "evaluate": None,
        "data": data,
    }
    return fake(**settings | changes)


def verl_rows(count: int, length: int = 1) -> list[dict[str, Any]]:
    """Rows with the columns of verl's data files; the prompt of row k is k, repeated `length` times."""
    return [
        {
            "data_source": "made",
            "prompt": [user(f"{k}" * length)],
            "reward_model": {"style": "rule", "ground_truth": "Z"},
            "extra_info": {"index": k},
        }
        for k in range(count)
    ]
