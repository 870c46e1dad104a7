"""SPPO, self-play preference optimization: Wu et al. 2024 (2405.00675).

SPPO trains the policy to win against itself. The completions of a prompt are compared with each other, and the
log-ratio of a completion is regressed on its win rate. The target is the result of one exponential-weights update of
the two-player game.

    A_i  = P_i - 1/2
    L_i  = sum_t (logp_it - old_logp_it)
    loss = (1 / rows) sum_i (L_i - eta * A_i)^2

P_i is the win rate of row i: the fraction of the rows of its group (the rows of one prompt) with a lower total reward,
plus half the fraction with the same one. `rows` is the number of rows of the optimizer step. Losses, means and counts
cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The log-ratio is relative to the policy at the start of the update. An update is an iteration of the paper.
- Log-probabilities are summed over tokens.
- A row is also compared with itself, as a tie.
- In a group of one row, A_i is 0. The loss then keeps the row at its old probability.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. Rows are compared by their rewards, not by a preference model. (In verl, A_i is the reward minus a softmax-weighted
   mean of the rewards.)
2. All rows of a group are used. The authors' code trains on the best and the worst of five.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import win_rate_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.regressions import sppo_loss
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the regression is of the log-ratio of a row, which need not be the whole episode",
    "reinforce_gradient_on_policy": "it is a regression, whose gradient is 2 eta times as large",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of SPPO."""

    eta: float = number("target of the log-ratio, per unit of win rate", 1e3, above=0, unit="nats")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build SPPO from `config`."""
    policy = policy_objective(
        bind(_sppo_loss, eta=config.eta),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl},
    )
    return Algorithm(
        reads=("reward",), advantage=outcome_advantage(win_rate_advantage), objectives=(policy,), min_group_size=2
    )


def _sppo_loss(batch: TensorDict, *, eta: float) -> TokenFloat:
    mask = batch["mask"]
    log_ratio = sequence_log_ratio(batch["logp"], batch["old_logp"], mask)
    return broadcast_to_tokens(sppo_loss(log_ratio, row_mean(batch["advantage"], mask), eta=eta), mask)
