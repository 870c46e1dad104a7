"""On-policy distillation from the sampled tokens: Agarwal et al. 2023, GKD (2306.13649), with the reverse KL.

The policy samples completions, and a teacher model computes the log-probability of each of their tokens. The difference
from the policy's log-probability is a reward at every token, while an outcome reward is one number per row. The policy
minimizes KL(policy || teacher), prefix by prefix.

    A_it = distillation_coef * (teacher_logp_it - old_logp_it) + reward_coef * (s_i - mean_g)
    r_it = exp(logp_it - old_logp_it)
    loss = -(1 / tokens) sum_it A_it r_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The distillation reward of a token affects only this token, not the tokens before it (discount 0).
- The advantage is neither whitened nor clipped.
- Teacher and policy must have the same tokenizer.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The divergence is estimated from the sampled token, as a policy gradient. The paper sums over the vocabulary. The
   expected gradients are the same. `opd_top_k` sums over k tokens.
2. The log-probabilities of the policy are those at the start of the update. In the first optimizer step of an update,
   they are the current ones.
3. All completions are sampled from the policy (lambda of the paper is 1).
4. `reward_coef` adds the rewards of the run to the advantage.
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
    """Hyperparameters of on-policy distillation."""

    distillation_coef: float = number("advantage per nat of teacher_logp - old_logp", 1.0, above=0)
    reward_coef: float = number("weight of the rewards' advantage, s_i - mean_g", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build on-policy distillation from `config`."""
    coef = config.reward_coef
    policy = policy_objective(
        of_fields(importance_surrogate, "logp", "old_logp", "advantage"),
        token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl, "ratio": token_level_ratio},
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
