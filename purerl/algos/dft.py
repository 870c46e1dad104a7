"""DFT, dynamic fine-tuning: Wu et al. 2025 (2508.05629).

DFT is SFT in which each token is weighted by its probability. The gradient of SFT is the policy gradient of a reward
for the demonstrated token, divided by its probability. The division gives unlikely tokens a very large gradient. DFT
cancels it: every demonstrated token has the same reward, and tokens that the policy does not expect have little weight.

    p_it = exp(logp_it)
    loss = -(1 / tokens) sum_it sg(p_it) logp_it

`tokens` is the number of tokens of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.
sg() stops the gradient.

Choices that differ between libraries:

- Every token of the optimizer step has the same share of the denominator, independent of its row and its micro-batch.
  In the paper (eq. 9), the loss of a demonstration is the sum over its tokens.

Metrics:

- `policy/loss/weighted_nll`: the loss, nats per token. It is 0 both for tokens that are certain and for those that are
  impossible: it does not measure the fit. `validation/loss` has the same weights.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, identity, of_fields
from purerl.algos.parts.log_ratios import finite_logp, negative_log_likelihood
from purerl.algos.parts.reductions import token_mean
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "probability_weighted_nll"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss",
    "reinforce_gradient_on_policy": "it is trained on demonstrations and has no advantage",
}


@frozen(kw_only=True)
class Config:
    """DFT has no hyperparameters."""


def probability_weighted_nll(logp: TokenFloat) -> TokenFloat:
    """Compute the loss of DFT: the negative log-likelihood, weighted by the detached probability.

        l = -sg(exp(logp)) logp

    The probability is at most 1. Shapes: [rows, time] each. Source: DFT (2508.05629, eq. 9).

    >>> import torch
    >>> probability_weighted_nll(torch.tensor([[0.5]]).log())
    tensor([[0.3466]])
    """
    return finite_logp(logp).clamp(max=0).exp().detach() * negative_log_likelihood(logp)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DFT."""
    term = Term("weighted_nll", of_fields(probability_weighted_nll, "logp"), token_mean)
    return Algorithm(reads=(), advantage=identity, objectives=(Objective("policy", (), ("logp",), (term,)),))
