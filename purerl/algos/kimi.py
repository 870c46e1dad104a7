"""Kimi k1.5's policy optimization, online mirror descent: Kimi Team 2025 (2501.12599).

The best policy at some distance from the one that the iteration began with has a closed form. Its squared error, with
the normalizer replaced by the mean reward of the group, has the gradient of REINFORCE with that baseline and of a
quadratic pull of whole rows toward where the policy was.

    A_i  = s_i - mean_g
    loss = mean over rows of -A_i sum_t logp_it + beta / 2 (sum_t (logp_it - old_logp_it))^2

Choices, where libraries differ: log-ratios are summed over the row, and then squared (ROLL: token by token, which is
`dro`). A group of one has advantage 0. `beta`, the paper's tau, is not published; its default is ours [unverified].

Differences from the paper:

1. What it says of lengths, curricula and sampling is left to rewards and data.
2. The optimizer is not reset when an iteration begins.
3. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Term, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import moved, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, sequence_mean_of_token_sum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient, sequence_log_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of Kimi k1.5."""

    beta: float = number("how strongly the policy is held to where it was", 0.1, above=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Kimi k1.5's policy optimization as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    # A row's value at each of its tokens: the mean over tokens is the row's value.
    pull = Term("pull", _pull, sequence_mean_of_token_mean, weight=config.beta)
    policy = policy._replace(terms=(*policy.terms, pull))
    return Algorithm(("reward",), outcome_advantage(group_centered_advantage), (policy,), min_group_size=2)


def _pull(batch: TensorDict) -> TokenFloat:
    mask = batch["mask"]
    return broadcast_to_tokens(sequence_log_ratio(batch["logp"], batch["old_logp"], mask).square() / 2, mask)
