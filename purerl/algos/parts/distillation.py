"""Learning from a teacher: transforms that put it into the advantage.

    teacher_advantage    what the sampled token says of the divergence from policy to teacher
    distilled            adds that to `advantage`: behind an estimator it is one more reward, at every token
    no_advantage         where the teacher is the only one to say anything, what it is added to

and divergences that a loss can be made of, summed over the k tokens that the teacher finds likeliest:

    topk_reverse_kl      sum_k pi (log pi - log p) - pi + p          seeks a mode of the teacher's
    topk_forward_kl      sum_k p (log p - log pi) - p + pi           covers them all

What is not among the k tokens is missing from both pi and p, so that neither sums to 1. The last two summands make up
for it: each divergence is 0 where pi = p, and above 0 elsewhere; over the whole vocabulary they cancel. A
log-probability is clamped to [-inf, 0] where it is exponentiated.

Teacher and policy share a tokenizer. Log-probabilities are [rows, time], or [rows, time, k], in nats.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Transform, bind, of_fields, stateless, writes
from purerl.types import ChoiceFloat, TokenFloat

__all__ = ["distilled", "no_advantage", "scaled", "teacher_advantage", "topk_forward_kl", "topk_reverse_kl"]


def teacher_advantage(teacher_logp: TokenFloat, logp: TokenFloat, *, distillation_coef: float) -> TokenFloat:
    """distillation_coef * (teacher_logp - logp), without gradient.

    It is -k1, and its policy gradient that of KL(policy || teacher), prefix by prefix. Positive where the teacher finds
    the sampled token likelier than the policy does. Source: GKD (2306.13649).

    >>> teacher_advantage(torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), distillation_coef=0.5)
    tensor([[1.]])
    """
    return distillation_coef * (teacher_logp - logp).detach()


def topk_reverse_kl(topk_logp: ChoiceFloat, teacher_topk_logp: ChoiceFloat) -> TokenFloat:
    """KL(policy || teacher) over the teacher's k tokens: sum_k pi (log pi - log p) - pi + p. Source: 2306.08543.

    >>> half = torch.tensor([[[0.5, 0.25]]]).log()
    >>> topk_reverse_kl(half, half).abs()
    tensor([[0.]])
    """
    mine, teacher = topk_logp.clamp(max=0).exp(), teacher_topk_logp.clamp(max=0).exp()
    return (mine * (topk_logp - teacher_topk_logp) - mine + teacher).sum(-1)


def topk_forward_kl(topk_logp: ChoiceFloat, teacher_topk_logp: ChoiceFloat) -> TokenFloat:
    """KL(teacher || policy) over the teacher's k tokens: sum_k p (log p - log pi) - p + pi. Source: 2306.13649."""
    return topk_reverse_kl(teacher_topk_logp, topk_logp)


def distilled(*, distillation_coef: float) -> Transform:
    """Adds `teacher_advantage` to `advantage` where it counts; reads `advantage`, `old_logp` and `teacher_logp`."""
    return stateless(writes("advantage", bind(_distilled, distillation_coef=distillation_coef)))


def _distilled(batch: TensorDict, *, distillation_coef: float) -> TokenFloat:
    more = teacher_advantage(batch["teacher_logp"], batch["old_logp"], distillation_coef=distillation_coef)
    return batch["advantage"] + torch.where(batch["mask"], more, 0)


def _nothing(logp: TokenFloat) -> TokenFloat:
    return torch.zeros_like(logp)


no_advantage = stateless(writes("advantage", of_fields(_nothing, "old_logp")))
"""Writes `advantage`: 0 everywhere; reads `old_logp`, for its shape."""


def scaled(*, factor: float) -> Transform:
    """Replaces `advantage` by `factor` times it."""
    return stateless(writes("advantage", of_fields(_scaled, "advantage", factor=factor)))


def _scaled(advantage: TokenFloat, *, factor: float) -> TokenFloat:
    return factor * advantage
