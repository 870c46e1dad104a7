"""A small model with random weights, data for the recipes, and short runs of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.hf.tiny_models import write_small_model
from purerl.config.schema import RunConfig
from purerl.data.convert import convert
from purerl.data.files import read_table
from purerl.loop import train as loop
from purerl.loop.train import Summary
from purerl.recipes import resolve
from purerl.settings import Model
from tests.data.made import CHATML, assistant, tokenizer, user, write
from tests.data.test_convert import PUBLISHED

PROBLEMS = [  # in the format of GSM8K, written for these tests
    {"question": "Ann has 2 pens and buys 3. How many?", "answer": "2 + 3 = <<2+3=5>>5 pens.\n#### 5"},
    {"question": "Four boxes of 2 eggs?", "answer": "4 * 2 = <<4*2=8>>8 eggs.\n#### 8"},
    {"question": "Zoe had 9 apples and ate 8.", "answer": "9 - 8 = <<9-8=1>>1 apple.\n#### 1"},
    {"question": "Half of 14 cows?", "answer": "14 / 2 = <<14/2=7>>7 cows.\n#### 7"},
    {"question": "6 birds, 4 fly away.", "answer": "6 - 4 = <<6-4=2>>2 birds.\n#### 2"},
    {"question": "Three trays of 3 buns?", "answer": "3 * 3 = <<3*3=9>>9 buns.\n#### 9"},
    {"question": "Tom earns $2 a day; in 2 days?", "answer": "2 * 2 = <<2*2=4>>4 dollars.\n#### 4"},
    {"question": "None of 5 came, then 3 did.", "answer": "0 + 3 = <<0+3=3>>3.\n#### 3"},
]


def write_model(folder: Path, template: str = CHATML, words: Sequence[str] = (), *, head_dim: int = 16) -> str:
    """Write a Qwen3 model with 100,000 random parameters and a chat template. Returns its path.

    Its tokens are characters, and `words`.
    """
    chat_tokenizer = tokenizer(template)
    chat_tokenizer.add_tokens([*words])
    write_small_model(folder, chat_tokenizer, seed=0, max_length=2048, head_dim=head_dim, intermediate_size=128)
    return str(folder)


def write_problems(folder: Path) -> str:
    """Write `PROBLEMS` with `purerl data convert gsm8k`. Returns the path of the file."""
    convert("gsm8k", write(folder / "source.jsonl", PROBLEMS), str(folder / "problems.parquet"))
    return str(folder / "problems.parquet")


needs_published_problems = pytest.mark.skipif(
    not (PUBLISHED / "gsm8k").is_dir(), reason="GSM8K is missing: set PURERL_TEST_DATA to its directory"
)


def write_published_problems(folder: Path) -> None:
    """Write train.parquet with 12 published problems of GSM8K, and test.parquet with 4, into `folder`."""
    for split, count in (("train", 12), ("test", 4)):
        with (PUBLISHED / "gsm8k" / f"{split}.jsonl").open(encoding="utf-8") as file:
            (folder / f"{split}.jsonl").write_text("".join(islice(file, count)), encoding="utf-8")
        convert("gsm8k", str(folder / f"{split}.jsonl"), str(folder / f"{split}.parquet"))


def write_conversations(folder: Path) -> str:
    """Write conversations of two turns: a problem with its number, and "Sure?" with "Yes". Returns their path."""
    rows = read_table(write_problems(folder)).to_pylist()
    answers = [assistant(f"#### {row['reward_model']['ground_truth']}") for row in rows]
    conversations = [
        {"messages": [*row["prompt"], answer, user("Sure?"), assistant("Yes")]}
        for row, answer in zip(rows, answers, strict=True)
    ]
    return write(folder / "conversations.jsonl", conversations)


def train_chat(folder: Path) -> Summary:
    """Run the recipe `chat` on these conversations. The trained model answers with a number."""
    return train(
        "chat", folder / "chat", f"model={write_model(folder / 'model')}", f"data={write_conversations(folder)}",
        "max_steps=40", "batch_size=4", "trainer.lr=4e-3", "trainer.warmup_steps=5",
        "trainer.mixed_precision=off", "num_threads=1",
    )  # fmt: skip


def train(recipe: str, directory: Path, *settings: str) -> Summary:
    """The run of `recipe` with `settings`, as `purerl train` does it."""
    return loop.train(resolve(recipe, settings), directory=directory)


def one_step(config: RunConfig, *, algorithm: Any, batch_size: int, **evaluate: int) -> RunConfig:
    """One step of `config`, which makes its own data, with 4 samples per prompt of the untrained model."""
    return evolve(
        config,
        initial_run=None,
        model=Model("{run}/prepared/model"),
        algorithm=algorithm,
        batch_size=batch_size,
        num_minibatches=1,
        rollout=evolve(config.rollout, samples_per_prompt=4),
        evaluate=evolve(config.evaluate, **evaluate),
    )


def records(directory: Path) -> list[dict[str, float]]:
    """The metrics of a run, one record per step."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
