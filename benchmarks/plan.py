"""The memory of real runs beside what `purerl plan` predicts for them.

    python -m benchmarks.plan                    all configurations
    python -m benchmarks.plan lora sharded       some of them

Each configuration is a run of `purerl.train` on the CPU, with a Llama of random weights, 4 prompts, and completions of
the full length. Everything is in float32. The measured peak is that of live tensor bytes in the second step
(`purerl.system.tensor_tracker`): sampling, scoring, training and the transfer of weights, of the rank that needs most.
The predicted peak is that of the plan of the same configuration, made before the run. States are parameters, gradients
and moments of all models, and the parameters of the generator, on one rank.

The bound is a difference of 10 %. Results on a machine with two cores, torch 2.13 and transformers 5.23:

    configuration               states   predicted    measured   ratio
    full                       300 MiB     542 MiB     542 MiB   1.000
    critic and reference       576 MiB     818 MiB     819 MiB   1.000
    lora                       339 MiB     741 MiB     715 MiB   1.037
    recompute, vocabulary      720 MiB     970 MiB     968 MiB   1.001
    sharded                    288 MiB     576 MiB     588 MiB   0.980

They are older than generators that share the weights of the trainer, and than gradients that are freed after a step.
The peak is in training; in the sharded run, whose layers are recomputed, it is in the transfer of weights.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from torch import distributed as dist
from torch import multiprocessing

import purerl
from purerl.algos import grpo, ppo
from purerl.algos.modifiers import kl_loss
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.planning import plan_memory
from purerl.planning.plan import MemoryPlan
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.settings import Rollout
from purerl.system.tensor_tracker import MemoryTracker

PROMPT, NEW, PROMPTS, SAMPLES, BOUND = 64, 96, 4, 4, 0.1
_MIB = 2**20


def reward(completion: str, example: Mapping[str, Any]) -> float:
    """A reward that differs between rows."""
    return completion.count("0") / NEW


def write_model(folder: Path, *, vocab_size: int = 4096, num_layers: int = 8) -> Path:
    """Write a Llama with 16 million parameters, or with more tokens or layers. Only a few tokens have a text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=384,
        num_hidden_layers=num_layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=1024,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    # In the files the weights are in bfloat16, so that loading copies them; otherwise parts of the file would count.
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def write_data(path: Path) -> Path:
    """Write prompts of `PROMPT` tokens."""
    rows = ({"prompt": f"{k:0{PROMPT}d}", "answer": str(k)} for k in range(64))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def configurations(root: Path) -> dict[str, Callable[[], RunConfig]]:
    """The configuration of each run; its model and its data are written when it is called."""

    def base(algorithm: Any = grpo.Config(), settings: Mapping[str, Any] | None = None, **model: int) -> RunConfig:  # noqa: B008
        return RunConfig(
            name="plan",
            model=str(write_model(root / "model", **model)),
            data=Data(files=(str(write_data(root / "data.jsonl")),), max_prompt_tokens=PROMPT),
            algorithm=algorithm,
            max_steps=3,
            batch_size=PROMPTS,
            num_minibatches=1,
            ppo_epochs=2,
            rollout=Rollout(samples_per_prompt=SAMPLES, max_tokens=NEW),
            rewards=("benchmarks.plan:reward",),
            generator=generator.Config(device="cpu"),
            trainer=trainer.Config(lr=1e-5, device="cpu", max_tokens_per_microbatch=1024, **(settings or {})),
            num_threads=1,
        )

    with_reference = Composition(ppo.Config(), (kl_loss.Config(coef=0.01),))
    sharded = {"mesh": Mesh(shard=2)}
    return {
        "full": base,
        "critic and reference": lambda: base(with_reference),
        "lora": lambda: base(settings={"lora": Lora(rank=16)}, num_layers=16),
        "recompute, vocabulary": lambda: base(settings={"recompute": "layers"}, vocab_size=32768),
        "bfloat16 autocast": lambda: base(settings={"mixed_precision": "bfloat16"}),
        "sharded": lambda: base(settings=sharded | {"recompute": "layers"}, vocab_size=8192, num_layers=12),
    }


class SecondStep:
    """Records the peak of the second step. The loop calls it before each step, on every rank."""

    def __init__(self, tracker: MemoryTracker) -> None:
        self.tracker, self.calls, self.context = tracker, 0, None

    def __call__(self) -> bool:
        self.calls += 1
        if self.context is not None:
            self.context.__exit__(None, None, None)
            self.context = None
        if self.calls == 2:
            self.context = self.tracker.phase("step")
            self.context.__enter__()
        return False


def measure(config: RunConfig, directory: Path) -> int:
    """Do the run, and return its peak in bytes."""
    tracker = MemoryTracker()
    with Path(os.devnull).open("w") as null, redirect_stdout(null), tracker:
        purerl.train(config, directory=directory, should_stop=SecondStep(tracker))
    return tracker.peak("step")


def _measure_rank(rank: int, ranks: int, port: int, config: RunConfig, directory: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    peak = measure(config, directory)
    (directory / f"peak-{rank}").write_text(str(peak))
    dist.destroy_process_group()


def measure_on(ranks: int, config: RunConfig, directory: Path) -> int:
    """Do the run on several ranks of this computer, and return the largest peak of one of them."""
    if ranks == 1:
        return measure(config, directory)
    port = 20000 + os.getpid() % 20000
    multiprocessing.spawn(_measure_rank, args=(ranks, port, config, directory), nprocs=ranks)
    return max(int((directory / f"peak-{rank}").read_text()) for rank in range(ranks))


def states_of(plan: MemoryPlan) -> int:
    """Bytes that exist in every phase."""
    return sum(min(sizes.get(phase, 0) for phase in plan.phases) for sizes in plan.device.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted and measured memory.")
    parser.add_argument("names", nargs="*", help="configurations")
    chosen = parser.parse_args().names
    print(f"{'configuration':<24}{'states':>10}{'predicted':>12}{'measured':>12}{'ratio':>8}   phase, seconds to plan")
    for name in configurations(Path()):
        if chosen and name not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            config = configurations(Path(folder))[name]()
            ranks = config.trainer.mesh.shard
            start = time.perf_counter()
            plan = plan_memory(config, ranks=ranks)
            seconds = time.perf_counter() - start
            (Path(folder) / "run").mkdir()
            measured = measure_on(ranks, evolve(config, trainer=config.trainer), Path(folder) / "run")
        states, ratio = states_of(plan) / _MIB, plan.peak / measured
        sizes = f"{states:>6.0f} MiB{plan.peak / _MIB:>8.0f} MiB{measured / _MIB:>8.0f} MiB{ratio:>8.3f}"
        print(f"{name:<24}{sizes}   {plan.peak_phase}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
