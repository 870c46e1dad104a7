"""On-policy distillation, from the teacher's likeliest tokens: Agarwal et al. 2023, GKD (2306.13649).

The policy samples, and at each of its tokens it is compared with a teacher: not by the sampled token alone, as in
`opd`, but by the k tokens that the teacher finds likeliest there. No reward, no advantage, and no variance but that of
what is sampled.

    p, pi = the probabilities of those k tokens, under the teacher and under the policy
    R_t   = sum_k pi (log pi - log p) - pi + p                          reverse: seeks a mode of the teacher's
    F_t   = sum_k p (log p - log pi) - p + pi                           forward: covers them all
    loss  = token mean of reverse_coef * R_t + forward_coef * F_t

The last two summands of each make up for what is not among the k tokens: R and F are 0 where the k probabilities agree,
and above 0 elsewhere. Over the whole vocabulary they cancel, and R and F are the divergences.

`topk_logp` is an output of the model: its log-probabilities of `teacher_topk_tokens`.

Choices, where libraries differ: the k probabilities are those among all tokens, not renormalized; the teacher, not the
policy, says which k; teacher and policy share a tokenizer.

Metrics, each a mean over counted tokens: `reverse_kl` and `forward_kl`, nats; `coverage`, the probability that the
policy gives to the k tokens; `entropy`, nats.

Differences from the paper:

1. Its generalized Jensen-Shannon divergence, of which these are the two ends, is not there, but sums of both are.
2. Its temperature of the distillation is 1, and all completions are the policy's own (its lambda is 1).
3. Only k tokens are compared.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, identity, of_fields, read_field
from purerl.algos.parts.distillation import topk_forward_kl, topk_reverse_kl
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, optional
from purerl.errors import ConfigError
from purerl.types import TokenFloat, TopKFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it imitates a teacher's distribution and has no advantage"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of on-policy distillation from the teacher's likeliest tokens."""

    reverse_coef: float = number("weight of the divergence that seeks a mode of the teacher's", 1.0, min=0)
    forward_coef: float = number("weight of the divergence that covers all of them", 0.0, min=0)

    def __attrs_post_init__(self) -> None:
        if not self.reverse_coef + self.forward_coef:
            raise ConfigError("reverse_coef", got="0, and forward_coef 0", need="one of the two above 0")


def algorithm(config: Config = Config()) -> Algorithm:
    """On-policy distillation from the teacher's likeliest tokens, as `config` sets it."""
    reverse = of_fields(topk_reverse_kl, "topk_logp", "teacher_topk_logp")
    forward = of_fields(topk_forward_kl, "topk_logp", "teacher_topk_logp")
    policy = Objective(
        role="policy",
        reads=("teacher_topk_logp",),
        outputs=("topk_logp",),
        metric_outputs=("entropy",),
        terms=(
            *optional(config.reverse_coef, Term("reverse_kl", reverse, token_mean, weight=config.reverse_coef)),
            *optional(config.forward_coef, Term("forward_kl", forward, token_mean, weight=config.forward_coef)),
        ),
        metrics=token_means(
            reverse_kl=reverse,
            forward_kl=forward,
            coverage=of_fields(_coverage, "topk_logp"),
            entropy=read_field("entropy"),
        ),
    )
    return Algorithm(reads=(), advantage=identity, objectives=(policy,))


def _coverage(topk_logp: TopKFloat) -> TokenFloat:
    return topk_logp.clamp(max=0).exp().sum(-1)
