"""Laws of rewards and advantages."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, keep_all
from purerl.batch import with_fields
from purerl.testing.laws.law import assert_same, law
from purerl.testing.outcome import Outcome, find_difference, run, run_advantage
from purerl.testing.perturbations import equalize_policies, scale_rewards, shift_scores

__all__ = ["no_reward_lost", "reward_scale_equivariance", "reward_shift_invariance"]


@law
def no_reward_lost(algorithm: Algorithm, batch: TensorDict) -> None:
    """A reward of 1 on the last token of one of two equal rows changes a result and does not lower the row's advantage.

    The advantage of the row with the reward must be at least that of the other row, summed over counted tokens. The
    last token may be masked out, or it may be a tool's token. Common violations: rewards that are read at counted
    tokens only, a wrong sign.
    """
    counted_rows = batch["mask"].any(-1).nonzero()[:, 0].tolist() if "reward" in algorithm.reads else []
    for row in counted_rows[:1]:
        twins = with_fields(batch[[row, row]], row=torch.arange(2))
        no_reward = torch.zeros_like(twins["reward"])
        reward = no_reward.clone()
        reward[0, int(twins["attention_mask"][0].sum()) - 1] = 1
        # Selection would also change, but it shows only that the rows differ, not which row is better.
        unselective = algorithm._replace(select=keep_all)
        results = [run(unselective, with_fields(twins, reward=value)) for value in (no_reward, reward)]
        assert find_difference(*results), "a reward of 1 on the last token of a row: got no change, expected a change"
        advantage = results[1].rows.get("field advantage")
        if advantage is not None:
            with_reward, without = torch.where(twins["mask"], advantage, 0).sum(-1).tolist()
            assert with_reward >= without - 1e-9, (
                f"advantage of the row with a reward of 1: got {with_reward:.6g}, "
                f"expected at least {without:.6g}, the advantage of an equal row without a reward"
            )


@law
def reward_shift_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Adding a constant to the scores of all rows of a group changes neither the selected rows nor the advantages.

    A group-relative advantage depends on differences only. Common violation: a row in a group of one keeps its score. A
    module whose baseline is not a statistic of the group declares an exemption.
    """
    assert_same(run_advantage(algorithm, batch), run_advantage(algorithm, shift_scores(batch)), tolerance=1e-6)


@law
def reward_scale_equivariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Multiplying all rewards by 8 multiplies each result of the advantage stage by 8 or does not change it.

    The unit of rewards is arbitrary. All policies have equal log-probabilities in the batch, because a KL divergence in
    the reward does not scale. The tolerance is 1e-3, because of constants that are added to denominators. Common
    violation: a reward or an advantage that is clipped at a constant.
    """
    batch = equalize_policies(batch)
    before, after = (run_advantage(algorithm, b).rows for b in (batch, scale_rewards(batch, 8)))
    for name, value in before.items():
        unchanged, scaled = (_difference(value * factor, after[name]) for factor in (1, 8))
        assert unchanged is None or scaled is None, f"{name} after rewards are multiplied by 8{scaled}"


def _difference(expected: Tensor, actual: Tensor) -> str | None:
    return find_difference(Outcome({"": expected}, {}, {}), Outcome({"": actual}, {}, {}), tolerance=1e-3)
