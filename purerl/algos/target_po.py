"""TPO, target policy optimization: Kaddour 2026 (2604.06159).

A policy gradient says in which direction probability moves, and the learning rate says how far. TPO first computes
where the probability should be: the old policy, restricted to the rows of the group, tilted toward high scores. Then it
fits the policy to this target by cross-entropy. The gradient vanishes once the policy is at the target.

    u_i  = (s_i - mean_g) / std_g
    L_i  = sum_t logp_it
    p_i  = exp(L_i) / sum_g exp(L_j)
    q_i  = exp(L_old_i + u_i / eta) / sum_g exp(L_old_j + u_j / eta)
    l_g  = -sum_g q_i log p_i
    loss = (1 / rows) sum_i l_g

L_old_i is L_i under the policy at the start of the update. If all groups have the same size, the loss is the mean over
groups. A micro-batch contains whole groups.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens. Among rows of different lengths, p can then be close to 1 for one of them,
  and a row that is unlikely under the old policy has nearly no weight in the target.
- The standard deviation divides by N_g. In a group with equal scores, u is 0, and the target is the old policy.
- A group of one row has no gradient.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. A group is weighted by its number of rows. This makes no difference if all groups have the same size.
2. In TRL, TPO is triple preference optimization, another algorithm.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_standardized_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.preferences import sequence_logp
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.regressions import target_cross_entropy
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.kernels.masks import any_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the loss is of the log-probability of a row, which need not be the whole episode",
    "reinforce_gradient_on_policy": "its gradient is that of a cross-entropy, p - q, and not proportional to u",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of TPO."""

    eta: float = number("temperature of the target: a smaller eta moves more probability to high scores", 1.0, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build TPO from `config`."""
    policy = policy_objective(
        bind(_cross_entropy, eta=config.eta),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl},
    )
    advantage = outcome_advantage(group_standardized_advantage)
    return Algorithm(
        reads=("reward",), advantage=advantage, objectives=(policy._replace(unit="group"),), min_group_size=2
    )


def _cross_entropy(batch: TensorDict, *, eta: float) -> TokenFloat:
    mask = batch["mask"]
    logp, old_logp = (sequence_logp(batch[name], mask) for name in ("logp", "old_logp"))
    rows = (logp, old_logp, row_mean(batch["advantage"], mask), batch["group"], any_true(mask))
    return broadcast_to_tokens(target_cross_entropy(*rows, eta=eta), mask)
