"""CPO, contrastive preference optimization: Xu et al. 2024 (2401.08417).

CPO is DPO with a uniform reference model, whose log-probabilities cancel in the margin. No second model is loaded.
Nothing would keep the chosen completion likely then, so its negative log-likelihood is a part of the loss.

    L_i  = sum_t logp_it
    D_g  = L_chosen - L_rejected
    loss = -(1 / pairs) sum_g log sigmoid(beta * D_g) - (nll_coef / tokens) sum_it logp_it

The last sum is over the `tokens` tokens of the chosen rows of the optimizer step. The rest is as in `dpo`.

Choices that differ between libraries:

- The log-likelihood is a mean over tokens, as in the authors' code and in TRL. The formula of the paper (eq. 5)
  has the sum over the tokens of each completion.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs with D_g > 0.
- `policy/margin`: beta * D_g. `policy/chosen_reward` and `policy/rejected_reward` are beta * L of the two rows.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dpo
from purerl.algos.algebra import Algorithm, bind, identity
from purerl.algos.modifiers import nll_loss
from purerl.algos.parts.pair_losses import sigmoid
from purerl.algos.parts.preferences import pair_objective, without_anchor
from purerl.algos.parts.settings import number
from purerl.composition import with_modifiers

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = dpo.EXEMPTIONS


@frozen(kw_only=True)
class Config:
    """Hyperparameters of CPO."""

    beta: float = number("a larger beta gives pairs with a small margin more weight", 0.1, above=0)
    nll_coef: float = number("weight of the negative log-likelihood of the chosen completions", 1.0, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build CPO from `config`."""
    loss = ("preference", bind(sigmoid, beta=config.beta), 1.0)
    pairs = pair_objective(without_anchor, loss, reads=(), beta=config.beta)
    algorithm = Algorithm(reads=(), advantage=identity, objectives=(pairs,))
    return with_modifiers(algorithm, nll_loss.Config(coef=config.nll_coef))
