"""The policy also learns to predict the environment: the negative log-likelihood of the tokens of its answers.

    loss = loss of the algorithm - coef * (1 / tokens) sum_it logp_it

The sum is over the tokens of O, and `tokens` is their number in the optimizer step. O has the tokens of a row after its
first action token that are no action: the output of tools and environments, with the tokens of the chat template around
it. Rows without a counted token have none. The prompt is not in O, and neither is what an earlier row of the episode
has as its own.

The model has to predict these tokens too, which the trainer does in the same forward pass. Rows of one turn have none
of them, and then the modifier changes nothing.

The metric `loss/observation` is the term with its coefficient.

Source: ECHO.
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
from purerl.kernels.masks import any_true
from purerl.types import TensorDict, TokenBool

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "compaction_invariance": "the tokens between the actions are learned on purpose",
    "episode_invariance": "a row without a counted token has no tokens to predict, also if its episode has others",
    "masked_token_invariance": "the log-probabilities of tokens that are no action are read on purpose",
    "reinforce_gradient_on_policy": "tokens that are no action have a gradient on purpose",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `observation_loss`."""

    coef: float = number("coefficient of the negative log-likelihood", 0.1, above=0)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with the negative log-likelihood of the environment's tokens in its loss.

    Raises: ConfigError for an algorithm that learns from no completions of its own, or that has this term.
    """
    return change_policy(algorithm, bind(_with_observations, coef=config.coef))


def _with_observations(policy: Objective, *, coef: float) -> Objective:
    if "advantage" not in policy.reads or "logp" not in policy.outputs:
        need = "an algorithm that learns from episodes, with a policy loss of an advantage"
        raise ConfigError("has no effect", got="an algorithm without log-probabilities of episodes", need=need)
    term = Term("observation", of_fields(negative_log_likelihood, "logp"), token_mean, where="observed", weight=coef)
    return add_preparation(insert_term(policy, term, "observed"), write_field("observed", _observed))


def _observed(batch: TensorDict) -> TokenBool:
    action, is_counted = batch["action"], any_true(batch["mask"]).unsqueeze(-1)
    return batch["attention_mask"] & ~action & (action.cumsum(-1) > 0) & is_counted
