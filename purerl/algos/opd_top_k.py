"""On-policy distillation from the teacher's top-k tokens: Agarwal et al. 2023, GKD (2306.13649).

The policy samples completions. At each of their tokens, the distributions of policy and teacher are compared at the
teacher's k most likely tokens; `opd` compares the sampled token alone. No reward and no advantage is used. The only
source of variance is the sampling of completions.

    R_it = sum_k (pi_k (log pi_k - log p_k) - pi_k + p_k)
    F_it = sum_k (p_k (log p_k - log pi_k) - p_k + pi_k)
    l_it = reverse_coef * R_it + forward_coef * F_it
    loss = (1 / tokens) sum_it l_it

p_k and pi_k are the probabilities of the k-th of these tokens under the teacher and under the policy. R_it estimates
the reverse KL, KL(policy || teacher), which favors one mode of the teacher. F_it estimates the forward KL,
KL(teacher || policy), which covers all modes. The last two summands correct for the missing tokens: R_it and F_it are 0
if the probabilities of the k tokens agree, and positive otherwise. Over the whole vocabulary these summands cancel, and
R_it and F_it are the divergences.

The teacher supplies `teacher_topk_tokens`, the ids of its k most likely tokens, and their log-probabilities
`teacher_topk_logp`. The policy supplies `topk_logp`, its log-probabilities of the same tokens. k is a setting of the
teacher's trainer, `roles.teacher.trainer.top_k`. `tokens` is the number of tokens of the optimizer step. Losses, means
and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Probabilities are relative to the whole vocabulary. They are not renormalized over the k tokens.
- The teacher selects the k tokens, not the policy.
- Teacher and policy must have the same tokenizer.

Metrics, means over the tokens where `mask` is 1:

- `policy/reverse_kl`: R_it, nats.
- `policy/forward_kl`: F_it, nats.
- `policy/coverage`: total probability of the k tokens under the policy, a fraction.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The generalized Jensen-Shannon divergence of the paper is in `gkd`. Here, `reverse_coef` and `forward_coef`
   weight its two limits, the reverse and the forward KL.
2. The temperature of the distillation is 1, and all completions are sampled from the policy (lambda of the paper is 1).
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

EXEMPTIONS = {
    "reads_are_declared": "`teacher_topk_tokens` is read by the trainer, which computes `topk_logp` for these tokens",
    "reinforce_gradient_on_policy": "it is trained on the distribution of a teacher and has no advantage",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of on-policy distillation from the teacher's top-k tokens."""

    reverse_coef: float = number("weight of the reverse KL, which favors one mode of the teacher", 1.0, min=0)
    forward_coef: float = number("weight of the forward KL, which covers all modes of the teacher", 0.0, min=0)

    def __attrs_post_init__(self) -> None:
        if not self.reverse_coef + self.forward_coef:
            need = "reverse_coef or forward_coef above 0"
            raise ConfigError("reverse_coef", got="0, and forward_coef is 0", need=need, do="set one of the two")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build on-policy distillation from the teacher's top-k tokens from `config`."""
    reverse = of_fields(topk_reverse_kl, "topk_logp", "teacher_topk_logp")
    forward = of_fields(topk_forward_kl, "topk_logp", "teacher_topk_logp")
    policy = Objective(
        role="policy",
        reads=("teacher_topk_tokens", "teacher_topk_logp"),
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
