"""RL against a reward model, on the CPU of a laptop: GRPO whose only reward is the score of a classifier.

    purerl train postfix_reward_model
    purerl train postfix_rl --set reward_model=runs/postfix_reward_model/final

The policy starts from the model that `postfix_dpo` and `postfix_ppo` start from. Whether an answer is correct is only
measured: `exact_match` has the weight 0.

Reasons for the settings:

    kl_loss 0.2    without it the policy finds answers that the classifier scores highly and that are wrong
                   (docs/tutorials/reward_models.md)
"""

from __future__ import annotations

from typing import Annotated

from attrs import evolve

from purerl.algos import grpo
from purerl.algos.modifiers import kl_loss
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.recipes.postfix_sft import ROLLOUT, evaluation, from_demonstrations, training
from purerl.rewards.settings import Reward
from purerl.settings import Model, to_model

__all__ = ["postfix_rl"]


def postfix_rl(
    reward_model: Annotated[str | Model, "the classifier whose score is the reward"],
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """GRPO on the scores of a reward model; 40 steps by default."""
    return from_demonstrations(
        name="postfix_rl",
        data="{run}/prepared/train.parquet",
        algorithm=Composition(grpo.Config(), (kl_loss.Config(coef=0.2),)),
        rewards=(Reward(role="preferred"), Reward("purerl.rewards.exact:exact_match", weight=0.0)),
        roles={"rewards": {"preferred": Role(model=to_model(reward_model))}},
        evaluate=evolve(evaluation(every=10), accuracy_reward="exact_match"),
        steps=40,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=32,
        num_minibatches=2,
        rollout=ROLLOUT,
        trainer=training(lr=1e-3, max_grad_norm=0.3),
    )
