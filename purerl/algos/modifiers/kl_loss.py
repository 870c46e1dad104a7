"""A KL penalty against the reference model, in the loss.

    loss = loss of the algorithm + coef * reduce(kl)

`kl` is an estimate of KL(policy || reference) at each token, from the sampled token alone. It is reduced like the
policy loss, or by `reduction`, which the modifier `reduction` does not change. With x = logp - ref_logp and
r = exp(logp - old_logp):

    k2                  x^2 / 2; unbiased gradient
    k3                  exp(-x) + x - 1; unbiased value. Its gradient is that of KL(reference || policy)
    straight_through    the value of k3 with the gradient of k2: both are unbiased
    importance_k3       r k3, with the gradient through r: value and gradient are unbiased also off policy
    on_policy_k3        importance_k3 with r = exp(logp - sg(logp)): the value of k3, unbiased gradient on policy
    abs                 abs(x); biased
    k1                  x; its gradient is 0 in expectation, so it only adds noise. For comparisons

In k3 and in r, log-ratios are clamped to +-20.

With `target`, the coefficient adapts. The coefficient of the first batch is `coef`. After each batch, with B rows:

    coef <- coef * max(1/2, 1 + clip(D / target - 1, -0.2, 0.2) * B / horizon)
    coef <- max(coef, 1e-6)    if D > target

D is the mean over rows of sum_t (old_logp - ref_logp), and `target` is a divergence of whole rows, in nats. The metric
`kl_loss_coef` is the coefficient of the batch.

The means and gradients are derived in `parts.divergences`. In other libraries:

- verl names them low_var_kl (k3), kl (k1), mse (k2), abs, and k3+ (straight_through). It clamps k3 to at most 10: a
  token beyond has no gradient of k3.
- TRL uses importance_k3 (`use_bias_correction_kl`, on by default), with the ratio of the row for
  `importance_sampling_level="sequence"`. TRL clamps nothing.
- NeMo-RL uses on_policy_k3. With `use_on_policy_kl_approximation`, its r is relative to the rollout policy, and not to
  the old policy.

Sources: Schulman 2020; DeepSeek-V3.2 (2512.02556) for importance_k3; Tang and Munos 2025 (2506.09477) for
on_policy_k3; Ziegler et al. 2019 (1909.08593) for `target`.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, of_fields
from purerl.algos.parts.adaptive import adaptive_kl_coefficient
from purerl.algos.parts.divergences import absolute_log_ratio, importance_k3, k1, k2, k3, on_policy_k3, straight_through
from purerl.algos.parts.editing import (
    LIKE_POLICY,
    TERM_REDUCTIONS,
    adapt_term,
    add_reads,
    change_policy,
    insert_term,
    reduction_of,
)
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.settings import choice, number, require_target
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "exemptions", "modify"]


def _straight_through(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    return straight_through(k3(logp, ref_logp), k2(logp, ref_logp))


_ESTIMATORS = {
    "k3": (k3, "logp", "ref_logp"),
    "k2": (k2, "logp", "ref_logp"),
    "straight_through": (_straight_through, "logp", "ref_logp"),
    "importance_k3": (importance_k3, "logp", "old_logp", "ref_logp"),
    "on_policy_k3": (on_policy_k3, "logp", "ref_logp"),
    "abs": (absolute_log_ratio, "logp", "ref_logp"),
    "k1": (k1, "logp", "ref_logp"),
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `kl_loss`."""

    coef: float = number("coefficient of the KL penalty; with a target, that of the first batch", 0.001, min=0)
    estimator: str = choice("estimate of the KL divergence at a token", _ESTIMATORS, "k3")
    reduction: str = choice("reduction of the penalty; policy: that of the policy loss", TERM_REDUCTIONS, LIKE_POLICY)
    target: float = number("divergence that the coefficient adapts to; 0: it is constant", 0.0, min=0, unit="nats")
    horizon: float = number("the larger, the slower the coefficient adapts", 10_000.0, above=0, unit="rows")

    def __attrs_post_init__(self) -> None:
        require_target(self, "horizon")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a KL penalty in the loss of the policy.

    Raises: ConfigError for an algorithm that trains no policy, or that has a KL penalty in its loss.
    """
    function, *fields = _ESTIMATORS[config.estimator]
    estimate, reads = of_fields(function, *fields), fields[1:]

    def penalized(policy: Objective) -> Objective:
        reduction = reduction_of(policy, config.reduction)
        policy = insert_term(policy, Term("ref_kl", estimate, weight=config.coef, **reduction), *reads)
        outputs = tuple(dict.fromkeys((*policy.outputs, "logp")))
        return policy._replace(outputs=outputs, metrics=bind(_with_ref_kl, metrics=policy.metrics))

    algorithm = change_policy(algorithm, penalized)
    if not config.target:
        return algorithm
    settings = {"coef": config.coef, "target": config.target, "horizon": config.horizon}
    coefficient = adaptive_kl_coefficient("kl_loss_coef", **settings)
    return adapt_term(add_reads(algorithm, "old_logp", "ref_logp"), "ref_kl", "kl_loss_coef", coefficient)


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    if config.estimator == "straight_through":
        reason = "the gradient of straight_through is that of k2, and not the derivative of its value"
        return {"gradient_matches_finite_differences": reason}
    if config.estimator == "on_policy_k3":
        reason = "the gradient flows through a ratio whose value is always 1"
        return {"gradient_matches_finite_differences": reason}
    if config.estimator == "k1":
        return {"reinforce_gradient_on_policy": "the gradient of k1 is 0 in expectation, and not at each token"}
    return {}


_ref_kl = token_means(ref_kl=of_fields(k3, "logp", "ref_logp"))


def _with_ref_kl(batch: TensorDict, *, metrics: Callable) -> dict[str, Weighted]:
    return {**metrics(batch), **_ref_kl(batch)}
