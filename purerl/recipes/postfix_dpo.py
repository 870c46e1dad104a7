"""DPO on preference pairs, on the CPU of a laptop: a model that omits parentheses learns to prefer answers with them.

The task is that of `postfix_sft`. The model has first learned from demonstrations of which three quarters have no
parentheses (`initial_run`), so it answers both ways. A pair has the correct answer and an incorrect one: half of them
without parentheses, half with another mistake. No pair is on a held-out problem. The reference is the model at the
start.

Reasons for the settings:

    beta 0.3            keeps the policy closer to the reference than 0.1 does
    20 steps            with more, the held-out pairs are ranked better and the answers become worse:
                        see docs/tutorials/dpo.md
    learning rate 1e-4  with 3e-4 and beta 0.1, fewer answers were correct after ten steps
"""

from __future__ import annotations

from purerl.algos import dpo
from purerl.config.schema import RunConfig
from purerl.evaluation.settings import Validation
from purerl.recipes.postfix_sft import from_demonstrations, training

__all__ = ["postfix_dpo"]


def postfix_dpo(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """DPO on pairs of a correct and an incorrect answer; 20 steps by default."""
    return from_demonstrations(
        name="postfix_dpo",
        data="{run}/prepared/pairs.parquet",
        algorithm=dpo.Config(beta=0.3),
        steps=20,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=64,
        trainer=training(lr=1e-4),
        validation=Validation(data=("{run}/prepared/held_out_pairs.parquet",), every=10, max_examples=256),
    )
