"""A bound of the advantage."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dpo, grpo, ppo, reinforce
from purerl.algos.modifiers import advantage_scale
from purerl.algos.modifiers.advantage_clip import EXEMPTIONS, Config, modify
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import advantage_losses_and_gradients, example, group_with_rewards, with_advantage

from .laws import check_laws


@pytest.mark.parametrize("bound", [0.25, 2.0])
def test_advantage_loss_and_gradient(bound):
    algorithm = modify(Config(bound=bound), reinforce.algorithm())
    batch = example(algorithm, seed=1)
    mask, rows = batch["mask"], batch["mask"].any(-1).sum()
    plain = with_advantage(reinforce.algorithm(), batch)["advantage"]
    expected = torch.minimum(torch.maximum(plain, torch.tensor(-bound)), torch.tensor(bound))
    advantage, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(advantage, expected)
    assert (plain.abs() > 0.25).any()
    torch.testing.assert_close(loss, -torch.where(mask, expected * batch["logp"], 0).sum() / rows)
    torch.testing.assert_close(gradient, -expected / rows)


def test_the_one_correct_row_of_a_large_group():
    batch = group_with_rewards([1.0] + [0.0] * 63)
    assert with_advantage(grpo.algorithm(), batch)["advantage"].max() == pytest.approx(7.875, abs=1e-3)
    assert with_advantage(modify(Config(), grpo.algorithm()), batch)["advantage"].max() == 5


def test_targets_of_a_critic_are_not_clipped():
    batch = example(ppo.algorithm())
    actual, expected = (with_advantage(a, batch) for a in (modify(Config(bound=0.1), ppo.algorithm()), ppo.algorithm()))
    assert torch.equal(actual["returns"], expected["returns"])
    assert torch.equal(actual["advantage"], expected["advantage"].clamp(-0.1, 0.1))


def test_an_algorithm_without_advantage_is_refused():
    with pytest.raises(ConfigError) as caught:
        modify(Config(), dpo.algorithm())
    assert str(caught.value) == (
        "has no effect\n  got:  a policy loss without an advantage\n  need: an algorithm that computes advantages"
    )


@pytest.mark.parametrize("bound", [0.0, -1.0])
def test_the_bound_is_positive(bound):
    with pytest.raises(ConfigError, match="bound\n  got:  .*\n  need: a number above 0"):
        Config(bound=bound)


@pytest.mark.parametrize("module", [grpo, reinforce, ppo])
def test_laws(module):
    algorithm = modify(Config(bound=0.5), module.algorithm())
    check_laws(algorithm, exempt={*EXEMPTIONS, *exemptions(module)})


def test_the_bound_is_of_the_scaled_advantage_in_either_order():
    clip, scale = Config(bound=0.5), advantage_scale.Config(by="none")
    batch = group_with_rewards([1.0, 0.0, 0.0, 0.0])
    for algorithm in (
        modify(clip, advantage_scale.modify(scale, grpo.algorithm())),
        advantage_scale.modify(scale, modify(clip, grpo.algorithm())),
    ):
        assert with_advantage(algorithm, batch)["advantage"][:, 1].tolist() == [0.5, -0.25, -0.25, -0.25]
