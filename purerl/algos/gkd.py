"""GKD, generalized knowledge distillation: Agarwal et al. 2023 (2306.13649), with the Jensen-Shannon divergence.

The policy samples completions, and learns the distribution of a teacher at each of their tokens. The generalized
Jensen-Shannon divergence is between the forward KL, which covers all modes of the teacher, and the reverse KL, which
favors one of them. It is bounded, and a token that only one of both models finds possible has a finite loss.

    m_itk = beta p_itk + (1 - beta) pi_itk
    l_it  = beta sum_k p_itk log(p_itk / m_itk) + (1 - beta) sum_k pi_itk log(pi_itk / m_itk)
    loss  = (1 / tokens) sum_it l_it

p_itk and pi_itk are the probabilities of the k-th token under the teacher and under the policy, for the k tokens that
the teacher finds most likely. One more summand has all other tokens as one. The rest is as in `opd_top_k`, which has
the two limits: the forward and the reverse KL.

Choices that differ between libraries:

- TRL's GKD trainer compares the whole vocabulary. Its trainers with a `loss_top_k` also use the policy's most likely
  tokens. Here, the teacher selects the tokens. With `top_k` as large as the vocabulary, the loss is TRL's.
- `policy/loss/jsd` is l_it. The other metrics are those of `opd_top_k`.

Differences from the paper:

1. All completions are sampled from the policy (lambda of the paper is 1), and the temperature of the distillation is 1.
2. Tokens outside of the k are not distinguished.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import opd_top_k
from purerl.algos.algebra import Algorithm, Term, of_fields
from purerl.algos.parts.distillation import topk_jsd
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = opd_top_k.EXEMPTIONS


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GKD."""

    beta: float = number(
        "weight of the teacher in the mixture: toward 0 as the forward KL, toward 1 as the reverse KL",
        0.5,
        above=0,
        max=1,
    )

    def __attrs_post_init__(self) -> None:
        if self.beta == 1:
            do = "use opd_top_k, which has the reverse KL"
            raise ConfigError("beta", got="1, with which the loss is 0", need="a number between 0 and 1", do=do)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GKD from `config`."""
    compared = opd_top_k.algorithm()
    [policy] = compared.objectives
    jsd = Term("jsd", of_fields(topk_jsd, "topk_logp", "teacher_topk_logp", beta=config.beta), token_mean)
    return compared._replace(objectives=(policy._replace(terms=(jsd,)),))
