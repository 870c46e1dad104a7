"""Whitening of the advantage over the counted tokens of the batch."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dpo, grpo, pf_ppo, ppo, reinforce, reinforce_plus_plus, sft, whiten
from purerl.algos.algebra import bind, chain, of_fields, stages_of, stateless
from purerl.algos.modifiers import advantage_clip
from purerl.algos.modifiers.advantage_whitening import Config, modify
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import advantage_losses_and_gradients, example, with_advantage

from .laws import check_laws

OWN = {"group_independence"}


@pytest.mark.parametrize("config", [Config(), Config(eps=1e-3), Config(ddof=0)])
def test_advantage_loss_and_gradient(config):
    algorithm = modify(config, reinforce.algorithm())
    batch = example(algorithm)
    mask = batch["mask"]
    plain = with_advantage(reinforce.algorithm(), batch)["advantage"]
    tokens = plain[mask]
    variance = (tokens - tokens.mean()).square().sum() / (len(tokens) - config.ddof)
    expected = torch.where(mask, (plain - tokens.mean()) / (variance.sqrt() + config.eps), 0)
    advantage, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(advantage, expected)
    rows = mask.any(-1).sum()
    torch.testing.assert_close(loss, -torch.where(mask, expected * batch["logp"], 0).sum() / rows)
    torch.testing.assert_close(gradient, -expected / rows)


def test_it_makes_reinforce_the_advantage_of_reinforce_plus_plus():
    target = reinforce_plus_plus.algorithm(reinforce_plus_plus.Config(kl_reward=0.0))
    batch = example(target)
    actual = with_advantage(modify(Config(), reinforce.algorithm()), batch)["advantage"]
    assert torch.equal(actual, with_advantage(target, batch)["advantage"])


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_counted_tokens_have_the_advantage_zero(tokens):
    algorithm = modify(Config(ddof=0), reinforce.algorithm())
    batch = example(algorithm, layout=((3, ".xx"), (3, ".xax"))[: 1 + tokens])
    assert not with_advantage(algorithm, batch)["advantage"].any()


def test_a_function_that_whitens_among_other_things_is_not_replaced():
    own = stateless(bind(_whiten_and_double, whitened=of_fields(whiten, "advantage", "mask")))
    base = reinforce.algorithm()
    algorithm = modify(Config(), base._replace(advantage=chain(base.advantage, own)))
    assert stages_of(algorithm.advantage)[-2] == own


def _whiten_and_double(batch, *, whitened):
    return with_fields(batch, advantage=2 * whitened(batch))


def test_targets_of_a_critic_are_not_whitened():
    base = ppo.algorithm()
    batch = example(base)
    clipped = advantage_clip.modify(advantage_clip.Config(bound=0.5), base)
    actual = with_advantage(modify(Config(), clipped), batch)
    torch.testing.assert_close(actual["returns"], with_advantage(base, batch)["returns"])
    assert abs(float(actual["advantage"][batch["mask"]].mean())) < 1e-12


@pytest.mark.parametrize("module", [ppo, pf_ppo, reinforce_plus_plus])
def test_a_whitened_advantage_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an advantage that is already whitened\n"
        "  need: an algorithm that does not whiten its advantage at the end, or another eps or ddof"
    )


def test_a_whitening_with_other_settings_is_replaced():
    base, config = grpo.algorithm(), Config(eps=1e-3, ddof=0)
    assert modify(config, modify(Config(), base)) == modify(config, base)
    batch = example(ppo.algorithm())
    mask, replaced = batch["mask"], modify(config, ppo.algorithm())
    tokens = with_advantage(ppo.algorithm(), batch)["advantage"][mask]
    # The advantage of PPO is whitened with ddof 1 and 1e-8. Its mean is 0, and its standard deviation with ddof 0:
    std = ((len(tokens) - 1) / len(tokens)) ** 0.5
    torch.testing.assert_close(with_advantage(replaced, batch)["advantage"][mask], tokens / std, rtol=5e-3, atol=0)
    assert not torch.allclose(with_advantage(replaced, batch)["advantage"][mask], tokens, rtol=5e-3)


@pytest.mark.parametrize("module", [dpo, sft])
def test_an_algorithm_without_advantage_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n  got:  a policy loss without an advantage\n  need: an algorithm that computes advantages"
    )


def test_ddof_is_0_or_1():
    with pytest.raises(ConfigError, match="ddof\n  got:  2\n  need: 0 or 1"):
        Config(ddof=2)


@pytest.mark.parametrize("module", [grpo, reinforce])
@pytest.mark.parametrize("config", [Config(), Config(ddof=0)])
def test_laws(module, config):
    check_laws(modify(config, module.algorithm()), exempt=OWN | {*exemptions(module)})


def test_clipping_before_and_after_differ():
    base, clip = grpo.algorithm(), advantage_clip.Config(bound=0.5)
    batch = example(base, seed=3)
    clipped_last = with_advantage(advantage_clip.modify(clip, modify(Config(), base)), batch)["advantage"]
    whitened_last = with_advantage(modify(Config(), advantage_clip.modify(clip, base)), batch)["advantage"]
    mask = batch["mask"]
    plain = with_advantage(base, batch)["advantage"]
    tokens = plain[mask]
    expected = ((tokens - tokens.mean()) / (tokens.std() + 1e-8)).clamp(-0.5, 0.5)
    torch.testing.assert_close(clipped_last[mask], expected)
    tokens = tokens.clamp(-0.5, 0.5)
    torch.testing.assert_close(whitened_last[mask], (tokens - tokens.mean()) / (tokens.std() + 1e-8))
    assert clipped_last.abs().max() == 0.5 < whitened_last.abs().max()
