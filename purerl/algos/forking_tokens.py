"""DAPO on forking tokens: Wang et al. 2025, Beyond the 80/20 Rule (2506.01939).

Most tokens of a chain of thought follow from the tokens before them. A minority of tokens with high entropy decides how
the text continues, and reinforcement learning acts mainly through these. This variant of DAPO computes the policy loss
only at the tokens with the highest entropy.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))    if token (i, t) is in F
           0                                                               else
    loss = (1 / tokens) sum_it l_it

F is the set of the max(1, floor(top_fraction * tokens)) tokens with the largest entropy. A group is kept only if its
scores differ, as in `dapo`.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- `tokens` counts all tokens of the optimizer step, not only the tokens of F, as in TRL (paper: unverified).
- All other choices are as in `dapo`.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
- `policy/dropped_fraction`: fraction of tokens that are not in F.

Differences from the paper:

1. The entropies are computed at the start of the update (`old_entropy`), and F is chosen over the whole optimizer step.
   The choice then does not depend on the micro-batches. The paper chooses F per micro-batch (unverified).
2. Tokens with the same entropy as the last token of F are in F too.
3. Overlong reward shaping is not part of the algorithm.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dapo
from purerl.algos.algebra import Algorithm, Objective, of_fields
from purerl.algos.parts.editing import change_policy
from purerl.algos.parts.policy import drop_tokens
from purerl.algos.parts.selection import low_entropy_tokens
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "tokens are chosen over the whole optimizer step",
    "reinforce_gradient_on_policy": "most tokens have no policy loss, even on-policy",
}


@frozen(kw_only=True)
class Config(dapo.Config):
    """Hyperparameters of DAPO on forking tokens: the settings of DAPO, and the fraction of tokens."""

    top_fraction: float = number("fraction of tokens that have a policy loss", 0.2, above=0, max=1)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DAPO on forking tokens from `config`."""
    choice = of_fields(low_entropy_tokens, "old_entropy", "mask", top_fraction=config.top_fraction)

    def dropped(policy: Objective) -> Objective:
        return drop_tokens(policy, choice, "old_entropy")

    return change_policy(dapo.algorithm(config), dropped)
