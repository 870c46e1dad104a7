"""SFT, supervised fine-tuning: the policy learns to say what a demonstrator said.

    loss = token mean of -logp

Action tokens are the demonstrator's. Nothing is sampled and nothing is rewarded.

Choices, where libraries differ: every token of an optimizer step weighs the same, whatever micro-batch or row it is in.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, identity, of_fields
from purerl.algos.parts.reductions import token_mean
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "negative_log_likelihood"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it imitates and has no advantage"}


@frozen(kw_only=True)
class Config:
    """SFT has no hyper-parameters."""


def negative_log_likelihood(logp: TokenFloat) -> TokenFloat:
    """-logp, nats."""
    return -logp


def algorithm(config: Config = Config()) -> Algorithm:
    """SFT."""
    term = Term("nll", of_fields(negative_log_likelihood, "logp"), token_mean)
    return Algorithm(reads=(), advantage=identity, objectives=(Objective("policy", (), ("logp",), (term,)),))
