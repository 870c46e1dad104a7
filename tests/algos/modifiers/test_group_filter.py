"""The groups that are kept."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dapo, gdpo, grpo, ppo, sft
from purerl.algos.algebra import keep_all, select_rows
from purerl.algos.modifiers import mask_truncated
from purerl.algos.modifiers.group_filter import Config, exemptions, modify
from purerl.algos.parts.selection import groups_with_variance
from purerl.errors import ConfigError
from purerl.testing import exemptions as exemptions_of_module
from tests.algos.helpers import advantage_losses_and_gradients, example, group_with_rewards

from .laws import check_laws

REWARDS, GROUPS = [1.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.0, 0.0], [1, 1, 2, 2, 3, 3, 4, 4]


def kept(algorithm, **fields) -> list[int]:
    """The groups that are kept."""
    batch = group_with_rewards(REWARDS, group=GROUPS, **fields)
    return sorted(set(batch["group"][select_rows(algorithm, batch)].tolist()))


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        (Config(), [1]),
        (Config(by="mean_range"), [1, 3]),
        (Config(by="mean_range", low=0.5, high=2.0), [2]),
        (Config(by="mean_range", low=-1.0, high=0.75), [1, 3, 4]),
    ],
)
def test_kept_groups(config, groups):
    assert kept(modify(config, grpo.algorithm())) == groups


def test_the_filters_of_algorithm_and_modifier_are_combined():
    algorithm = modify(Config(by="mean_range"), dapo.algorithm())
    assert kept(dapo.algorithm()) == [1]
    assert kept(algorithm) == [1]
    assert kept(modify(Config(by="mean_range", low=0.6, high=2.0), dapo.algorithm())) == []
    ranges = (Config(by="mean_range", low=low, high=high) for low, high in ((-1.0, 0.75), (0.25, 2.0)))
    both = grpo.algorithm()
    for config in ranges:
        both = modify(config, both)
    assert kept(both) == [1, 3]


def test_variance_makes_grpo_select_as_dapo():
    assert modify(Config(), grpo.algorithm()).select == dapo.algorithm().select == groups_with_variance


def test_advantage_loss_and_gradient_do_not_change():
    algorithm = modify(Config(by="mean_range"), grpo.algorithm())
    assert algorithm._replace(select=keep_all) == grpo.algorithm()
    batch = example(algorithm)
    pairs = zip(
        advantage_losses_and_gradients(algorithm, batch),
        advantage_losses_and_gradients(grpo.algorithm(), batch),
        strict=True,
    )
    assert all(torch.equal(actual, expected) for actual, expected in pairs)


@pytest.mark.parametrize("config", [Config(), Config(by="mean_range", low=0.2)])
def test_a_filter_that_the_algorithm_has_is_refused(config):
    with pytest.raises(ConfigError) as caught:
        modify(config, modify(config, dapo.algorithm()))
    assert str(caught.value) == (
        "has no effect\n"
        f"  got:  an algorithm that keeps only groups by {config.by}\n"
        "  need: an algorithm that keeps other groups"
    )


@pytest.mark.parametrize("module", [sft, gdpo])
def test_an_algorithm_that_reads_no_rewards_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm whose advantage does not read 'reward'\n"
        "  need: an algorithm that computes advantages from rewards"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0.2}, "low\n  got:  0.2, with by = variance\n  need: mean_range: variance has no bounds"),
        ({"high": 0.8}, "high\n  got:  0.8, with by = variance\n  need: mean_range: variance has no bounds"),
        (
            {"by": "mean_range", "low": 2.0},
            "low\n  got:  2.0\n  need: a number below high, which is 1\n  do:   lower low or raise high",
        ),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        Config(**settings)
    assert str(caught.value) == message


@pytest.mark.parametrize("module", [grpo, dapo, ppo])
@pytest.mark.parametrize("config", [Config(), Config(by="mean_range", low=0.1)])
def test_laws(module, config):
    if module is dapo and config.by == "variance":
        return
    exempt = {*exemptions_of_module(module), *exemptions(config)}
    check_laws(modify(config, module.algorithm()), exempt=exempt)


@pytest.mark.parametrize("base", [grpo, dapo])
def test_truncated_rows_do_not_count_in_either_order(base):
    """Without its truncated rows, group 1 has equal scores, and the mean of group 2 is 0."""
    config = Config(by="mean_range")
    truncated = [True, False, True, True, False, False, False, False]
    for algorithm in (
        modify(config, mask_truncated.modify(mask_truncated.Config(), base.algorithm())),
        mask_truncated.modify(mask_truncated.Config(), modify(config, base.algorithm())),
    ):
        assert kept(algorithm, truncated=[False] * 8) == ([1, 3] if base is grpo else [1])
        assert kept(algorithm, truncated=truncated) == ([3] if base is grpo else [])
