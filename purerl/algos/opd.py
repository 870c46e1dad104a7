"""On-policy distillation, from the sampled tokens: Agarwal et al. 2023, GKD (2306.13649), with the reverse divergence.

The policy samples, and a teacher says of each token how likely it would have been to say it: a reward at every token,
where an outcome is one number for a whole row. What the policy minimizes is the divergence from itself to the teacher,
prefix by prefix.

    A_t  = distillation_coef * (teacher_logp_t - old_logp_t) + reward_coef * (s_i - mean_g)
    loss = token mean of -A_t r_t

Choices, where libraries differ: the advantage of a token is about this token alone, with nothing of what comes after
(discount 0); it is neither whitened nor clipped; teacher and policy share a tokenizer.

Metrics, each a mean over counted tokens: `kl`, how far the policy has moved, k3, nats; `ratio`; `entropy`, nats.

Differences from the paper:

1. The divergence is estimated from the sampled token, as a policy gradient; the paper sums over the vocabulary. Their
   gradients have the same mean. (`opd_top_k` sums.)
2. The policy is measured when the update began: the same on the first optimizer step of an update.
3. All completions are the policy's own (the paper's lambda is 1).
4. What is rewarded may be learned along with it, if `reward_coef` is set.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.distillation import add_teacher_advantage, scale_advantage, zero_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.surrogates import importance_surrogate
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of on-policy distillation."""

    distillation_coef: float = number("advantage per nat by which the teacher finds a token likelier", 1.0, above=0)
    reward_coef: float = number("weight of what the rewards say", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """On-policy distillation as `config` sets it."""
    coef = config.reward_coef
    policy = policy_objective(
        of_fields(importance_surrogate, "logp", "old_logp", "advantage"),
        token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl, "ratio": token_level_ratio},
        kl_loss_coef=0.0,
        entropy_coef=0.0,
    )
    return Algorithm(
        reads=("old_logp", "teacher_logp", *optional(coef, "reward")),
        advantage=chain(
            zero_advantage,
            *optional(coef, outcome_advantage(group_centered_advantage), scale_advantage(factor=coef)),
            add_teacher_advantage(distillation_coef=config.distillation_coef),
        ),
        objectives=(policy,),
    )
