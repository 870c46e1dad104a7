"""The loss after 200 steps with bfloat16 weights, beside float32 weights, for each rule that stores updates.

    python benchmarks/weight_rounding.py                    three seeds, two learning rates: eight minutes of CPU

A model of 150,000 weights is trained on additions in float32 for 200 steps. From there it is trained for 200 steps in
each way. The table has, as means over the seeds,

    loss     of 1,000 other additions, in nats per token, with the weights that are stored, computed in float32
    way      how far the weights went: the change of all weights, projected on that of float32 weights, as a fraction
    lost     mean of the metric `update_lost`
    bytes    of a weight, its gradient and the state of AdamW
    seconds  of CPU for a step

`to nearest` is plain AdamW with bfloat16 weights, which purerl had until 2026-11.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tensordict import TensorDict

from purerl.algos import sft
from purerl.algos.algebra import prepare_step
from purerl.backends.hf.trainer import Config, build
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.training.rounding import Rounding
from purerl.batch import collate
from purerl.recipes.addition import character_tokenizer, write_small_model
from purerl.settings import Model

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("float32", {}),
    "float32, autocast": ("float32", {"mixed_precision": "bfloat16"}),
    "compensated": ("bfloat16", {"rounding": "compensated"}),
    "stochastic": ("bfloat16", {"rounding": "stochastic"}),
    "to nearest": ("bfloat16", {}),
}
STEPS, ROWS = 200, 64
(_OBJECTIVE,) = sft.algorithm().objectives


def main(rates: Sequence[float], seeds: Sequence[int]) -> None:
    print(f"{'lr':>7}  {'weights':<20}{'loss':>8}{'way':>8}{'lost':>8}{'bytes':>7}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        starts = [_pretrained(Path(folder) / str(seed), seed) for seed in seeds]
        for rate in rates:
            expected = [_trained("float32", path, rate, seed) for path, seed in zip(starts, seeds, strict=True)]
            for rule in RULES:
                results = [
                    _result(*(each if rule == "float32" else _trained(rule, path, rate, seed)), path, each[0])
                    for path, seed, each in zip(starts, seeds, expected, strict=True)
                ]
                loss, way, lost, size, seconds = (mean(column) for column in zip(*results, strict=True))
                print(f"{rate:7.0e}  {rule:<20}{loss:8.4f}{way:8.3f}{lost:8.3f}{size:7.1f}{seconds:9.3f}")


def _pretrained(folder: Path, seed: int) -> str:
    (folder / "model").mkdir(parents=True)
    tokenizer = character_tokenizer()
    write_small_model(folder / "model", tokenizer, seed=seed, max_length=32, initializer_range=0.06)
    trainer = _open(str(folder / "model"), "float32", lr=1e-3, max_grad_norm=0.3)
    for batch in _batches(seed, 200):
        _step(trainer, batch)
    trainer.export(folder / "start")
    tokenizer.save_pretrained(folder / "start")
    return str(folder / "start")


def _open(path: str, dtype: str, **settings: Any) -> HFTrainer:
    config = Config(**{"max_tokens_per_microbatch": 4096, **settings})
    return build(config, model=Model(path, dtype=dtype), role="policy", outputs=("logp",), updates=1000, seed=0)


def _batches(seed: int, count: int) -> Iterator[TensorDict]:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield _batch(torch.randint(0, 100, (ROWS, 2), generator=draw).tolist())


def _batch(pairs: Sequence[Sequence[int]]) -> TensorDict:
    encode = partial(character_tokenizer().encode, add_special_tokens=False)
    rows = []
    for index, (a, b) in enumerate(pairs):
        tokens = encode(f"{a:02d}+{b:02d}={f'{a + b:03d}'[::-1]}")
        action = [position >= len(tokens) - 3 for position in range(len(tokens))]
        rows.append({"tokens": tokens, "action": action, "mask": action, "group": index, "row": index})
    batch = collate(rows)
    return batch.set("temperature", torch.ones(len(batch)))


def _step(trainer: HFTrainer, batch: TensorDict) -> dict[str, float]:
    step, counts = prepare_step(_OBJECTIVE, batch)
    return {name: float(m.total / m.weight) for name, m in trainer.step(step, _OBJECTIVE, counts).items() if m.weight}


def _trained(rule: str, path: str, rate: float, seed: int) -> tuple[dict[str, torch.Tensor], float, float, float]:
    """The weights after all steps, the share of updates that was lost, bytes of each weight, and seconds of a step."""
    dtype, settings = RULES[rule]
    trainer = _open(path, dtype, lr=rate, betas=(0.9, 0.99), **settings)
    if rule == "to nearest":
        trainer.optimizer = torch.optim.AdamW(
            [*trainer.trained.values()], betas=(0.9, 0.99), weight_decay=0, fused=True
        )
        trainer.rounding = Rounding({}, 0, keeps=False)
    start = time.process_time()
    lost = [_step(trainer, batch).get("update_lost", float("nan")) for batch in _batches(1000 + seed, STEPS)]
    seconds = (time.process_time() - start) / STEPS
    states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
    stored = [*trainer.trained.values(), *trainer.trained.values(), *states]  # gradients have the size of weights
    size = sum(x.numel() * x.element_size() for x in stored) / sum(p.numel() for p in trainer.trained.values())
    return {name: p.detach().float() for name, p in trainer.trained.items()}, mean(lost), size, seconds


def _result(
    weights: dict[str, torch.Tensor], lost: float, size: float, seconds: float, path: str, expected: dict[str, Any]
) -> tuple[float, float, float, float, float]:
    trainer = _open(path, "float32")
    before = {name: p.detach().clone() for name, p in trainer.trained.items()}
    dot = sum(float(((weights[n] - before[n]) * (expected[n] - before[n])).sum()) for n in weights)
    square = sum(float((expected[n] - before[n]).square().sum()) for n in weights)
    for name, parameter in trainer.trained.items():
        parameter.data.copy_(weights[name])
    draw = torch.Generator().manual_seed(7)
    batch = _batch(torch.randint(0, 100, (1000, 2), generator=draw).tolist())
    loss = -float(trainer.score(batch, ["logp"])["logp"][batch["mask"]].mean())
    return loss, dot / square, lost, size, seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-5, 1e-4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    main(arguments.rates, arguments.seeds)
