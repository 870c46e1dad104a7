"""Losses of each library. The functions compute a loss and return its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.batch import Batch, Function, Row, row
from benchmarks.peers.libraries import actor, core_algos, kl, losses
from purerl.algos.kl_cov import distance_penalty
from purerl.algos.parts import divergences, reductions
from purerl.algos.parts.selection import high_covariance_tokens, sampled_covariance_tokens
from purerl.algos.parts.surrogates import (
    clip_surrogate,
    dual_clip_surrogate,
    geometric_mean_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_ratio,
    soft_gate_surrogate,
    token_ratio,
)
from purerl.algos.parts.values import clipped_value_loss
from purerl.algos.parts.weights import binary_kl, binary_tv, clipped_weight, divergence_masked_weight

__all__ = ["LOSSES"]

Loss = Callable[[Batch, Tensor], Tensor]

CLIP = dict(clip_low=0.2, clip_high=0.2)
ACTOR = dict(
    strategy="fsdp",
    rollout_n=1,
    ppo_mini_batch_size=1,
    ppo_micro_batch_size_per_gpu=1,
    clip_ratio=0.2,
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
)
ROWS = "seq-mean-token-mean"


def gradient(loss: Loss) -> Function:
    """The gradient of a loss with respect to the log-probabilities; NaN if the loss is not finite.

    A loss on the device "meta" has no value. The check is a branch, because `torch.where` would add a copy of the
    gradient to the measured time.
    """

    def call(b: Batch) -> Tensor:
        leaf = b.logp.detach().requires_grad_()
        value = loss(b, leaf)
        [grad] = torch.autograd.grad(value, leaf)
        return grad if value.is_meta or value.isfinite() else torch.full_like(grad, torch.nan)

    return call


def reduced(loss: Loss, reduce: Callable = reductions.token_mean) -> Function:
    """The gradient of a loss per token, which is reduced by a function of purerl."""
    return gradient(lambda b, logp: reduce(loss(b, logp), b.action, b.counts))


def verl(name: str, mode: str = "token-mean", clip_ratio_c: float = 20.0) -> tuple[Any, Function]:
    """verl's policy loss `name`. It also computes metrics."""
    if actor is None:
        return None, gradient(_ppo)
    function, config = (
        getattr(core_algos, f"compute_policy_loss_{name}"),
        actor.ActorConfig(**ACTOR, clip_ratio_c=clip_ratio_c),
    )
    return core_algos, gradient(lambda b, logp: function(b.old_logp, logp, b.advantage, b.mask, mode, config)[0])


def openrlhf(**options: Any) -> tuple[Any, Function]:
    """OpenRLHF's policy loss. It also computes metrics."""
    return losses, gradient(lambda b, p: losses.PolicyLoss(**options)(p, b.old_logp, b.advantage, b.mask)[0])


# --- losses of purerl --------------------------------------------------------------------------------------------


def _ppo(b: Batch, logp: Tensor) -> Tensor:
    return ppo_clip(logp, b.old_logp, b.advantage, **CLIP)


def _dual(b: Batch, logp: Tensor) -> Tensor:
    return dual_clip_surrogate(token_ratio(logp, b.old_logp), b.advantage, **CLIP, ratio_cap=3.0)


def _gspo(b: Batch, logp: Tensor) -> Tensor:
    return clip_surrogate(sequence_ratio(logp, b.old_logp, b.action), b.advantage, **CLIP)


def _sapo(b: Batch, logp: Tensor) -> Tensor:
    return soft_gate_surrogate(token_ratio(logp, b.old_logp), b.advantage, gate_positive=1.0, gate_negative=1.05)


def _gmpo(b: Batch, logp: Tensor) -> Tensor:
    ratio = geometric_mean_ratio(logp, b.old_logp, b.advantage, b.action, log_clip_low=0.2, log_clip_high=0.2)
    return -b.advantage * ratio


def _cispo(b: Batch, logp: Tensor) -> Tensor:
    return policy_gradient(logp, clipped_weight(logp, b.old_logp, **CLIP).detach() * b.advantage)


def _clip_cov(b: Batch, logp: Tensor) -> Tensor:
    bounds = dict(fraction=2e-4, cov_low=1.0, cov_high=5.0)
    return torch.where(
        sampled_covariance_tokens(b.old_logp, b.advantage, b.noise, b.action, **bounds), 0, _ppo(b, logp)
    )


