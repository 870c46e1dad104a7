"""A reward model on the CPU of a laptop: a classifier that scores expressions in Python's notation.

    purerl train postfix_reward_model
    purerl train postfix_rl --set reward_model=runs/postfix_reward_model/final

The task is that of `postfix_sft`, and the pairs are those of `postfix_dpo`. The classifier starts from a model that has
learned from demonstrations of which three quarters have no parentheses (`initial_run`). `postfix_rl` uses it as the
only reward.
"""

from __future__ import annotations

from attrs import evolve

from purerl.algos import reward_model
from purerl.config.schema import RunConfig
from purerl.evaluation.settings import Validation
from purerl.recipes.postfix_sft import from_demonstrations, training

__all__ = ["postfix_reward_model"]


def postfix_reward_model(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """A reward model on pairs of a correct and an incorrect answer; 60 steps by default."""
    config = from_demonstrations(
        name="postfix_reward_model",
        data="{run}/prepared/pairs.parquet",
        algorithm=reward_model.Config(centering_coef=0.01),
        steps=60,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=128,
        trainer=training(lr=2e-3),
        validation=Validation(data=("{run}/prepared/held_out_pairs.parquet",), every=20, max_examples=256),
    )
    return evolve(config, rewards=(), generator=None, evaluate=None)
