"""SAPO, soft adaptive policy optimization: Gao et al. 2025 (2511.20347).

GRPO without a hard clip. A sigmoid of the ratio closes the gate smoothly as a token leaves the policy that it was
sampled from, and faster for bad tokens than for good ones: making one token rarer makes all others likelier, and that
is where instability comes from.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    l_it = -(4 / g) sigmoid(g (r_it - 1)) A_i           g: gate_positive where A_i > 0, else gate_negative
    loss = mean over rows of the mean over tokens of l_it

Choices, where libraries differ: the standard deviation divides by N_g - 1; a group of one has advantage 0. The paper's
temperatures tau are `gate_positive` and `gate_negative` here, since a temperature is the sampler's.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
2. The mean is over all rows of an optimizer step, not first over the rows of each group: the same where groups are of
   one size.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import moved, per_token, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import soft_gate_surrogate
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of SAPO."""

    gate_positive: float = number("how fast the gradient fades with the ratio where A > 0", 1.0, above=0)
    gate_negative: float = number("how fast the gradient fades with the ratio elsewhere", 1.05, above=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """SAPO as `config` sets it."""
    policy = policy_objective(
        bind(_surrogate, gate_positive=config.gate_positive, gate_negative=config.gate_negative),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved, "ratio": per_token},
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)


def _surrogate(batch: TensorDict, **gates: float) -> TokenFloat:
    return soft_gate_surrogate(per_token(batch), batch["advantage"], **gates)
