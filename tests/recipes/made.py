"""What the shipped recipes are tried on: a small model that knows nothing, and problems in GSM8K's format."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from purerl.backends.hf.model import no_progress_bars
from purerl.data.convert import convert
from purerl.data.files import read_table
from purerl.loop.train import Summary
from purerl_cli.main import app
from tests.data.made import CHATML, assistant, tokenizer, user, write

PROBLEMS = [  # written for these tests
    {"question": "Ann has 2 pens and buys 3. How many?", "answer": "2 + 3 = <<2+3=5>>5 pens.\n#### 5"},
    {"question": "Four boxes of 2 eggs?", "answer": "4 * 2 = <<4*2=8>>8 eggs.\n#### 8"},
    {"question": "Zoe had 9 apples and ate 8.", "answer": "9 - 8 = <<9-8=1>>1 apple.\n#### 1"},
    {"question": "Half of 14 cows?", "answer": "14 / 2 = <<14/2=7>>7 cows.\n#### 7"},
    {"question": "6 birds, 4 fly away.", "answer": "6 - 4 = <<6-4=2>>2 birds.\n#### 2"},
    {"question": "Three trays of 3 buns?", "answer": "3 * 3 = <<3*3=9>>9 buns.\n#### 9"},
    {"question": "Tom earns $2 a day; in 2 days?", "answer": "2 * 2 = <<2*2=4>>4 dollars.\n#### 4"},
    {"question": "None of 5 came, then 3 did.", "answer": "0 + 3 = <<0+3=3>>3.\n#### 3"},
]


def write_model(folder: Path) -> str:
    """A Qwen3 of 100,000 random parameters, with a chat template; its path."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    words = tokenizer(CHATML)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=len(words),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=128,
            max_position_embeddings=2048,
            eos_token_id=words.eos_token_id,
            pad_token_id=words.pad_token_id,
            bos_token_id=None,
        )
        with no_progress_bars():
            Qwen3ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def write_problems(folder: Path) -> str:
    """`PROBLEMS` as `purerl data convert gsm8k` makes them a file; its path."""
    convert("gsm8k", write(folder / "source.jsonl", PROBLEMS), str(folder / "problems.parquet"))
    return str(folder / "problems.parquet")


def write_talks(folder: Path) -> str:
    """Each problem answered by a number, the question whether that is sure, and the answer to it; the file's path."""
    rows = read_table(write_problems(folder)).to_pylist()
    answers = [assistant(f"#### {row['reward_model']['ground_truth']}") for row in rows]
    talks = [
        {"messages": [*row["prompt"], answer, user("Sure?"), assistant("Yes")]}
        for row, answer in zip(rows, answers, strict=True)
    ]
    return write(folder / "talks.jsonl", talks)


def teach(folder: Path) -> Summary:
    """The recipe `chat` on these conversations: afterwards the model answers with some number."""
    return train(
        "chat", folder / "chat", f"model={write_model(folder / 'model')}", f"data={write_talks(folder)}",
        "max_steps=40", "batch_size=4", "trainer.lr=4e-3", "trainer.warmup_steps=5", "trainer.mixed_precision=off",
        "num_threads=1",
    )  # fmt: skip


def train(recipe: str, directory: Path, *settings: str) -> Summary:
    """What `purerl train` makes of `recipe` with `settings`."""
    options = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(app, ["train", recipe, "--directory", str(directory), *options])
    assert result.exit_code == 0, result.output
    done = json.loads((directory / "summary.json").read_text())
    return Summary(directory, **done)


def lines(directory: Path) -> list[dict[str, float]]:
    """The metrics of a run, step by step."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
