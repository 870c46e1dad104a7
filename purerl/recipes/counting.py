"""Counting colored squares in images, on the CPU of a laptop.

A problem is an image of 24 x 16 pixels with up to six squares, red or blue, and a question such as ``red?``. The reward
is 1 if the answer is the number of squares of this color, and 0 if not. A small Qwen2-VL model with random weights is
first trained by SFT on demonstrations, until it solves 60 % of its problems (`initial_run`). The RL phase then uses
only the rewards. Without the image, the best answer is right in 33 % of the problems (240/729).

There are 729 arrangements of squares in the six cells of an image. Held-out problems have arrangements that no training
problem has. The recipe needs Pillow, the extra ``images``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

from purerl.algos import dapo, sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import VISION_TOKENS, word_tokenizer, write_small_vision_model
from purerl.config.schema import RunConfig, StopWhen
from purerl.evaluation.settings import Evaluate
from purerl.recipes.tiny_task import BETAS, COSINE, tiny_task, write_parquet
from purerl.rollouts.settings import Rollout

__all__ = ["counting", "picture", "prepare"]

_EXACT = "purerl.rewards.exact:exact_match"
_ANSWER_TOKENS = 2  # a digit and the end
_COLORS = {"red": (220, 30, 30), "blue": (40, 70, 220)}
_COLUMNS, _ROWS = 3, 2  # cells of an image
_CELL, _SIDE = 8, 5  # pixels of a cell, and of the square in it
_HELD_OUT = 129  # arrangements
_NUM_PROBLEMS = {"train": 2000, "held_out": 256}

_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.content is string -%}{{ message.content }}{%- else -%}
{%- for part in message.content -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
{%- endfor -%}
{%- endif -%}
{%- if message.role == 'assistant' -%}<eos>{%- endif -%}
{%- endfor -%}"""


def counting(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """DAPO on counting squares of a color, after a short SFT phase; 60 steps by default."""
    return tiny_task(
        name="counting",
        prepare_data="purerl.recipes.counting:prepare",
        initial_run=dict(
            name="counting, initial run",
            data="{run}/prepared/train.parquet",
            algorithm=sft.Config(),
            max_steps=300,
            batch_size=64,
            trainer=trainer.Config(lr=3e-3, betas=BETAS, max_tokens_per_microbatch=4096),
            evaluate=_evaluation("{run}/prepared/train.parquet", every=10),
            stop_when=StopWhen(metric="eval/accuracy", at_least=0.6),
        ),
        data="{run}/prepared/train.parquet",
        algorithm=dapo.Config(),
        rewards=(_EXACT,),
        steps=60,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=32,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=_ANSWER_TOKENS),
        generator=generator.Config(max_num_seqs=256),
        trainer=trainer.Config(lr=1e-3, max_grad_norm=0.3, max_tokens_per_microbatch=2048, **COSINE),
        evaluate=_evaluation("{run}/prepared/held_out.parquet", every=10),
    )


def _evaluation(data: str, every: int) -> Evaluate:
    return Evaluate(data=data, every=every, max_examples=256, max_tokens=_ANSWER_TOKENS)


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, and a model with random weights, into `folder`."""
    rng = random.Random(seed)
    arrangements = [*product((None, *_COLORS), repeat=_COLUMNS * _ROWS)]
    rng.shuffle(arrangements)
    sets = {"train": arrangements[_HELD_OUT:], "held_out": arrangements[:_HELD_OUT]}
    for name, size in _NUM_PROBLEMS.items():
        write_parquet(folder / f"{name}.parquet", [_problem(rng.choice(sets[name]), rng) for _ in range(size)])
    tokenizer = word_tokenizer([*"0123456?", *_COLORS, *VISION_TOKENS], pattern="<[^>]*>|[a-z]+|.")
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION_TOKENS)})
    tokenizer.chat_template = _TEMPLATE
    write_small_vision_model(folder / "model", tokenizer, seed=seed, max_length=32)


def _problem(cells: Sequence[str | None], rng: random.Random) -> dict[str, Any]:
    """A question about an image with squares of the colors `cells`; None is an empty cell."""
    color = rng.choice([*_COLORS])
    answer = str(cells.count(color))
    return {
        "prompt": [{"role": "user", "content": f"<image>{color}?"}],
        "images": [{"bytes": picture(cells, rng)}],
        "completion": [{"role": "assistant", "content": answer}],
        "answer": answer,
    }


def picture(cells: Sequence[str | None], rng: random.Random) -> bytes:
    """A PNG file with a square in each of `cells` that has a color, at a random place in its cell."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (_COLUMNS * _CELL, _ROWS * _CELL), "white")
    draw = ImageDraw.Draw(image)
    for number, color in enumerate(cells):
        if color is not None:
            x, y = (cell * _CELL + rng.randrange(_CELL - _SIDE + 1) for cell in (number % _COLUMNS, number // _COLUMNS))
            draw.rectangle((x, y, x + _SIDE - 1, y + _SIDE - 1), fill=_COLORS[color])
    image.save(file := BytesIO(), format="PNG")
    return file.getvalue()
