"""Normalization of each component of the reward."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import dpo, dr_grpo, gdpo, grpo, ppo, reinforce, remax
from purerl.algos.modifiers.component_normalization import Config, exemptions, modify
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import exemptions as exemptions_of
from tests.algos.helpers import (
    advantage_losses_and_gradients,
    example,
    f64,
    gradient_of,
    group_with_rewards,
    with_advantage,
)

from .laws import check_laws


def scores_of(batch: TensorDict) -> torch.Tensor:
    return torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)


def _of_components(components: list[list[float]]) -> TensorDict:
    """A group whose rewards are the sums of these components, without those that are NaN."""
    values = f64(*components)
    return with_fields(group_with_rewards(values.nan_to_num().sum(-1).tolist()), components=values)


@pytest.mark.parametrize("by", ["group", "batch"])
@pytest.mark.parametrize("weights", [(), (2.0, -0.5, 1.0)])
def test_scores_advantage_loss_and_gradient(by, weights):
    algorithm = modify(Config(by=by, weights=weights), reinforce.algorithm())
    batch = example(algorithm, seed=1)
    mask, counted = batch["mask"], batch["mask"].any(-1)
    components, factors = batch["components"], f64(*(weights or (1.0,) * batch["components"].shape[-1]))
    group = batch["group"] if by == "group" else torch.zeros_like(batch["group"])
    change = torch.zeros(len(batch), dtype=torch.float64)
    for row in counted.nonzero().flatten():
        others = components[counted & (group == group[row])]
        std = others.std(0) if len(others) > 1 else torch.zeros_like(others[0])
        normalized = (components[row] - others.mean(0)) / (std + 1e-6)
        change[row] = (factors * normalized).sum() - components[row].sum()
    result = with_advantage(algorithm, batch)
    torch.testing.assert_close(scores_of(result)[counted], (scores_of(batch) + change)[counted])

    # The return of every token has the whole change: it is at the last token.
    plain = with_advantage(reinforce.algorithm(), batch)["advantage"]
    advantage = torch.where(mask, plain + change.unsqueeze(-1), 0)
    actual, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(actual, advantage)
    rows = counted.sum()
    torch.testing.assert_close(loss, -torch.where(mask, advantage * batch["logp"], 0).sum() / rows)
    torch.testing.assert_close(
        gradient, gradient_of(lambda logp: -torch.where(mask, advantage * logp, 0) / rows, batch["logp"])
    )


def test_rewards_of_different_ranges_have_the_same_effect():
    batch = _of_components([[1.0, 0.0], [0.0, 100.0], [0.0, 0.0], [1.0, 100.0]])
    plain, normalized = (with_advantage(a, batch) for a in (dr_grpo.algorithm(), modify(Config(), dr_grpo.algorithm())))
    assert plain["advantage"][:, -1].tolist() == pytest.approx([-49.5, 49.5, -50.5, 50.5])
    half = 1 / (2 * math.sqrt(1 / 3))
    assert normalized["advantage"][:, -1].tolist() == pytest.approx([0, 0, -2 * half, 2 * half], abs=1e-5)


def test_a_component_that_does_not_apply_to_a_row_is_left_out_of_its_moments():
    """As in TRL: the mean and the standard deviation are over the other rows, and the row gets nothing for it."""
    nan = math.nan
    batch = _of_components([[1.0, 5.0], [0.0, nan], [2.0, 7.0]])
    score = scores_of(with_advantage(modify(Config(), reinforce.algorithm()), batch))
    second = (5.0 - 6.0) / (math.sqrt(2) + 1e-6)
    assert score.tolist() == pytest.approx([0 + second, -1.0, 1.0 - second], abs=1e-5)
    alone = _of_components([[1.0, nan], [0.0, nan], [2.0, nan]])
    score = scores_of(with_advantage(modify(Config(by="batch"), reinforce.algorithm()), alone))
    assert score.tolist() == pytest.approx([0.0, -1.0, 1.0], abs=1e-5)


def test_gdpo_is_grpo_with_normalized_components_and_a_whitened_advantage():
    batch = example(gdpo.algorithm(), seed=3)
    batch = with_fields(batch, reward=torch.zeros_like(batch["logp"]))
    total = torch.zeros_like(batch["reward"])
    last = batch["action"] & (batch["action"].cumsum(-1) == batch["action"].sum(-1, keepdim=True))
    total = torch.where(last, batch["components"].sum(-1, keepdim=True), total)
    batch = with_fields(batch, reward=total)
    ours = with_advantage(modify(Config(), dr_grpo.algorithm()), batch)["advantage"]
    theirs = with_advantage(gdpo.algorithm(), batch)["advantage"]
    mask = batch["mask"]
    ratio = (theirs / ours)[mask & (ours.abs() > 1e-9)]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio)), "up to the whitening, which has one factor"
    assert len(ratio) > 5


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (dpo, "has no effect\n  got:  an algorithm whose advantage does not read 'reward'\n"),
        (gdpo, "has no effect\n  got:  an algorithm whose advantage does not read 'reward'\n"),
        (remax, "cannot be used\n  got:  an algorithm with the reward of a greedy completion, whose components are"),
    ],
)
def test_algorithms_that_are_refused(module, message):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value).startswith(message)


def test_components_are_not_normalized_twice():
    with pytest.raises(ConfigError, match="got:  an algorithm that normalizes each component itself"):
        modify(Config(), modify(Config(by="batch"), grpo.algorithm()))


@pytest.mark.parametrize("module", [grpo, dr_grpo, ppo, reinforce])
@pytest.mark.parametrize("by", ["group", "batch"])
def test_laws(module, by):
    config = Config(by=by)
    check_laws(modify(config, module.algorithm()), exempt={*exemptions(config), *exemptions_of(module)})
