"""PF-PPO, policy filtration for PPO: Shen and Zhang 2024 (2409.06957).

A reward model is most reliable if its score is extreme. PF-PPO draws rows from the batch with replacement before PPO
learns from them. Rows with extreme scores are drawn more often.

    weight_i = abs(s_i)^power + 1e-8
    copies_i = c_i * tokens / sum_j c_j n_j

s_i is the sum of all rewards of row i, before any KL penalty. n_i is its number of tokens, and `tokens` is the number
of tokens of the batch. As many rows are drawn as the batch has, with probabilities proportional to weight_i; c_i is how
often row i is drawn. Losses, means and counts cover only tokens where `mask` is 1.

The losses of critic and policy are as in `ppo`. The loss of each token of row i is multiplied by copies_i, and no row
is copied. The mean over the tokens of the whole batch is then the mean over the tokens of the drawn rows.

Choices that differ between libraries:

- The weights are verl's "pow". verl's other weights and the drawing are in `purerl.algos.parts.resampling`.
- Advantages are whitened before rows are drawn.
- The random numbers of the draw are the field `noise`, at the first action token of each row.

Metrics, means over the tokens where `mask` is 1:

- `critic/value_error`: squared error of the critic's estimate, reward^2.
- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The filter is verl's (unverified). The filter of the paper keeps rows by the rank of their rewards.
2. If a batch has several optimizer steps, the loss of a step is divided by the tokens of all its rows, drawn or not. A
   step with more of the drawn rows has more weight.
3. The differences of `ppo`.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, bind, chain, stateless, write_field
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.resampling import power_weight, resample
from purerl.algos.parts.rows import first_counted
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import gae_advantage, whiten_advantage
from purerl.algos.parts.values import critic_objective
from purerl.kernels.masks import any_true, count_true
from purerl.types import RowFloat, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "multiply_by_copies"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch, and rows are drawn from it",
    "reward_shift_invariance": "the critic's estimate does not depend on the shift, and the drawing weights do",
    "reinforce_gradient_on_policy": "the loss of a row is multiplied by the number of times that it is drawn",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of PF-PPO."""

    power: float = number("exponent of abs(score) in the drawing weights", 2.0, min=0)
    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0)
    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)
    lambda_: float = number("GAE lambda: 0 is the one-step error, 1 the return minus the value", 0.95, min=0, max=1)
    value_clip: float = number("clip range of the critic's estimate around its old value", 0.5, above=0, unit="reward")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build PF-PPO from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    return Algorithm(
        reads=("reward", "old_value", "noise"),
        advantage=chain(
            # The weights use the score without the KL penalty, which is no part of the reward model's score.
            stateless(write_field("copies", bind(_power_weighted_copies, power=config.power))),
            gae_advantage(discount=config.discount, lambda_=config.lambda_),
            whiten_advantage,
        ),
        objectives=(multiply_by_copies(critic_objective(value_clip=config.value_clip)), multiply_by_copies(policy)),
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
