"""PPO's clipped surrogate instead of the bare policy gradient -A logp.

    r_it = exp(logp_it - old_logp_it)             if ratio = token
           exp(sum_t (logp_it - old_logp_it))     if ratio = sequence
    c_it = max(-A_it r_it, -A_it clip(r_it, 1 - clip_low, 1 + clip_high))
    l_it = c_it                                   if ratio = token
           (1 / n_i) c_it                         if ratio = sequence

A_it is the advantage of token t of row i, and n_i the number of tokens of the row.

The policy gradient of RLOO, REINFORCE, ReMax, OPO, GPG, MaxRL and others is only correct for rows from the current
policy: a second optimizer step on the same rows is biased. The ratio corrects this, up to the clip. As long as `logp`
equals `old_logp`, the gradient is that of -A logp.

verl combines every estimator with the ratio of a token. The ratio of a sequence is that of TRL's RLOO: with the sum
over tokens of `rloo`, l_i is max(-A_i r_i, -A_i clip(r_i, ..)) in value and gradient. In a long row, it leaves the clip
bounds after a small change of the policy.

With the ratio of a sequence, each token has the gradient of its own advantage and weight. If these differ within a row,
as in `reinforce`, no loss has this gradient; the value is then the mean over the tokens of the row.

The metrics `approx_kl`, `ratio`, `clip_fraction`, `clip_fraction_low` and `clip_fraction_high` are those of `grpo`.

Sources: PPO (1707.06347, eq. 7); RLOO (2402.14740).
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, of_fields
from purerl.algos.parts.bypass import is_bypassed
from purerl.algos.parts.divergences import straight_through
from purerl.algos.parts.editing import change_policy, change_surrogate, map_bound
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.policy import approx_kl, clip_metrics, clip_surrogate_of, token_level_ratio
from purerl.algos.parts.settings import choice, number
from purerl.algos.parts.surrogates import policy_gradient, sequence_product_ratio
from purerl.errors import ConfigError
from purerl.kernels.masks import count_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "exemptions", "modify"]

_BARE = of_fields(policy_gradient, "logp", "advantage")
_RATIOS = {"token": token_level_ratio, "sequence": of_fields(sequence_product_ratio, "logp", "old_logp", "mask")}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `clipped_surrogate`."""

    ratio: str = choice("what has a ratio: a token, or a row as a whole", _RATIOS, "token")
    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0, infinite="not clipped"
    )


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with PPO's clipped surrogate instead of its policy gradient.

    Raises: ConfigError for an algorithm without a bare policy gradient, and after `bypass`.
    """
    keywords = {"ratio": _RATIOS[config.ratio], "clip_low": config.clip_low, "clip_high": config.clip_high}
    clipped = bind(clip_surrogate_of, **keywords)
    clipped = bind(_mean_value, loss=clipped) if config.ratio == "sequence" else clipped

    def changed(term: Term) -> Term:
        loss = map_bound(term.loss, lambda bound: clipped if bound == _BARE else bound)
        if loss == term.loss:
            raise ConfigError("has no effect", got="a loss other than -A logp", need="the loss of RLOO or REINFORCE")
        if is_bypassed(loss):
            do = "apply clipped_surrogate before bypass"
            raise ConfigError(
                "has no effect", got="an algorithm after bypass", need="one that can read old_logp", do=do
            )
        return term._replace(loss=loss)

    metrics = token_means(approx_kl=approx_kl, ratio=keywords["ratio"], **clip_metrics(**keywords))
    return change_policy(change_surrogate(algorithm, changed, "old_logp"), bind(_with_metrics, added=metrics))


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    if config.ratio == "token":
        return {}
    reason = "the gradient is the derivative only if all tokens of a row have the same advantage and weight"
    return {
        "gradient_matches_finite_differences": reason,
        "episode_invariance": "the ratio is that of a row, which need not be the whole episode",
    }


def _mean_value(batch: TensorDict, *, loss: Callable) -> TokenFloat:
    """The value of `loss` divided by the number of tokens of the row, with the gradient of `loss`."""
    each = loss(batch)
    return straight_through(each / count_true(batch["mask"]).unsqueeze(-1).clamp(min=1), each)


def _with_metrics(policy: Objective, *, added: Callable) -> Objective:
    return policy._replace(metrics=bind(_merged, metrics=policy.metrics, added=added))


def _merged(batch: TensorDict, *, metrics: Callable, added: Callable) -> dict[str, Weighted]:
    return {**metrics(batch), **added(batch)}
