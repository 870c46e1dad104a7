"""PSPO, probability smoothing policy optimization: 2025 (2509.21282).

PPO's clip gives the tokens whose probability changes most no gradient at all. PSPO mixes the policy with the old one
instead. The ratio of the mixture is nearer to 1, so updates are smaller, and every token keeps a gradient.

    l_it = -A_i ((1 - smoothing) r_it + smoothing)

The rest is as in `grpo`, without its clip.

Choices that differ between libraries:

- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it, before it is smoothed.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The equation is the paper's. Its reduction and the default of `smoothing` were not read: they are GRPO's and ours
   (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.parts.policy import approx_kl, policy_objective, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import smoothed_surrogate
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "the gradient is 1 - smoothing times as large"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of PSPO."""

    smoothing: float = number("share of the old policy in the mixture", 0.1, min=0, max=0.99)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build PSPO from `config`."""
    policy = policy_objective(
        bind(_smoothed_surrogate, smoothing=config.smoothing),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl, "ratio": token_level_ratio},
    )
    return grpo.algorithm()._replace(objectives=(policy,))


def _smoothed_surrogate(batch: TensorDict, *, smoothing: float) -> TokenFloat:
    return smoothed_surrogate(token_level_ratio(batch), batch["advantage"], smoothing=smoothing)
