"""GSPO-token, the token form of GSPO: Zheng et al. 2025 (2507.18071, section 4.3).

GSPO-token weights and clips a row as a whole, like GSPO, but each token has its own advantage. Use it if rewards arrive
within a row, for example after each turn of a conversation.

    G_it  = reward_it + discount * G_{i,t+1}
    Aw_it = (G_it - mean(G)) / (std(G) + 1e-8)
    l_it  = max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))

t + 1 is the next action token of the row. mean(G) and std(G) are over the tokens of the whole batch. Ratio and
reduction are as in `gspo`. If all tokens of a row have the same advantage, value and gradient are equal to GSPO's.

Choices that differ between libraries:

- The paper does not define the advantage of a token. Here it is the whitened return, as in REINFORCE++. Any other
  transform that writes `advantage` can replace it.
- The loss is that of `gspo`. In TRL, OpenRLHF and NeMo-RL the gradient of a row's ratio goes to all of its tokens, so
  that with advantages of tokens their loss is another one.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import gspo
from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import return_advantage, whiten_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the ratio is that of a row, which need not be the whole episode",
    "gradient_matches_finite_differences": "the ratio has the value of its row but the gradient of its token; "
    "the two agree only if all tokens of a row have the same advantage",
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the only baseline of the returns is the mean of the batch",
}


@frozen(kw_only=True)
class Config(gspo.Config):
    """Hyperparameters of GSPO-token: the settings of GSPO, and `discount`."""

    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GSPO-token from `config`: GSPO with the advantage of REINFORCE++."""
    advantage = chain(return_advantage(discount=config.discount), whiten_advantage)
    return gspo.algorithm(config)._replace(advantage=advantage, min_group_size=1)
