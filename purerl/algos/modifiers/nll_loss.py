"""The negative log-likelihood of the chosen completions, beside a loss of pairs.

    loss = loss of the algorithm - coef * (1 / tokens) sum_it logp_it

The sum is over the tokens of chosen rows, and `tokens` is their number in the optimizer step. A loss of margins alone
can decrease by making both completions of a pair less likely. This term keeps the chosen one likely. It is the loss of
`sft` on these rows. Groups that are no pair have no effect on it.

TRL: the loss type sft, with its weight in `loss_weights`, and `cpo_alpha` of the CPO trainer. RPO and Llama 3 use it
with DPO, and MPO with two losses of pairs. In `cpo` and `orpo` it is part of the definition.

The metric `loss/nll` is the term with its coefficient.

Sources: CPO (2401.08417); RPO (2404.19733); MPO (2411.10442); Llama 3 (2407.21783).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, bind, of_fields, write_field
from purerl.algos.parts.editing import change_policy, insert_term
from purerl.algos.parts.log_ratios import negative_log_likelihood
from purerl.algos.parts.policy import add_preparation
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.errors import ConfigError
from purerl.types import TensorDict, TokenBool

__all__ = ["Config", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `nll_loss`."""

    coef: float = number("coefficient of the negative log-likelihood", 1.0, above=0)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with the negative log-likelihood of the chosen completions in its loss.

    Raises: ConfigError for an algorithm without log-probabilities of pairs, or that has this term.
    """
    return change_policy(algorithm, bind(_with_nll, coef=config.coef))


def _with_nll(policy: Objective, *, coef: float) -> Objective:
    if "chosen" not in policy.reads or "logp" not in policy.outputs:
        need = "one that learns from pairs, as DPO does"
        raise ConfigError("has no effect", got="an algorithm without log-probabilities of pairs", need=need)
    term = Term("nll", of_fields(negative_log_likelihood, "logp"), token_mean, where="preferred", weight=coef)
    policy = insert_term(policy, term, "preferred")
    return add_preparation(policy, write_field("preferred", _preferred))


def _preferred(batch: TensorDict) -> TokenBool:
    return batch["mask"] & batch["chosen"].unsqueeze(-1)
