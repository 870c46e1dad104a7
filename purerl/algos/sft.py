"""SFT, supervised fine-tuning: maximum likelihood on demonstrations.

SFT maximizes the log-probability of demonstrations. The action tokens are the tokens of the demonstration. Nothing is
sampled and no reward is used.

    loss = -(1 / tokens) sum_it logp_it

`tokens` is the number of tokens of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Every token of the optimizer step has the same weight, independent of its row and its micro-batch.

Metrics:

- `policy/loss/nll`: the loss, nats per token.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, identity, of_fields
from purerl.algos.parts.log_ratios import negative_log_likelihood
from purerl.algos.parts.reductions import token_mean

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it is trained on demonstrations and has no advantage"}


@frozen(kw_only=True)
class Config:
    """SFT has no hyperparameters."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build SFT."""
    term = Term("nll", of_fields(negative_log_likelihood, "logp"), token_mean)
    return Algorithm(reads=(), advantage=identity, objectives=(Objective("policy", (), ("logp",), (term,)),))
