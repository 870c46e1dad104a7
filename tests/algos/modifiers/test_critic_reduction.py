"""The reduction of the critic's loss."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import grpo, pf_ppo, ppo, vapo
from purerl.algos.modifiers import reduction
from purerl.algos.modifiers.critic_reduction import Config, modify
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import advantage_losses_and_gradients, example, with_advantage

from .laws import check_laws

CONFIGS = [
    Config(by="token_mean"),
    Config(by="token_sum"),
    Config(by="sequence_mean_of_token_mean"),
    Config(by="sequence_mean_of_token_sum"),
    Config(by="constant_norm", length=16),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.by)
def test_loss_and_gradient(config):
    algorithm = modify(config, ppo.algorithm())
    batch = example(algorithm)
    mask = batch["mask"]
    target = with_advantage(algorithm, batch)["returns"]
    lengths, rows = mask.sum(-1, keepdim=True).clamp(min=1), mask.any(-1).sum()
    weight = {
        "token_mean": mask / mask.sum(),
        "token_sum": mask.double(),
        "sequence_mean_of_token_mean": mask / lengths / rows,
        "sequence_mean_of_token_sum": mask / rows,
        "constant_norm": mask / (rows * 16),
    }[config.by]
    value, old = batch["value"].clone().requires_grad_(), batch["old_value"]
    clipped = old + (value - old).clamp(-0.5, 0.5)
    loss = torch.maximum((value - target).square(), (clipped - target).square()) / 2
    expected = torch.where(mask, loss * weight, 0).sum()
    _, actual, gradient, *_ = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(actual, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, value)[0])


@pytest.mark.parametrize("module", [ppo, vapo, pf_ppo])
def test_only_the_critic_changes(module):
    base, algorithm = module.algorithm(), modify(Config(), module.algorithm())
    assert algorithm.objectives[1:] == base.objectives[1:]
    assert algorithm.advantage == base.advantage
    assert algorithm.objectives[0].terms[0].reduce is not base.objectives[0].terms[0].reduce


def test_an_algorithm_without_a_critic_is_refused():
    with pytest.raises(ConfigError) as caught:
        modify(Config(), grpo.algorithm())
    assert str(caught.value) == (
        "has no effect\n  got:  an algorithm without a critic\n  need: a critic, as in PPO and VAPO"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "constant_norm"}, "length\n  got:  0, with by = constant_norm\n  need: a number above 0"),
        ({"by": "token_sum", "length": 8}, "length\n  got:  8, with by = token_sum\n  need: constant_norm: other"),
    ],
)
def test_length_belongs_to_constant_norm(settings, message):
    with pytest.raises(ConfigError) as caught:
        Config(**settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("module", [ppo, pf_ppo])
@pytest.mark.parametrize("config", [Config(), Config(by="constant_norm", length=3)])
def test_laws(module, config):
    check_laws(modify(config, module.algorithm()), exempt=exemptions(module))


def test_the_reductions_of_policy_and_critic_are_independent():
    policy, critic = reduction.Config(by="token_sum"), Config()
    first = modify(critic, reduction.modify(policy, ppo.algorithm()))
    assert first == reduction.modify(policy, modify(critic, ppo.algorithm()))
    assert [o.terms[0].reduce.__name__ for o in first.objectives] == ["sequence_mean_of_token_mean", "token_sum"]
