"""CoDaPO, confidence- and difficulty-adaptive policy optimization: 2026 (2606.07950), as in verl.

Prompts that the policy always or never solves teach little, and so do those at which it guesses. CoDaPO weights the
advantages of a group by the value of its prompt: how sure the policy was of its completions, times a weight that is
largest if half of them are correct.

    c_g = exp(mean_g((1 / n_i) sum_t rollout_logp_it))
    d_g = 1 - mean_g(correctness)
    v_g = c_g (1 - 4 (d_g - 1/2)^2)
    A_i = (v_g + delta) (s_i - mean_g) / (std_g + 1e-6)

n_i is the number of tokens of row i, and g its group. A row is correct if its field `correctness` is at least 1/2: that
is the component of the reward with this name, without its weight, so it is not the reward itself. The rest is as in
`grpo`.

The focused phase of the paper, in which the prompts with the largest values are drawn again, is a setting of the data:
`data.curriculum = {by = "uniform", unbiased = false, focus = 4}` repeats the 4 prompts with the largest v_g in every
other step, with new completions.

Choices that differ between libraries:

- A row whose reward function has no component `correctness` is not correct.
- In a group of one row, every advantage is 0.

The differences from the paper are those of `grpo`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.difficulty import prompt_value
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.settings import number
from purerl.kernels.masks import any_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of CoDaPO: the settings of GRPO, and the weight that every prompt has."""

    delta: float = number("added to the value of each prompt", 0.1, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build CoDaPO from `config`."""
    advantage = stateless(write_field("advantage", bind(_valued_advantage, delta=config.delta)))
    return grpo.algorithm(config)._replace(reads=("reward", "correctness", "rollout_logp"), advantage=advantage)


def _valued_advantage(batch: TensorDict, *, delta: float) -> TokenFloat:
    group, mask = batch["group"], batch["mask"]
    counted, is_correct = any_true(mask), batch["correctness"] >= 0.5
    value = prompt_value(row_mean(batch["rollout_logp"], mask), is_correct, group, counted)
    advantage = group_normalized_advantage(batch["reward"].sum(-1), group, counted)
    return broadcast_to_tokens((value + delta) * advantage, mask)
