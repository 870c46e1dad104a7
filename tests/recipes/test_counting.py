"""The recipe `counting` learns to count squares in images, and only from its rewards."""

from __future__ import annotations

import json
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from PIL import Image
from transformers import AutoTokenizer

from purerl.algos import grpo
from purerl.loop.train import Summary, train
from purerl.recipes.counting import counting, picture, prepare
from purerl.store.rollouts import read_batch, read_rollouts

from .controls import train_with_shuffled_rewards
from .made import one_step, records

RED, BLUE, WHITE = (220, 30, 30), (40, 70, 220), (255, 255, 255)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(counting(), directory=tmp_path_factory.mktemp("counting") / "run")


@pytest.mark.slow
@pytest.mark.training
def test_rl_teaches_the_model_to_count(run: Summary) -> None:
    assert run.before["eval/accuracy"] < 0.75
    assert run.after["eval/accuracy"] > 0.85


@pytest.mark.slow
@pytest.mark.training
def test_shuffled_rewards_do_not(run: Summary, tmp_path: Path) -> None:
    control = train_with_shuffled_rewards(counting(max_steps=30), run, tmp_path / "run")
    assert control.before == run.before
    assert control.after["eval/accuracy"] <= control.before["eval/accuracy"]
    assert records(run.directory)[30]["eval/accuracy"] > control.before["eval/accuracy"] + 0.05


def test_a_step_of_problems(tmp_path: Path) -> None:
    """GRPO keeps all completions, even if none is rewarded."""
    config = one_step(counting(max_steps=1), algorithm=grpo.Config(), batch_size=4, max_examples=4)
    summary = train(config, directory=tmp_path / "run")
    rows, batch = (read(summary.directory / "rollouts", 1) for read in (read_rollouts, read_batch))
    assert len(rows) == 16
    assert ((batch["image"] > 0).sum(-1) == 6).all(), "a token for each cell"
    last = records(summary.directory)[-1]
    assert last["reward/valid_fraction"] == 1
    assert last["mismatch/logp_abs_diff_max"] < 1e-4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=1)
    return folder


def problems(folder: Path, name: str) -> list[dict[str, Any]]:
    return parquet.read_table(folder / f"{name}.parquet").to_pylist()


def colors_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The color of each cell, found in its pixels."""
    image = Image.open(BytesIO(row["images"][0]["bytes"])).convert("RGB")
    cells = [image.crop((x, y, x + 8, y + 8)) for y in (0, 8) for x in (0, 8, 16)]
    counts = [Counter(cell.get_flattened_data()) for cell in cells]
    assert all(count in ({WHITE: 64}, {WHITE: 39, RED: 25}, {WHITE: 39, BLUE: 25}) for count in counts)
    return tuple(next((color for color in count if color != WHITE), None) for count in counts)


def test_answers_are_the_numbers_of_squares(prepared: Path) -> None:
    for row in problems(prepared, "held_out"):
        [message] = row["prompt"]
        color = {"<image>red?": RED, "<image>blue?": BLUE}[message["content"]]
        assert row["answer"] == row["completion"][0]["content"] == str(colors_of(row).count(color))


def test_held_out_arrangements_are_not_in_the_training_set(prepared: Path) -> None:
    trained, held_out = ({colors_of(row) for row in problems(prepared, name)} for name in ("train", "held_out"))
    assert len(trained) > 500
    assert len(held_out) > 50
    assert not trained & held_out


def test_a_square_may_be_anywhere_in_its_cell() -> None:
    import random

    rng = random.Random(0)
    assert len({picture(["red", *[None] * 5], rng) for _ in range(200)}) == 16


def test_every_text_has_tokens_of_its_own(prepared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepared / "model")
    for row in problems(prepared, "held_out")[:50]:
        conversation = json.loads(json.dumps([*row["prompt"], *row["completion"]]))
        conversation[0]["content"] = [{"type": "image"}, {"type": "text", "text": conversation[0]["content"][7:]}]
        tokens = tokenizer(tokenizer.apply_chat_template(conversation, tokenize=False))["input_ids"]
        assert tokenizer.pad_token_id not in tokens
        assert len(tokens) == 7
        assert len(tokenizer(row["answer"])["input_ids"]) + 1 == counting().rollout.max_tokens
