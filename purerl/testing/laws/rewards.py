"""Laws of rewards and advantages."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, compute_advantages, keep_all
from purerl.algos.parts.rows import at_last_action
from purerl.batch import STRUCTURE, with_fields
from purerl.testing.batches import example_batch
from purerl.testing.laws.law import assert_same, law
from purerl.testing.outcome import Outcome, find_difference, run, run_advantage
from purerl.testing.perturbations import equalize_policies, regroup, scale_rewards, shift_scores

__all__ = ["no_reward_lost", "reward_scale_equivariance", "reward_shift_invariance", "small_groups_have_zero_advantage"]


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


# --- group size --------------------------------------------------------------------------------------------------


@law
def small_groups_have_zero_advantage(algorithm: Algorithm, batch: TensorDict) -> None:
    """Advantages are exactly 0 in groups of fewer than `min_group_size` rows, and not always 0 in groups of that size.

    A run with smaller groups learns nothing, so `purerl train` refuses to start it. Common violations: `min_group_size`
    is not declared for a group-relative advantage, a row in a group of one keeps its score.
    """
    size = algorithm.min_group_size
    assert size >= 1, f"min_group_size: got {size}, expected at least 1"
    if _counted_advantages(algorithm, batch) is None:
        assert size == 1, f"min_group_size: got {size}, expected 1 because the algorithm writes no advantage"
        return
    if size > 1:
        batches = [regroup(batch, size - 1), *_batches_of_groups(algorithm, size - 1)]
        largest = max(_largest_advantage(algorithm, small_groups) for small_groups in batches)
        assert largest == 0, (
            f"largest advantage at group size {size - 1}: got {largest:.6g}, expected 0 below min_group_size {size}; "
            "set min_group_size to the smallest group size with a nonzero advantage"
        )
    largest = max(_largest_advantage(algorithm, groups) for groups in _batches_of_groups(algorithm, size))
    assert largest > 0, (
        f"largest advantage at group size {size}: got 0, expected above 0 at min_group_size {size}; "
        "set min_group_size to the smallest group size with a nonzero advantage"
    )


def _largest_advantage(algorithm: Algorithm, batch: TensorDict) -> float:
    """The largest absolute advantage of the counted tokens; 0 without counted tokens."""
    counted = _counted_advantages(algorithm, batch)
    return float(counted.abs().max()) if counted is not None and counted.numel() else 0.0


def _counted_advantages(algorithm: Algorithm, batch: TensorDict) -> Tensor | None:
    """The advantages of the counted tokens, or None if the algorithm writes no advantage."""
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), batch.select(*STRUCTURE, *algorithm.reads))
    return after["advantage"][after["mask"]] if "advantage" in after.keys() else None


def _batches_of_groups(algorithm: Algorithm, size: int) -> Iterator[TensorDict]:
    """Batches of four groups of `size` rows: with random rewards, and with one to four correct rows in each."""
    layout = tuple((group, ".aaa") for group in range(4) for _ in range(size))
    for seed in range(5):
        batch = example_batch(algorithm.reads, layout, seed=seed)
        yield batch
        if "reward" in batch.keys():
            is_correct = torch.arange(4 * size) % size <= batch["group"]
            yield with_fields(batch, reward=at_last_action(is_correct.to(batch["reward"]), batch["action"]))
