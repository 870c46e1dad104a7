"""What rewards are to an algorithm: none is lost, differences count, and the unit does not."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, keep_all
from purerl.batch import with_fields
from purerl.testing.laws.law import law, same
from purerl.testing.outcome import Outcome, difference, judge, run
from purerl.testing.perturbations import agree, raise_scores, scale

__all__ = ["no_reward_lost", "reward_scale_equivariance", "reward_shift_invariance"]


@law
def no_reward_lost(algorithm: Algorithm, batch: TensorDict) -> None:
    """A reward on the last token of one of two equal rows, masked out or a tool's, tells it apart, never as the worse.

    Where there is an advantage, that of the row with the reward, summed over tokens that count, is not below the
    other's.
    """
    counted = batch["mask"].any(-1).nonzero()[:, 0].tolist() if "reward" in algorithm.reads else []
    for row in counted[:1]:
        twins = with_fields(batch[[row, row]], row=torch.arange(2))
        none = torch.zeros_like(twins["reward"])
        one = none.clone()
        one[0, int(twins["attention_mask"][0].sum()) - 1] = 1
        # Selection would show it too, but only that rows differ: it does not say which of them is better.
        results = [
            run(algorithm._replace(select=keep_all), with_fields(twins, reward=reward)) for reward in (none, one)
        ]
        assert difference(*results), "a reward on the last token has no effect"
        advantage = results[1].rows.get("field advantage")
        if advantage is not None:
            better, worse = torch.where(twins["mask"], advantage, 0).sum(-1).tolist()
            assert better >= worse - 1e-9, f"a reward more has an advantage of {better:.6g}, none {worse:.6g}"


@law
def reward_shift_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """The same reward more for all rows of a group changes nothing that is made of rewards: only differences matter."""
    same(judge(algorithm, batch), judge(algorithm, raise_scores(batch)), tolerance=1e-6)


@law
def reward_scale_equivariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Rewards times 8: each thing that is made of them is 8 times as large, or stays as it is.

    This holds where all policies agree, for a nat is no reward; and up to what is added to numbers that are divided by.
    """
    batch = agree(batch)
    before, after = (judge(algorithm, b).rows for b in (batch, scale(batch, 8)))
    for name, value in before.items():
        gaps = [_gap(value * factor, after[name]) for factor in (1, 8)]
        assert None in gaps, f"{name} is neither 8 times as large nor the same: {gaps[1]}"


def _gap(expected: Tensor, found: Tensor) -> str | None:
    return difference(Outcome({"": expected}, {}, {}), Outcome({"": found}, {}, {}), tolerance=1e-3)
