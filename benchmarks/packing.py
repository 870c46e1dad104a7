"""One optimizer step of the trainer hf on rows of skewed lengths: padded, in sorted micro-batches, and packed.

    python benchmarks/packing.py [--threads 1] [--rounds 5]

Lengths are exponentially distributed, with a mean of a quarter of the longest row. The step is a policy gradient with
the entropy as a metric: forward pass, backward pass and AdamW. Three ways to read the rows are measured in turn, and
the shortest CPU time of each is printed:

    rectangle  all rows in one micro-batch, padded to the longest
    sorted     micro-batches of rows of similar length with at most 2,048 tokens and padding, which is the default
    packed     trainer.packing: micro-batches of at most 2,048 tokens, without padding

With one thread of an AMD EPYC, packed rows are 3.5 to 4.5 times as fast as the rectangle, and 1.1 (16 rows of up to
2,048 tokens) to 2.1 times (8 rows of up to 512 tokens) as fast as sorted micro-batches. The columns t are the tokens
that the model reads, with padding.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Objective, Term, of_fields, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.backends.hf.model.token_model import TokenModel
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.backends.hf.trainer import Config, build
from purerl.backends.hf.training.engine import HFTrainer
from purerl.settings import Model
from purerl.testing.batches import example_batch

PROMPT, VOCABULARY = 8, 500


class Load(NamedTuple):
    """A workload: sizes of the model, rows, and tokens of the longest row."""

    hidden: int
    layers: int
    rows: int
    longest: int


LOADS = {
    "small model": Load(hidden=128, layers=2, rows=128, longest=128),
    "many rows": Load(hidden=256, layers=4, rows=64, longest=512),
    "few rows": Load(hidden=256, layers=4, rows=8, longest=512),
    "long rows": Load(hidden=256, layers=4, rows=16, longest=2048),
}
WAYS: dict[str, dict[str, Any]] = {
    "rectangle": {"max_tokens_per_microbatch": 1 << 40},
    "sorted": {},
    "packed": {"packing": True},
}


def _policy_gradient(logp: Tensor, advantage: Tensor) -> Tensor:
    return -advantage * logp


OBJECTIVE = Objective(
    "policy",
    ("advantage",),
    ("logp",),
    (Term("policy", of_fields(_policy_gradient, "logp", "advantage"), token_mean),),
    metric_outputs=("entropy",),
)


def lengths_of(load: Load) -> list[int]:
    """Quantiles of an exponential distribution, cut at the longest row and scaled until the mean is a quarter of it."""
    quantiles = -torch.log1p(-(torch.arange(load.rows) + 0.5) / load.rows)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        mean = cut(quantiles * middle).mean()
        low, high = (middle, high) if mean < 1 / 4 else (low, middle)
    return (cut(quantiles * low) * load.longest).round().long().clamp(min=PROMPT + 1).tolist()


def cut(lengths: Tensor) -> Tensor:
    """At most 1, which is the length of the last row."""
    return torch.cat((lengths[:-1].clamp(max=1), torch.ones(1)))


def make_batch(load: Load) -> TensorDict:
    layout = [(0, "." * PROMPT + "a" * (length - PROMPT)) for length in lengths_of(load)]
    batch = example_batch(("advantage", "temperature"), layout, dtype=torch.float32)
    tokens = torch.randint(2, VOCABULARY, batch["tokens"].shape, generator=torch.Generator().manual_seed(0))
    return batch.set("tokens", torch.where(batch["attention_mask"], tokens, 0))


def write_model(load: Load, folder: Path) -> None:
    shape = {"hidden_size": load.hidden, "intermediate_size": 3 * load.hidden, "num_hidden_layers": load.layers}
    tokenizer = word_tokenizer([str(i) for i in range(VOCABULARY)])
    write_small_model(folder, tokenizer, seed=0, max_length=load.longest, **shape)


def make_trainer(path: Path, settings: dict[str, Any]) -> HFTrainer:
    config = Config(lr=1e-6, share_prefixes=False, **settings)
    return build(config, model=Model(str(path)), role="policy", outputs=("logp", "entropy"), updates=1000, seed=0)


def measure(load: Load, rounds: int) -> dict[str, tuple[float, int]]:
    """Seconds of a step, and the tokens that the model reads in it with padding, for each way to read the rows."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(load, Path(folder))
        trainers = {name: make_trainer(Path(folder), settings) for name, settings in WAYS.items()}
    step, counts = prepare_step(OBJECTIVE, make_batch(load))
    read = {name: tokens_read(trainer.module) for name, trainer in trainers.items()}
    best = dict.fromkeys(trainers, float("inf"))
    for turn in range(rounds + 1):
        for name, trainer in trainers.items():
            read[name].clear()
            start = time.process_time()
            trainer.step(step, OBJECTIVE, counts)
            if turn:  # the first one warms up
                best[name] = min(best[name], time.process_time() - start)
    return {name: (best[name], sum(read[name])) for name in best}


def tokens_read(module: TokenModel) -> list[int]:
    """A list to which the number of tokens of every forward pass is added."""
    counts: list[int] = []
    module.decoder.register_forward_pre_hook(
        lambda _, __, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("loads", nargs="*", default=[], metavar="LOAD", help=", ".join(LOADS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ways = "".join(f"{name:>19}" for name in WAYS)
    print(f"{'':<14}{'rows':>5}{'longest':>9}{'mean':>7}   {ways}   packed is faster")
    for name in options.loads or LOADS:
        load = LOADS[name]
        lengths, times = lengths_of(load), measure(load, options.rounds)
        cells = "".join(f"{seconds:8.2f} s {tokens:>6,} t" for seconds, tokens in times.values())
        factors = ", ".join(f"{times[way][0] / times['packed'][0]:.2f} x {way}" for way in ("rectangle", "sorted"))
        mean = sum(lengths) / len(lengths)
        print(f"{name:<14}{load.rows:>5}{load.longest:>9}{mean:>7.0f}   {cells}   {factors}", flush=True)


if __name__ == "__main__":
    main()