def _kl_cov(b: Batch, logp: Tensor) -> Tensor:
    selected = high_covariance_tokens(b.old_logp, b.advantage, b.action, top_fraction=2e-4)
    return importance_surrogate(logp, b.old_logp, b.advantage) + distance_penalty(logp, b.old_logp, selected)


def _dppo(divergence: Callable) -> Loss:
    bounds = dict(divergence_low=0.2, divergence_high=0.2, ratio_cap=20.0)

    def loss(b: Batch, logp: Tensor) -> Tensor:
        weight = divergence_masked_weight(logp, b.old_logp, b.advantage, divergence=divergence, **bounds)
        return policy_gradient(logp, weight.detach() * b.advantage)

    return loss


def _value(b: Batch, value: Tensor) -> Tensor:
    return clipped_value_loss(value, b.value, b.returns, value_clip=0.2)


def _verl_value(b: Batch, value: Tensor) -> Tensor:
    return core_algos.compute_value_loss(value, b.returns, b.value, b.mask, 0.2)[0]


def _openrlhf_value(b: Batch, value: Tensor) -> Tensor:
    return losses.ValueLoss(0.2)(value, b.value, b.returns, b.mask)


# --- the table ---------------------------------------------------------------------------------------------------


def _policy(name: str, loss: Loss, verl_loss: tuple[Any, Function], *, reduce: Callable = reductions.token_mean) -> Row:
    return row(name, reduced(loss, reduce), 4, others={"verl": verl_loss})


def _divergence(name: str, estimate: Callable) -> Row:
    """A KL estimator. It has the same name in all libraries, and is reduced by `token_mean`."""
    return row(
        f"divergence {name}",
        reduced(lambda b, logp: estimate(logp, b.ref_logp)),
        3,
        others={
            "verl": (core_algos, reduced(lambda b, p: core_algos.kl_penalty(p, b.ref_logp, name))),
            "openrlhf": (kl, reduced(lambda b, p: kl.compute_approx_kl(p, b.ref_logp, kl_estimator=name))),
        },
    )


def _reduction(name: str, reduce: Callable, mode: str) -> Row:
    others = {"verl": (core_algos, gradient(lambda b, x: core_algos.agg_loss(x, b.mask, mode)))}
    return row(name, reduced(lambda b, x: x, reduce), 2, others=others)


row_mean = reductions.sequence_mean_of_token_mean
PPO = {"verl": verl("vanilla", clip_ratio_c=1e9), "openrlhf": openrlhf()}
DUAL = {"verl": verl("vanilla", clip_ratio_c=3.0), "openrlhf": openrlhf(dual_clip=3.0)}
VALUE = {"verl": (core_algos, gradient(_verl_value)), "openrlhf": (losses, gradient(_openrlhf_value))}

LOSSES: list[Row] = [
    row("ppo clip", reduced(_ppo), 4, others=PPO),
    row("dual clip", reduced(_dual), 4, others=DUAL),
    row(
        "gspo",
        reduced(_gspo, row_mean),
        4,
        others={"verl": verl("gspo", ROWS), "openrlhf": openrlhf(policy_loss_type="gspo")},
    ),
    _policy("sapo", _sapo, verl("sapo", ROWS), reduce=row_mean),
    _policy("gmpo", _gmpo, verl("geo_mean", ROWS), reduce=row_mean),
    _policy("cispo", _cispo, verl("cispo")),
    _policy("clip_cov", _clip_cov, verl("clip_cov")),
    _policy("kl_cov", _kl_cov, verl("kl_cov")),
    _policy("dppo tv", _dppo(binary_tv), verl("dppo_tv")),
    _policy("dppo kl", _dppo(binary_kl), verl("dppo_kl")),
    _divergence("k1", divergences.k1),
    _divergence("k2", divergences.k2),
    _divergence("k3", divergences.k3),
    row("value loss", reduced(_value), 4, others=VALUE),
    _reduction("token mean", reductions.token_mean, "token-mean"),
    _reduction("sequence mean of token mean", row_mean, ROWS),
    _reduction("sequence mean of token sum", reductions.sequence_mean_of_token_sum, "seq-mean-token-sum"),
]
