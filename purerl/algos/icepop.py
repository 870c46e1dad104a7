"""IcePop, GRPO with a band of mismatch ratios: Ling Team 2025, report of Ring-1T (2510.18855).

IcePop is GRPO with a correction for the training-inference mismatch, which is large for mixture-of-experts models. Each
token is weighted by the ratio of the probabilities that the trainer and the generator compute for it. Tokens whose
ratio is outside a band have weight 0.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    k_it = exp(old_logp_it - rollout_logp_it)
    w_it = k_it    if min_ratio <= k_it <= max_ratio
           0       else
    l_it = sg(w_it) max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss = (1 / rows) sum_i (1 / n_i) sum_t l_it

The advantage and the optional terms are as in `grpo`.

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops
the gradient.

Choices that differ between libraries:

- Tokens of weight 0 stay in the denominators.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
- `policy/weight`: weight w_it.
- `policy/weight_square`: square of w_it. weight^2 / weight_square is the effective sample size, as a fraction of the
  tokens.
- `policy/chi2`: exp(2 (old_logp_it - rollout_logp_it)) - 1, the variance of the ratio without a bound.
- `policy/log_perplexity_gap`: rollout_logp_it - old_logp_it, nats.
- `policy/rejected_fraction`: fraction of tokens that a correction removed from `mask`.

Differences from the paper:

1. Clipping, reduction and standard deviation are as in `grpo`. The report's own choices are unverified.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.parts.corrections import banded_ratio, token_weight, with_corrections
from purerl.algos.parts.settings import number, require_below

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of IcePop: the settings of GRPO, and the band of ratios."""

    min_ratio: float = number("tokens with a smaller ratio of trainer and generator have weight 0", 0.5, above=0)
    max_ratio: float = number("tokens with a larger ratio of trainer and generator have weight 0", 5.0, above=0)

    def __attrs_post_init__(self) -> None:
        require_below(self, "min_ratio", "max_ratio")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build IcePop from `config`."""
    return with_corrections(
        grpo.algorithm(config), token_weight(bind(banded_ratio, min_ratio=config.min_ratio, max_ratio=config.max_ratio))
    )
