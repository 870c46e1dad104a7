"""KTO on labeled answers, on the CPU of a laptop: a model that omits parentheses learns from single answers.

The task is that of `postfix_sft`. The model has first learned from demonstrations of which three quarters have no
parentheses (`initial_run`), so it answers both ways. Each training problem has one answer: for one half of the problems
the correct one, with the label true, for the other half an incorrect one, with the label false. These are the answers
of the pairs of `postfix_dpo`, one of each pair. The reference is the model at the start.

Reasons for the settings:

    beta 0.3            that of `postfix_dpo`; 0.1 made no difference that 256 sampled answers would show
    128 answers         as many as in the 64 pairs of a step of `postfix_dpo`
    learning rate 5e-4  with 1e-4, fewer answers were correct in the end: see docs/tutorials/kto.md
"""

from __future__ import annotations

from purerl.algos import kto
from purerl.config.schema import RunConfig
from purerl.recipes.postfix_sft import from_demonstrations, training

__all__ = ["postfix_kto"]


def postfix_kto(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """KTO on answers that are labeled as correct or incorrect; 20 steps by default."""
    return from_demonstrations(
        name="postfix_kto",
        data="{run}/prepared/labeled.parquet",
        algorithm=kto.Config(beta=0.3),
        steps=20,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=128,
        trainer=training(lr=5e-4),
    )
