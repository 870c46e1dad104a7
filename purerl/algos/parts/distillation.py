"""Distillation: advantages and losses from the log-probabilities of a teacher.

Transforms that use the teacher in the advantage:

    teacher_advantage       minus the difference of log-probabilities (-k1) at the sampled token
    prefix_weight           a weight that is larger at tokens whose prefix is likely under the teacher, too
    add_teacher_advantage   adds it to `advantage`, after an estimator
    zero_advantage          writes an advantage of 0, for algorithms without rewards

Divergences over the k tokens that the teacher finds most likely, for a loss:

    topk_reverse_kl      sum_k (pi (log pi - log p) - pi + p)        mode-seeking
    topk_forward_kl      sum_k (p (log p - log pi) - p + pi)         mode-covering
    topk_jsd             generalized Jensen-Shannon divergence of the k tokens and any other one

pi is the policy, p is the teacher. Tokens outside of the k are missing from both, so pi and p do not sum to 1. The last
two summands correct for this: each divergence is 0 if pi = p at the k tokens, and above 0 otherwise. Over the whole
vocabulary they cancel. A log-probability above 0 is taken as 0 before `exp`, and -inf is replaced as in `log_ratios`.

Teacher and policy share a tokenizer. Log-probabilities are [rows, time] or [rows, time, k], in nats.
"""

from __future__ import annotations

import torch

from purerl.algos.algebra import Transform, bind, of_fields, stateless, write_field
from purerl.algos.parts.elementwise import log, log1p
from purerl.algos.parts.log_ratios import finite_logp, log_ratio
from purerl.kernels.masks import masked
from purerl.types import TensorDict, TokenBool, TokenFloat, TopKFloat

__all__ = [
    "REST",
    "add_teacher_advantage",
    "prefix_weight",
    "scale_advantage",
    "teacher_advantage",
    "topk_forward_kl",
    "topk_jsd",
    "topk_reverse_kl",
    "zero_advantage",
]

REST = 1e-7
"""The smallest probability of all tokens outside of the k."""


def teacher_advantage(teacher_logp: TokenFloat, logp: TokenFloat, *, distillation_coef: float) -> TokenFloat:
    """Compute an advantage from the teacher's log-probability of the sampled token, without gradient.

        A_t = distillation_coef * (teacher_logp_t - logp_t)

    It is -k1: its policy gradient is the gradient of -KL(policy || teacher) at each prefix. It is positive if the
    teacher finds the sampled token more likely than the policy does. Shapes: [rows, time] each, in nats.
    Source: GKD (2306.13649).

    >>> teacher_advantage(torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), distillation_coef=0.5)
    tensor([[1.]])
    """
    return distillation_coef * log_ratio(teacher_logp, logp).detach()


def prefix_weight(advantage: TokenFloat, mask: TokenBool, *, weight_coef: float) -> TokenFloat:
    """Compute the weight of a token in IW-OPD: it falls from 1 + weight_coef with the discrepancy that came before.

        w_t = 1 + weight_coef (1 - sum_{s<t} m_s abs(A_s) / sum_s m_s abs(A_s))

    `advantage` is `teacher_advantage`, of which abs is the discrepancy of policy and teacher. If it is 0 everywhere,
    w is 1 + weight_coef. Shapes: [rows, time] each. Source: IW-OPD (2606.22600), as in TRL.

    >>> prefix_weight(torch.tensor([[-3.0, 1.0, 4.0]]), torch.tensor([[True, True, False]]), weight_coef=0.5)
    tensor([[1.5000, 1.1250, 1.0000]])
    """
    size = masked(advantage.abs(), mask)
    before, total = size.cumsum(-1) - size, size.sum(-1, keepdim=True)
    return 1 + weight_coef * (1 - before / torch.where(total > 0, total, 1))


