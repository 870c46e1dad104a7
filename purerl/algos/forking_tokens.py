"""DAPO on forking tokens: Wang et al. 2025, Beyond the 80/20 Rule (2506.01939).

Most tokens of a chain of thought follow from the tokens before them. A minority of tokens with high entropy decides how
the text continues, and reinforcement learning acts mainly through these. This variant of DAPO computes the policy loss
only at the tokens with the highest entropy.

    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))    if token (i, t) is in F
           0                                                               else

F is the set of the max(1, floor(top_fraction * tokens)) tokens with the largest entropy. The rest is as in `dapo`.

Choices that differ between libraries:

- `tokens` counts all tokens of the optimizer step, not only the tokens of F, as in TRL (paper: unverified).

Differences from the paper:

1. The entropies are computed at the start of the update (`old_entropy`), and F is chosen over the whole optimizer step.
   The choice then does not depend on the micro-batches. The paper chooses F per micro-batch (unverified).
2. Tokens with the same entropy as the last token of F are in F too.
3. Overlong reward shaping is not part of the algorithm.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dapo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import high_entropy_tokens
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = {
    "group_independence": "tokens are chosen over the whole optimizer step",
    "reinforce_gradient_on_policy": "most tokens have no policy loss, even on-policy",
}


@frozen(kw_only=True)
class Config(dapo.Config):
    """Hyperparameters of DAPO on forking tokens: the settings of DAPO, and the fraction of tokens."""

    top_fraction: float = number("fraction of tokens that have a policy loss; 1 is DAPO", 0.2, above=0, max=1)


def composition(config: Config) -> Composition:
    """DAPO on forking tokens as DAPO with modifiers."""
    top = config.top_fraction
    modifiers = (high_entropy_tokens.Config(top_fraction=top),) if top < 1 else ()
    return Composition(base_settings(config, dapo.Config), modifiers)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DAPO on forking tokens from `config`."""
    return build_algorithm(composition(config))
