"""GiGPO, group-in-group policy optimization: Feng et al. 2025 (2505.10978).

GiGPO is GRPO for agents that act in several steps. Rows of one prompt often reach the same state of the environment.
The steps that start in the same state form a group within the group. Comparing their returns shows which step was good;
the score of a whole row cannot show this. No additional rollouts are needed.

    E_i  = (s_i - mean_g) / (std_g + 1e-6)
    R_ik = sum_{j >= k} discount^(j - k) reward_ij
    S_ik = (R_ik - mean(R)) / (std(R) + 1e-6)
    A_it = E_i + step_coef * S_ik    at the tokens of step k
    l_it = max(-A_it r_it, -A_it clip(r_it, 1 - clip_low, 1 + clip_high))

reward_ij is the reward of step j of row i. mean(R) and std(R) are over the steps of the group that start in the same
state. A step is a run of action tokens with the same `turn`. `anchor` labels the state at the first token of the step.
The environment has to supply both fields. The rest is as in `grpo`.

Choices that differ between libraries:

- Standard deviations divide by the number of values minus 1.
- S_ik is 0 if a state occurs only once. E_i is 0 in a group of one row.
- A row can reach the same state twice. A group of one row can therefore have advantages other than 0.
- Two states are the same if their labels are equal.

The differences from the paper are those of `grpo`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.estimators.steps import step_relative_advantage
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.kernels.masks import any_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "reward_shift_invariance": "returns of steps are discounted, so a shift of the outcome changes later steps more",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of GiGPO: the settings of GRPO, and those of the steps."""

    step_coef: float = number("weight of the step advantage, relative to the row advantage", 1.0, min=0)
    discount: float = number("what a reward loses with each step that comes before it", 0.95, min=0, max=1)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GiGPO from `config`."""
    advantage = bind(_group_in_group_advantage, step_coef=config.step_coef, discount=config.discount)
    return grpo.algorithm(config)._replace(
        reads=("reward", "turn", "anchor"), advantage=stateless(write_field("advantage", advantage)), min_group_size=1
    )


def _group_in_group_advantage(batch: TensorDict, *, step_coef: float, discount: float) -> TokenFloat:
    reward, group, mask = batch["reward"], batch["group"], batch["mask"]
    row_advantage = broadcast_to_tokens(group_normalized_advantage(reward.sum(-1), group, any_true(mask)), mask)
    step_advantage = step_relative_advantage(
        reward, batch["turn"], batch["anchor"], group, batch["action"], mask, discount=discount
    )
    return row_advantage + step_coef * step_advantage
