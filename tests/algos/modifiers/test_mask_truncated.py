"""Rows that ended at the length limit have no effect."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dapo, dpo, grpo, opd_top_k, ppo, prime, sft
from purerl.algos.algebra import keep_all, select_rows
from purerl.algos.modifiers import bypass, kl_reward, mask_truncated, rejection, reward_normalization
from purerl.algos.modifiers.mask_truncated import EXEMPTIONS, Config, modify
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import (
    advantage_losses_and_gradients,
    example,
    group_with_rewards,
    loss_of,
    with_advantage,
)

from .laws import check_laws


@pytest.mark.parametrize("base", [grpo, dapo, ppo])
def test_results_are_those_of_the_batch_without_truncated_rows(base):
    """Advantages, losses and gradients; the gradient of a truncated row is 0."""
    algorithm = modify(Config(), base.algorithm())
    truncated = torch.tensor([True, False, False, False, True, False])
    batch = with_fields(example(algorithm, seed=2), truncated=truncated)
    actual = advantage_losses_and_gradients(algorithm, batch)
    expected = advantage_losses_and_gradients(base.algorithm(), batch[~truncated])
    for all_rows, rest in zip(actual, expected, strict=True):
        if all_rows.ndim:
            assert not all_rows[truncated].any()
        torch.testing.assert_close(all_rows[~truncated] if all_rows.ndim else all_rows, rest)


def test_the_advantage_against_a_direct_computation():
    batch = group_with_rewards([1.0, 0.0, 0.0, 5.0], truncated=[False, False, False, True])
    advantage = with_advantage(modify(Config(), grpo.algorithm()), batch)["advantage"][:, 1]
    scores = torch.tensor([1.0, 0.0, 0.0])
    expected = (scores - scores.mean()) / (scores.std() + 1e-6)
    torch.testing.assert_close(advantage, torch.cat([expected, torch.zeros(1)]))


def test_truncated_rows_do_not_decide_which_groups_are_kept():
    algorithm = modify(Config(), dapo.algorithm())
    batch = group_with_rewards([1.0, 0.0, 0.0, 1.0], group=[5, 5, 6, 6], truncated=[True, False, False, False])
    assert select_rows(dapo.algorithm(), batch).tolist() == [True] * 4
    assert select_rows(algorithm, batch).tolist() == [False, False, True, True]
    assert modify(Config(), grpo.algorithm()).select is keep_all


def test_a_model_that_is_updated_before_does_not_learn_from_truncated_rows():
    algorithm = modify(Config(), prime.algorithm())
    batch = example(algorithm, seed=1)
    truncated = batch["truncated"]
    assert truncated.any()
    assert batch["mask"][~truncated].any()
    actual, expected = loss_of(algorithm.before[0], batch), loss_of(prime.algorithm().before[0], batch[~truncated])
    torch.testing.assert_close(actual, expected)


def test_distillation_on_completions_is_not_refused():
    assert modify(Config(), opd_top_k.algorithm()).reads == ("truncated",)


@pytest.mark.parametrize("module", [sft, dpo])
def test_an_algorithm_that_learns_from_data_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm that learns from data\n"
        "  need: an algorithm that learns from completions of the policy"
    )


def test_an_algorithm_that_masks_truncated_rows_is_refused():
    with pytest.raises(ConfigError) as caught:
        modify(Config(), modify(Config(), grpo.algorithm()))
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm that masks truncated rows\n"
        "  need: an algorithm in which they have an effect"
    )


@pytest.mark.parametrize("module", [grpo, dapo, ppo, prime])
def test_laws(module):
    check_laws(modify(Config(), module.algorithm()), exempt={*EXEMPTIONS, *exemptions(module)})


def test_truncated_and_rejected_rows_are_not_normalized_in_any_order():
    """Also not if another modifier is around the algorithm with the mask."""
    norm, mask, reject = reward_normalization.Config(), Config(), rejection.Config(level="any_token", max_value=0.7)
    orders = [
        lambda a: reward_normalization.modify(norm, rejection.modify(reject, modify(mask, a))),
        lambda a: rejection.modify(reject, reward_normalization.modify(norm, modify(mask, a))),
        lambda a: rejection.modify(reject, modify(mask, reward_normalization.modify(norm, a))),
        lambda a: modify(mask, reward_normalization.modify(norm, rejection.modify(reject, a))),
    ]
    first = orders[0](ppo.algorithm())
    batch = with_fields(example(first, seed=4), truncated=torch.tensor([True, False, False, False, True, False]))
    is_left = with_advantage(first, batch)["mask"].any(-1)
    assert 2 <= is_left.sum() < (batch["mask"].any(-1) & ~batch["truncated"]).sum()
    expected = with_advantage(reward_normalization.modify(norm, ppo.algorithm()), batch[is_left])["returns"]
    for order in orders:
        torch.testing.assert_close(with_advantage(order(ppo.algorithm()), batch)["returns"][is_left], expected)
    outside = reward_normalization.modify(norm, bypass.modify(bypass.Config(), modify(mask, ppo.algorithm())))
    expected = reward_normalization.modify(norm, modify(mask, ppo.algorithm()))
    batch = with_fields(example(outside, seed=2), truncated=batch["truncated"])
    torch.testing.assert_close(*(with_advantage(a, batch)["returns"] for a in (outside, expected)))


def test_truncated_rows_are_not_normalized_in_either_order():
    norm, mask = reward_normalization.Config(), Config()
    kl = kl_reward.Config(coef=0.1)
    base = ppo.algorithm()
    first = reward_normalization.modify(norm, modify(mask, base))
    second = modify(mask, reward_normalization.modify(norm, base))
    truncated = torch.tensor([True, False, False, False, True, False])
    batch = with_fields(example(first, seed=2), truncated=truncated)
    expected = with_advantage(reward_normalization.modify(norm, base), batch[~truncated])["returns"]
    for algorithm in (first, second):
        torch.testing.assert_close(with_advantage(algorithm, batch)["returns"][~truncated], expected)
    masked = mask_truncated.modify(mask, kl_reward.modify(kl, base))
    assert masked.reads == ("reward", "old_value", "old_logp", "ref_logp", "truncated")