def topk_jsd(topk_logp: TopKFloat, teacher_topk_logp: TopKFloat, *, beta: float) -> TokenFloat:
    """Compute the generalized Jensen-Shannon divergence of policy and teacher, with all other tokens as one.

        m_k = beta p_k + (1 - beta) pi_k
        D   = beta sum_k p_k log(p_k / m_k) + (1 - beta) sum_k pi_k log(pi_k / m_k)

    The sums have one more term, for any other token: its probabilities are 1 - sum_k p_k and 1 - sum_k pi_k, at least
    1e-7. D / beta approaches the forward KL with beta toward 0, and D / (1 - beta) the reverse KL with beta toward 1.
    Shapes: [rows, time, k] each, in nats; the result is [rows, time]. Source: GKD (2306.13649, eq. 1).

    >>> topk_jsd(torch.tensor([[[0.5]]]).log(), torch.tensor([[[0.5]]]).log(), beta=0.5)
    tensor([[0.]])
    """
    policy, teacher = _with_rest(topk_logp), _with_rest(teacher_topk_logp)
    mixture = torch.logaddexp(teacher + log(beta), policy + log1p(-beta))
    from_teacher, from_policy = ((x.exp() * (x - mixture)).sum(-1) for x in (teacher, policy))
    return beta * from_teacher + (1 - beta) * from_policy


def _with_rest(topk_logp: TopKFloat) -> torch.Tensor:
    """`topk_logp`, at most 0, and the log-probability of all other tokens together: [rows, time, k + 1]."""
    logp = finite_logp(topk_logp).clamp(max=0)
    rest = (1 - logp.exp().sum(-1, keepdim=True)).clamp(min=REST).log()
    return torch.cat([logp, rest], -1)


def topk_reverse_kl(topk_logp: TopKFloat, teacher_topk_logp: TopKFloat) -> TokenFloat:
    """Compute KL(policy || teacher) over the teacher's k most likely tokens.

        D_t = sum_k (pi_tk (log pi_tk - log p_tk) - pi_tk + p_tk)

    Shapes: [rows, time, k] each, in nats; the result is [rows, time]. Source: MiniLLM (2306.08543).

    >>> half = torch.tensor([[[0.5, 0.25]]]).log()
    >>> topk_reverse_kl(half, half).abs()
    tensor([[0.]])
    """
    policy, teacher = topk_logp.clamp(max=0).exp(), teacher_topk_logp.clamp(max=0).exp()
    return (policy * log_ratio(topk_logp, teacher_topk_logp) - policy + teacher).sum(-1)


def topk_forward_kl(topk_logp: TopKFloat, teacher_topk_logp: TopKFloat) -> TokenFloat:
    """Compute KL(teacher || policy) over the teacher's k most likely tokens.

        D_t = sum_k (p_tk (log p_tk - log pi_tk) - p_tk + pi_tk)

    Shapes: [rows, time, k] each, in nats; the result is [rows, time]. Source: GKD (2306.13649).
    """
    return topk_reverse_kl(teacher_topk_logp, topk_logp)


def add_teacher_advantage(*, distillation_coef: float) -> Transform:
    """Return a transform that adds `teacher_advantage` to `advantage` at counted tokens.

    Reads `advantage`, `old_logp` and `teacher_logp`.
    """
    return stateless(write_field("advantage", bind(_add_teacher_advantage, distillation_coef=distillation_coef)))


def _add_teacher_advantage(batch: TensorDict, *, distillation_coef: float) -> TokenFloat:
    added = teacher_advantage(batch["teacher_logp"], batch["old_logp"], distillation_coef=distillation_coef)
    return batch["advantage"] + masked(added, batch["mask"])


def _zeros_like(logp: TokenFloat) -> TokenFloat:
    return torch.zeros_like(logp)


zero_advantage = stateless(write_field("advantage", of_fields(_zeros_like, "old_logp")))
"""A transform that writes an `advantage` of 0. Reads `old_logp`, for its shape."""


def scale_advantage(*, factor: float) -> Transform:
    """Return a transform that multiplies `advantage` by `factor`."""
    return stateless(write_field("advantage", of_fields(_scale, "advantage", factor=factor)))


def _scale(advantage: TokenFloat, *, factor: float) -> TokenFloat:
    return factor * advantage
