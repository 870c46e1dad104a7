"""The main memory of a whole run on the CPU beside what `purerl plan` predicts for it.

    python -m benchmarks.resident_memory MODEL DATA

MODEL is a directory with a language model, and DATA a file of prompts. Each configuration is a run of two steps of the
recipe gsm8k by the command line: AdamW's moments exist from the second step on. The largest resident size of its
process is measured (`purerl.system.peak_memory`), so libraries and memory that is kept after tensors were freed count
too. The bound is a difference of 15 %. The results for SmolLM2-135M-Instruct in float32 are in
`results/resident_memory.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from purerl.planning import plan_memory
from purerl.runs import run_config
from purerl.system.memory_use import GIB

BOUND = 0.15

SHARED = (
    "data.max_prompt_tokens=128", "batch_size=4", "num_minibatches=1", "rollout.samples_per_prompt=4",
    "rollout.max_tokens=64", "max_steps=2", "evaluate=", "num_threads=1", "trainer.device=cpu", "generator.device=cpu",
)  # fmt: skip
CONFIGURATIONS = {
    "float32": ("trainer.max_tokens_per_microbatch=2048", "trainer.mixed_precision=off"),
    "small micro-batches": ("trainer.max_tokens_per_microbatch=512", "trainer.mixed_precision=off"),
    "LoRA": ("trainer.max_tokens_per_microbatch=2048", "trainer.mixed_precision=off", "trainer.lora.rank=32"),
    "PPO": (
        "trainer.max_tokens_per_microbatch=2048",
        "trainer.mixed_precision=off",
        "algorithm.kind=ppo",
        "algorithm.kl_loss=0.01",
    ),
}


def measure(settings: list[str]) -> int:
    """Do the run, and return the largest resident size of its process in bytes."""
    options = [option for setting in settings for option in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "purerl_cli", "train", "gsm8k", *options, "--directory", f"{folder}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return round(summary["measured"]["peak_process_memory"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted and measured main memory.")
    parser.add_argument("model", help="a directory with a language model")
    parser.add_argument("data", help="a file of prompts")
    parser.add_argument("names", nargs="*", help="configurations; all if none is named")
    given = parser.parse_args()
    for name in given.names or CONFIGURATIONS:
        settings = [f"model={given.model}", f"data={given.data}", *SHARED, *CONFIGURATIONS[name]]
        planned, measured = plan_memory(run_config("gsm8k", settings)).peak, measure(settings)
        sizes = f"planned {planned / GIB:.2f} GiB, measured {measured / GIB:.2f} GiB"
        print(f"{name:<24}{sizes}, ratio {planned / measured:.2f} (1 +- {BOUND})", flush=True)


if __name__ == "__main__":
    main()
