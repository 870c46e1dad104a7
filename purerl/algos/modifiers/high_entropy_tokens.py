"""The policy loss only at the tokens with the highest entropy.

    l_it = p_it    if token (i, t) is in F
           0       else

p_it is the policy loss of the algorithm at token t of row i. F is the set of the max(1, floor(top_fraction * tokens))
tokens with the largest entropy. At these tokens a completion can continue in several ways; the others mostly follow
from the tokens before them. Tokens that are not in F stay in the denominators and in the other terms of the loss. The
metric `dropped_fraction` is the fraction of tokens that are not in F.

TRL calls `top_fraction` `top_entropy_quantile`. Its threshold is a quantile of the entropies of a micro-batch, which is
interpolated between two of them, and it restricts the entropy bonus to the same tokens. In a loss whose gradient goes
to all tokens of a row, as in GMPO, SPPO and FlowRL, the modifier multiplies the loss of a row by the fraction of its
tokens in F.

Differences from the paper:

1. The entropies are computed at the start of the update (`old_entropy`), and F is chosen over the whole optimizer step.
   The choice then does not depend on the micro-batches. The paper chooses F per micro-batch (unverified).
2. Tokens with the same entropy as the last token of F are in F too.

Source: Wang et al. 2025, Beyond the 80/20 Rule (2506.01939).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, of_fields
from purerl.algos.parts.editing import change_policy, surrogate_of
from purerl.algos.parts.policy import drop_tokens
from purerl.algos.parts.selection import low_entropy_tokens
from purerl.algos.parts.settings import number
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "in GSPO, a ratio has the value of its row and the gradient of its token",
    "group_independence": "tokens are chosen over the whole optimizer step",
    "reinforce_gradient_on_policy": "most tokens have no policy loss, even on-policy",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `high_entropy_tokens`."""

    top_fraction: float = number("fraction of tokens that have a policy loss", 0.2, above=0, max=1)

    def __attrs_post_init__(self) -> None:
        if self.top_fraction == 1:
            raise ConfigError("top_fraction", got="1, which is all tokens", need="a number below 1")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a policy loss only at the tokens with the highest entropy.

    Raises: ConfigError for an algorithm without a policy loss, that drops tokens already, or whose loss couples the
        rows of a group.
    """
    surrogate_of(algorithm)
    choice = of_fields(low_entropy_tokens, "old_entropy", "mask", top_fraction=config.top_fraction)

    def dropped(policy: Objective) -> Objective:
        if "dropped" in policy.reads:
            raise ConfigError("has no effect", got="an algorithm that drops tokens", need="one that drops none")
        if policy.unit == "group":
            got, need = "a loss that is defined for whole groups", "a loss of single tokens"
            raise ConfigError("has no effect", got=got, need=need)
        return drop_tokens(policy, choice, "old_entropy")

    return change_policy(algorithm, dropped)
