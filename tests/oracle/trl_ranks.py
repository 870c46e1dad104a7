"""Optimizer steps of `PurerlGRPOTrainer` on several ranks: ``python -m tests.oracle.trl_ranks directory``, by torchrun.

Each rank saves the parameters and its micro-batches of each algorithm, as ``directory/rank.pt``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from .trl_run import config, draw_completions, run, size, targets, use_double_precision, write_model

__all__ = ["ALGORITHMS"]

# Denominators of tokens and of rows, a preparation of the whole step, groups that are dropped.
ALGORITHMS = ("grpo@trl", "gspo", "kl_cov", "dapo")


def main(directory: Path) -> None:
    """Take one step with each algorithm. One of the three groups has rows on both ranks."""
    from purerl.adapters.frameworks.trl import trainer_class

    write_model()  # once there is a process group, only its first rank would write it
    torch.set_default_dtype(torch.float64)
    use_double_precision(import_module("trl").GRPOTrainer, pytest.MonkeyPatch())
    sizes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "num_generations": 4}
    rewards = {"reward_funcs": [targets, size], "rollout_func": draw_completions}
    runs = {name: run(trainer_class(), config(**sizes), algorithm=name, **rewards) for name in ALGORITHMS}
    saved = {name: (done.parameters, done.micro_batches) for name, done in runs.items()}
    torch.save(saved, directory / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
