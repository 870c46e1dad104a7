"""PPO with a critic, on the CPU of a laptop: one answer to each prompt, and a second model that predicts the reward.

The task is that of `postfix_sft`. The policy has first learned from demonstrations of which three quarters have no
parentheses (`initial_run`). The reward is 1 for the correct answer and 0 for any other. The critic starts from the same
model, with a new head.

Reasons for the settings:

    1 answer per prompt   the critic is the baseline, so a prompt needs no group; 256 different prompts per step
    critic_warmup 2       in the first two steps the policy waits for the critic, whose head is new
    4 mini-batches        one optimizer step on each quarter of the answers, with clipped ratios
"""

from __future__ import annotations

from attrs import evolve

from purerl.algos import ppo
from purerl.config.schema import RunConfig
from purerl.recipes.postfix_sft import ROLLOUT, from_demonstrations, training

__all__ = ["postfix_ppo"]


def postfix_ppo(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """PPO with a critic on answers that are correct or not; 40 steps by default."""
    return from_demonstrations(
        name="postfix_ppo",
        data="{run}/prepared/train.parquet",
        algorithm=ppo.Config(),
        steps=40,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=256,
        num_minibatches=4,
        critic_warmup=2,
        rollout=evolve(ROLLOUT, samples_per_prompt=1),
        trainer=training(lr=4e-4, max_grad_norm=0.3),
    )
