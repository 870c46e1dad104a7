"""A KL penalty in the reward of each token, or in its advantage."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dapo, dr_grpo, grpo, ppo, reinforce, reinforce_plus_plus_baseline, rloo, sft
from purerl.algos.modifiers import advantage_scale
from purerl.algos.modifiers.kl_reward import Config, exemptions, modify
from purerl.algos.parts.divergences import k1, k3
from purerl.algos.parts.whiten import whiten
from purerl.errors import ConfigError
from purerl.testing import LAWS, find_counterexample
from purerl.testing import exemptions as exemptions_of
from tests.algos.helpers import example, with_advantage

from .laws import check_laws

AFTER = Config(coef=0.5, position="advantage")


def _penalty(batch, estimate=k1):
    """The sum of the estimates from each action token on, by a loop."""
    kl, action = estimate(batch["old_logp"], batch["ref_logp"]), batch["action"]
    total = torch.zeros_like(kl)
    for t in range(kl.shape[-1]):
        total[:, t] = torch.where(action[:, t:], kl[:, t:], 0).sum(-1)
    return total


@pytest.mark.parametrize(("name", "estimate"), [("k1", k1), ("k3", k3)])
@pytest.mark.parametrize("module", [grpo, rloo, dapo])
def test_penalty_in_the_advantage(module, name, estimate):
    algorithm = modify(Config(coef=0.5, estimator=name, position="advantage"), module.algorithm())
    batch = example(algorithm)
    plain = with_advantage(module.algorithm(), batch)["advantage"]
    expected = torch.where(batch["mask"], plain - 0.5 * _penalty(batch, estimate), 0)
    torch.testing.assert_close(with_advantage(algorithm, batch)["advantage"], expected)


def test_penalty_in_the_advantage_is_whitened():
    algorithm = modify(AFTER, reinforce_plus_plus_baseline.algorithm())
    batch = example(algorithm)
    centered = with_advantage(dr_grpo.algorithm(), batch)["advantage"]
    expected = whiten(torch.where(batch["mask"], centered - 0.5 * _penalty(batch), 0), batch["mask"])
    torch.testing.assert_close(with_advantage(algorithm, batch)["advantage"], expected)


def test_penalty_in_the_advantage_is_not_divided_by_the_standard_deviation():
    scale = advantage_scale.Config(eps=1e-9)
    last = modify(AFTER, advantage_scale.modify(scale, grpo.algorithm()))
    first = advantage_scale.modify(scale, modify(AFTER, grpo.algorithm()))
    assert last == first
    batch = example(last)
    in_reward = with_advantage(modify(Config(coef=0.5), grpo.algorithm()), batch)["advantage"]
    assert not torch.allclose(with_advantage(last, batch)["advantage"], in_reward)


@pytest.mark.parametrize("module", [ppo, reinforce])
def test_position_advantage_needs_an_advantage_of_rows(module):
    with pytest.raises(ConfigError) as caught:
        modify(AFTER, module.algorithm())
    assert str(caught.value) == (
        "position\n"
        "  got:  advantage, with an advantage of tokens\n"
        "  need: an advantage of rows, as in GRPO and RLOO\n"
        "  do:   set position to reward"
    )


def test_an_algorithm_without_rewards_is_refused():
    with pytest.raises(ConfigError, match="an algorithm that computes advantages from rewards"):
        modify(AFTER, sft.algorithm())


@pytest.mark.parametrize("module", [grpo, rloo, reinforce_plus_plus_baseline])
def test_laws(module):
    exempt = {*exemptions(AFTER), *exemptions_of(module)}
    check_laws(modify(AFTER, module.algorithm()), exempt=exempt)


@pytest.mark.parametrize("law", exemptions(AFTER))
def test_exempt_laws_do_not_hold(law):
    [function] = (each for each in LAWS if each.__name__ == law)
    assert find_counterexample(function, modify(AFTER, grpo.algorithm()), batches=10)
