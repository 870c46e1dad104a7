"""What digests of checkpoints cost: the time to write a checkpoint with and without them, side by side in one run.

    python -m benchmarks.checkpoint_digest [--repetitions 7]

Two models: that of the default recipe, in a run with its settings, and one with 100 million parameters, in a run whose
steps have only 16 short completions. Steps of a real run are longer, so the share of the digests is smaller there. Each
checkpoint has the weights and both moments of AdamW, in float32. Checkpoints with and without digests are written in
turns. Times are CPU seconds with one thread, and the lowest of each counts. So neither the disk nor other processes
matter. "verify" is what `purerl train` does before it resumes: it reads all files of the checkpoint.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from attrs import asdict, evolve

from benchmarks.loop_overhead import config as tiny_config
from benchmarks.steps import opened_steps
from purerl.config.schema import RunConfig
from purerl.recipes.addition import addition
from purerl.settings import Model
from purerl.store.checkpoint import newest
from purerl.store.commit import commit

EVERY = 20  # steps between checkpoints
BOUND = 0.02
STEPS = 3


class _NoHash:
    """A hash that hashes nothing."""

    def update(self, data: Any) -> None: ...

    def hexdigest(self) -> str:
        return "0" * 64


def default_run(folder: Path) -> RunConfig:
    """The default recipe, from a model with random weights."""
    return evolve(addition(), initial_run=None, model=Model("{run}/prepared/model"), evaluate=None, stop_when=None)


def large_run(folder: Path) -> RunConfig:
    """A run of a model with 100 million parameters, with short steps."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = tiny_config(folder, STEPS)
    shape = {"hidden_size": 768, "num_hidden_layers": 14, "num_attention_heads": 12, "num_key_value_heads": 12}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=64, intermediate_size=2048, eos_token_id=None, **shape))
    model.save_pretrained(folder / "model")
    rollout = evolve(settings.rollout, samples_per_prompt=4)
    return evolve(settings, batch_size=4, rollout=rollout)


@contextmanager
def without_digests() -> Iterator[None]:
    """Hash nothing inside the block."""
    with mock.patch("purerl.system.digests.sha256", _NoHash):
        yield


def seconds(action: Callable[[], object]) -> float:
    """The CPU seconds of `action`."""
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(settings: RunConfig, folder: Path, repetitions: int) -> Mapping[str, float]:
    """Parameters, bytes of a checkpoint, and CPU seconds: of a step, of saving with and without digests, of loading."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    checkpoints = folder / "checkpoints"
    with opened_steps(settings, folder / "run", {}) as opened:
        steps = [seconds(opened.step) for _ in range(STEPS)]
        trainers, saved = opened.run.engines.trainers, asdict(opened.state, recurse=False)

        def save() -> None:
            commit(checkpoints, STEPS, saved, trainers, keep=1)

        for _ in range(repetitions):
            with without_digests():
                times["without"].append(seconds(save))
            times["with"].append(seconds(save))
        parameters = sum(weight.numel() for _, weight in trainers["policy"].weights())
    verify = min(seconds(lambda: newest(checkpoints)) for _ in range(2))
    files = [file for file in checkpoints.rglob("*") if file.is_file()]
    sizes = {"parameters": parameters, "bytes": sum(file.stat().st_size for file in files)}
    return {**sizes, "step": min(steps), "verify": verify} | {name: min(each) for name, each in times.items()}


def main() -> None:
    """Print a line for each model. Exit with status 1 if digests cost more than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7, help="checkpoints with digests, and without them")
    torch.set_num_threads(1)
    repetitions, shares = parser.parse_args().repetitions, []
    for name, make in (("default recipe", default_run), ("100 M parameters", large_run)):
        with tempfile.TemporaryDirectory() as folder:
            values = measure(make(Path(folder)), Path(folder), repetitions)
        shares.append((values["with"] - values["without"]) / (EVERY * values["step"] + values["without"]))
        print(
            f"{name}: {values['parameters'] / 1e6:.1f} M parameters, checkpoint of {values['bytes'] / 1e6:.1f} MB\n"
            f"  save without digests {values['without']:.4f} s, with digests {values['with']:.4f} s, "
            f"verify before loading {values['verify']:.4f} s\n"
            f"  shortest step {values['step']:.3f} s: digests cost {100 * shares[-1]:.3f} % of a run with a checkpoint "
            f"every {EVERY} steps (bound: {100 * BOUND:.0f} %)"
        )
    raise SystemExit(max(shares) > BOUND)


if __name__ == "__main__":
    main()
