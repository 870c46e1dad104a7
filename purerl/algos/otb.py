"""OTB, optimal token baseline: 2026 (2602.07078).

Of all baselines the one that leaves a policy gradient with the least variance is a mean of returns, weighted with the
squared gradients of what they multiply. At token t that is the gradient of the row up to t; in the logits its square is
known from probabilities that the forward pass has anyway. So each token of a group gets a baseline of its own, without
a critic.

    w_it = 1 - 2 exp(old_logp_it) + sum_v pi_it(v)^2,   W_it = sum_{s <= t} w_is
    B_t  = sum_i W_it G_it / (sum_i W_it + 1e-8)                 over the rows of the group that reach t
    loss = -(1 / rows) sum_it (G_it - B_t) logp_it               G_t: the reward to go; t counts action tokens

`sum_pi_squared` is the sum of the squared probabilities of the whole vocabulary, scored with `old_logp`.

Choices, where libraries differ: where one row alone reaches t its advantage is 0, as it is in any group of one (the
authors' code sets the baseline to 0 there, and keeps the whole return); tokens that are masked out are in no baseline.
There is no ratio and nothing is clipped, so one optimizer step for each batch is the algorithm.

Differences from the paper:

1. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
2. Log-probabilities are summed over tokens [unverified].
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, of_fields, stateless, writes
from purerl.algos.estimators.optimal_baseline import optimal_token_advantage
from purerl.algos.estimators.returns import discounted_returns
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of OTB."""

    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """OTB as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    reads = ("reward", "old_logp", "sum_pi_squared")
    return Algorithm(reads, stateless(writes("advantage", _optimal_token_advantage)), (policy,), min_group_size=2)


def _optimal_token_advantage(batch: TensorDict) -> TokenFloat:
    returns = discounted_returns(batch["reward"], batch["action"], discount=1.0)
    fields = (batch[name] for name in ("old_logp", "sum_pi_squared", "action", "mask", "group"))
    return optimal_token_advantage(returns, *fields)
