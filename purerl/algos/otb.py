"""OTB, optimal token baseline: 2026 (2602.07078).

The baseline that minimizes the variance of a policy gradient is a mean of the returns, weighted by the squared norm of
the gradient that each of them multiplies. At token t this is the gradient of the row up to t. Its squared norm, with
respect to the logits, follows from probabilities that the forward pass computes anyway. Each token of a group therefore
has its own baseline, without a critic.

    w_it = max(1 - 2 exp(old_logp_it) + sum_v pi_it(v)^2, 0)
    W_it = sum_{j <= t} w_ij
    M_t  = max_i(G_it)
    B_t  = M_t + (sum_i W_it (G_it - M_t)) / (sum_i W_it + 1e-8)
    A_it = G_it - B_t
    loss = -(1 / rows) sum_it A_it logp_it

G_it is the return: the sum of the rewards of row i from token t on. t counts action tokens. Sums and maximum are over
the rows of the group (the rows of one prompt) that have a t-th action token. sum_v pi_it(v)^2 is the field
`sum_pi_squared`: the sum of the squared probabilities of the whole vocabulary. The trainer computes it together with
`old_logp`. The rest is as in `rloo`.

Choices that differ between libraries:

- If only one row of a group has a t-th token, the advantage of this token is 0. In a group of one row, every advantage
  is 0. The authors' code sets the baseline to 0 there, so the advantage is the return.
- Tokens where `mask` is 0 do not enter the baseline.

Differences from the paper:

1. Log-probabilities are summed over tokens (unverified).
2. B_t is shifted by M_t. The paper has B_t = sum_i W_it G_it / (sum_i W_it + 1e-8), which differs by less than 1e-8
   M_t / sum_i W_it. With the shift, a constant that is added to all rewards has no effect, and equal returns have
   advantages of exactly 0, also if all weights are 0 because the policy is certain of every token.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm, stateless, write_field
from purerl.algos.estimators.optimal_baseline import optimal_token_advantage
from purerl.algos.estimators.returns import discounted_returns
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of OTB."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build OTB from `config`."""
    reads = ("reward", "old_logp", "sum_pi_squared")
    advantage = stateless(write_field("advantage", _optimal_token_advantage))
    return rloo.algorithm()._replace(reads=reads, advantage=advantage)


def _optimal_token_advantage(batch: TensorDict) -> TokenFloat:
    returns = discounted_returns(batch["reward"], batch["action"], discount=1.0)
    fields = (batch[name] for name in ("old_logp", "sum_pi_squared", "action", "mask", "group"))
    return optimal_token_advantage(returns, *fields)
