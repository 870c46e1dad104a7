"""PF-PPO, policy filtration for PPO: Shen and Zhang 2024 (2409.06957).

A reward model is most reliable if its score is extreme. PF-PPO draws rows from the batch with replacement before PPO
learns from them. Rows with extreme scores are drawn more often.

    weight_i = abs(s_i)^power + 1e-8
    copies_i = c_i * tokens / sum_j c_j n_j

s_i is the sum of all rewards of row i, before any KL penalty. n_i is its number of tokens, and `tokens` is the number
of tokens of the batch. As many rows are drawn as the batch has, with probabilities proportional to weight_i; c_i is how
often row i is drawn.

The rest is as in `ppo`. The loss of each token of row i is multiplied by copies_i, and no row is copied. The mean over
the tokens of the whole batch is then the mean over the tokens of the drawn rows.

Choices that differ between libraries:

- The weights are verl's "pow". verl's other weights and the drawing are in `purerl.algos.parts.resampling`.
- Advantages are whitened before rows are drawn.
- The random numbers of the draw are the field `noise`, at the first action token of each row.

Differences from the paper:

1. The filter is verl's (unverified). The filter of the paper keeps rows by the rank of their rewards.
2. If a batch has several optimizer steps, the loss of a step is divided by the tokens of all its rows, drawn or not. A
   step with more of the drawn rows has more weight.
3. The differences of `ppo`.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos import ppo
from purerl.algos.algebra import Algorithm, Objective, bind, chain, stages_of, stateless, write_field
from purerl.algos.parts.resampling import power_weight, resample
from purerl.algos.parts.rows import first_counted
from purerl.algos.parts.settings import number
from purerl.kernels.masks import any_true, count_true
from purerl.types import RowFloat, TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "multiply_by_copies"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch, and rows are drawn from it",
    "reward_shift_invariance": "the critic's estimate does not depend on the shift, and the drawing weights do",
    "reinforce_gradient_on_policy": "the loss of a row is multiplied by the number of times that it is drawn",
}


@frozen(kw_only=True)
class Config(ppo.Config):
    """Hyperparameters of PF-PPO: the settings of PPO, and `power`."""

    power: float = number("exponent of abs(score) in the drawing weights", 2.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build PF-PPO from `config`."""
    base = ppo.algorithm(config)
    # The weights use the score without the KL penalty, which is no part of the reward model's score.
    copies = stateless(write_field("copies", bind(_power_weighted_copies, power=config.power)))
    return base._replace(
        reads=(*base.reads, "noise"),
        advantage=chain(copies, *stages_of(base.advantage)),
        objectives=tuple(map(multiply_by_copies, base.objectives)),
    )


def multiply_by_copies(objective: Objective) -> Objective:
    """`objective` with the loss of each term multiplied by `copies`."""
    terms = tuple(term._replace(loss=bind(_loss_times_copies, loss=term.loss)) for term in objective.terms)
    return objective._replace(reads=(*objective.reads, "copies"), terms=terms)


def _loss_times_copies(batch: TensorDict, *, loss: Callable[[TensorDict], TokenFloat]) -> TokenFloat:
    return batch["copies"].unsqueeze(-1) * loss(batch)


def _power_weighted_copies(batch: TensorDict, *, power: float) -> RowFloat:
    action, mask = batch["action"], batch["mask"]
    noise = first_counted(batch["noise"], action)
    copies = resample(power_weight(batch["reward"].sum(-1), power=power), noise, any_true(mask))
    tokens = count_true(mask).to(copies.dtype)
    drawn_tokens = (copies * tokens).sum(-1, keepdim=True)
    return copies * tokens.sum(-1, keepdim=True) / drawn_tokens.clamp(min=1)
