"""Algorithms that weight prompts or rows by what is known of their group, compared with their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import codapo, gar, grpo, oapl
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing.perturbations import cast
from tests.algos.helpers import advantage_losses_and_gradients, group_with_rewards, with_advantage


def advantages(algorithm, rewards: list[float], **fields) -> list[float]:
    """The advantages of rows of one group."""
    return with_advantage(algorithm, group_with_rewards(rewards, **fields))["advantage"][:, 1].tolist()


def test_codapo_weights_the_advantages_of_grpo_by_the_value_of_the_prompt():
    """One of two is correct, whatever the rewards are: v = c, the geometric mean of 1/2, 1/4, 1/8 and 1/8."""
    logp = [[0.0, math.log(1 / 2), math.log(1 / 4)], [0.0, math.log(1 / 8), math.log(1 / 8)]]
    fields = {"rollout_logp": logp, "correctness": [1.0, 0.0]}
    expected = advantages(grpo.algorithm(), [0.25, 0.0])
    value = 2 ** (-9 / 4)
    for delta in (0.0, 0.1):
        actual = advantages(codapo.algorithm(codapo.Config(delta=delta)), [0.25, 0.0], **fields)
        assert actual == pytest.approx([(value + delta) * a for a in expected], rel=1e-6)


@pytest.mark.parametrize("correctness", [[1.0, 1.0], [0.0, 0.0], [math.nan, math.nan]])
def test_codapo_gives_only_delta_to_a_prompt_that_is_solved_always_or_never(correctness):
    fields = {"rollout_logp": [[0.0] * 3] * 2, "correctness": correctness}
    actual = advantages(codapo.algorithm(), [1.0, 0.0], **fields)
    assert actual == pytest.approx([0.1 * a for a in advantages(grpo.algorithm(), [1.0, 0.0])])


def test_gar_moves_weight_from_one_correct_row_to_another():
    rewards, ranking = [1.0, 1.0, 0.0, 0.0], [1.0, 2.0, 9.0, 5.0]
    assert advantages(gar.algorithm(), rewards, ranking=ranking) == pytest.approx([1 / 3, 2 / 3, -0.5, -0.5])
    assert advantages(gar.algorithm(), rewards, ranking=[math.nan] * 4) == pytest.approx([0.5, 0.5, -0.5, -0.5])


def test_gar_gives_a_hack_the_lowest_score_of_its_group():
    rewards, fields = [1.0, 1.0, 0.0], {"ranking": [2.0, 2.0, 2.0], "hack": [0.0, 1.0, 0.0]}
    actual = advantages(gar.algorithm(gar.Config(hacks=True)), rewards, **fields)
    assert actual == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    unmarked = {**fields, "hack": [0.0, math.nan, 0.0]}
    assert advantages(gar.algorithm(gar.Config(hacks=True)), rewards, **unmarked) == pytest.approx(
        [1 / 3, 1 / 3, -2 / 3]
    )


def test_oapl_has_the_value_and_gradient_of_its_definition():
    algorithm = oapl.algorithm(oapl.Config(beta=0.5))
    rewards, logp, ref = [1.0, 0.0], torch.randn(2, 3).double(), torch.randn(2, 3).double()
    batch = group_with_rewards(rewards, logp=logp.tolist(), ref_logp=ref.tolist(), entropy=[[0.0] * 3] * 2)
    batch = cast(batch, torch.float64)
    value = 0.5 * math.log((math.exp(2) + 1) / 2)
    leaf = batch["logp"].clone().requires_grad_()
    errors = 0.5 * (leaf - batch["ref_logp"])[:, 1:].sum(-1) - (torch.tensor(rewards).double() - value)
    [expected] = torch.autograd.grad(errors.square().mean(), leaf)
    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close((loss, gradient), (errors.square().mean().detach(), expected))


def test_oapl_has_no_loss_at_the_optimal_policy_of_the_group():
    """If each row has its reference probability times exp(A / beta), the loss and its gradient are 0."""
    algorithm = oapl.algorithm(oapl.Config(beta=0.5))
    batch = group_with_rewards([1.0, 0.25, 0.0], ref_logp=[[0.0, -1.0, -2.0]] * 3, entropy=[[0.0] * 3] * 3)
    batch = with_advantage(algorithm, batch)
    share = batch["advantage"] / 0.5 / 2  # one half at each of two tokens
    _, loss, gradient = advantage_losses_and_gradients(algorithm, with_fields(batch, logp=batch["ref_logp"] + share))
    assert float(loss) == pytest.approx(0, abs=1e-10)
    assert float(gradient.abs().max()) == pytest.approx(0, abs=1e-6)


def test_a_ranking_without_an_effect_is_refused():
    with pytest.raises(ConfigError, match="min_factor"):
        gar.Config(min_factor=0.0)
