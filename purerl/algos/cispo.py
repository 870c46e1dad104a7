"""CISPO, clipped importance-sampling policy optimization: MiniMax 2025, MiniMax-M1 (2506.13585).

PPO's clipping takes the gradient from the tokens that move most, and these are often the rare ones at which reasoning
turns. CISPO clips the weight instead of the loss: every token keeps a gradient, of bounded size.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    w_it = clip(r_it, 1 - clip_low, 1 + clip_high)
    loss = sum over rows and tokens of -sg(w_it) A_i logp_it / tokens

Choices, where libraries differ: `clip_high` is an offset from 1, as everywhere, so that the default weight is at most 5
(some libraries give the bound itself); the standard deviation divides by N_g - 1; a group of one has advantage 0;
"tokens" are those of the optimizer step.

Differences from the paper:

1. The paper tunes the upper bound and does not publish it [unverified]; the default is that of ScaleRL (2510.13786), as
   TRL has it. There is no lower bound by default, as in the paper.
2. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added; the paper has neither.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import clipped_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the weight is stopped on purpose"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of CISPO."""

    clip_low: float = number("how far the weight may fall below 1; at 1 it has no bound", 1.0, least=0, most=1)
    clip_high: float = number("how far the weight may rise above 1", 4.0, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """CISPO as `config` sets it."""
    policy = weighted_policy(
        of_fields(clipped_weight, "logp", "old_logp", clip_low=config.clip_low, clip_high=config.clip_high),
        token_mean,
        behavior="old_logp",
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
