"""SPPO, self-play preference optimization: Wu et al. 2024 (2405.00675).

A policy is to win against itself. Each completion is compared with the others of its prompt; the more of them it beats,
the likelier it is to become, and by exactly so much as one step of a game's exponential weights would make it.

    A_i  = P_i - 1/2                     P_i: how often row i beats a row of its group, ties counted as half
    L_i  = sum_t (logp_it - old_logp_it)
    loss = mean over rows of (L_i - eta * A_i)^2

Choices, where libraries differ: the policy is measured from what it was when the update began, so an update is what the
paper calls an iteration; log-probabilities are summed over counted tokens; a row is among those that it is compared
with. A group of one has A = 0, and is held where it was.

Metrics, each a mean over counted tokens: `kl`, how far the policy has moved, k3, nats; `entropy`, nats.

Differences from the paper:

1. Rows are compared by their rewards, not by a preference model: a win is a higher reward. (verl: A is the reward less
   a softmax-weighted mean of them.)
2. All rows of a group are learned from. The paper's code trains on the best and the worst of five.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import win_rate_advantage
from purerl.algos.parts.policy import moved, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.regressions import sppo_loss
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it is a regression: its gradient is 2 eta times as large"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of SPPO."""

    eta: float = number("nats by which a row is to gain per unit of win rate", 1e3, above=0, unit="nats")


def algorithm(config: Config = Config()) -> Algorithm:
    """SPPO as `config` sets it."""
    policy = policy_objective(
        bind(_loss, eta=config.eta),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved},
        kl_loss_coef=0.0,
        entropy_coef=0.0,
    )
    return Algorithm(("reward",), outcome_advantage(win_rate_advantage), (policy,), min_group_size=2)


def _loss(batch: TensorDict, *, eta: float) -> TokenFloat:
    mask = batch["mask"]
    log_ratio = sequence_log_ratio(batch["logp"], batch["old_logp"], mask)
    return broadcast_to_tokens(sppo_loss(log_ratio, row_mean(batch["advantage"], mask), eta=eta), mask)
