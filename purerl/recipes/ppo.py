"""PPO with a critic, and every setting at its default.

    purerl train ppo --set model=MODEL --set data=problems.jsonl --reward purerl.rewards.math:math

The data set has a column `prompt`, `question` or `problem`, and the columns that the reward reads. The default reward
is 1 for a completion that is equal to the column `answer`, or to `reward_model.ground_truth`, and 0 for every other
one. A model that explains its answers needs another reward, such as that of this command.

Every value is the default of its setting; settings without a default have the value that their description shows:
`batch_size` 64, `rollout.samples_per_prompt` 8, `rollout.max_tokens` 512. The run is one epoch. The critic starts
from the model, with a new head: `critic_warmup` lets it learn before the policy does.
"""

from __future__ import annotations

from purerl.algos import ppo as algorithm
from purerl.backends.hf import generator, trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.rollouts.settings import Rollout
from purerl.settings import Model

__all__ = ["ppo"]


def ppo(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """PPO with a critic on prompts with default settings, one epoch by default."""
    return RunConfig(
        name="ppo",
        model=model,
        data=data,
        algorithm=algorithm.Config(),
        rewards=("purerl.rewards.exact:exact_match",),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        rollout=Rollout(samples_per_prompt=8, max_tokens=512),
        generator=generator.Config(),
        trainer=trainer.Config(),
    )
