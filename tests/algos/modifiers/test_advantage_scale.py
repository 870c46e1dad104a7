"""The divisor and the baseline of group-relative advantages."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import dr_grpo, gpg, grpo, max_rl, opd, opo, ppo, rloo
from purerl.algos.modifiers import advantage_scale, advantage_whitening
from purerl.algos.modifiers.advantage_scale import Config, exemptions, modify
from purerl.algos.parts.transforms import _outcome_advantage
from purerl.errors import ConfigError
from purerl.testing import exemptions as exemptions_of_module
from tests.algos.helpers import advantage_losses_and_gradients, example, f64, group_with_rewards, with_advantage

from .laws import check_laws

THIRD, ROOT = 1 / 3, math.sqrt(3)


def advantages(config: Config, rewards: list[float], *, group: list[int] | None = None) -> torch.Tensor:
    """The advantage of each row in float64."""
    batch = group_with_rewards(rewards, **({} if group is None else {"group": group}))
    batch = batch.apply(lambda x: x.double() if x.is_floating_point() else x)
    return with_advantage(modify(config, grpo.algorithm()), batch)["advantage"][:, 1]


@pytest.mark.parametrize(
    ("settings", "best", "other"),
    [
        ({}, 1.5, -0.5),
        ({"ddof": 0}, ROOT, -1 / ROOT),
        ({"by": "none"}, 0.75, -0.25),
        ({"baseline": "leave_one_out", "leave_one_out_std": True}, 1.0, -1 / ROOT),
        ({"baseline": "leave_one_out"}, 2.0, -2 / 3),
        ({"by": "none", "baseline": "leave_one_out"}, 1.0, -THIRD),
        ({"by": "mean"}, 3.0, -1.0),
        ({"by": "mean", "baseline": "leave_one_out"}, 4.0, -4 / 3),
        ({"by": "batch_std"}, 1.5, -0.5),
        ({"by": "batch_std", "ddof": 0}, ROOT, -1 / ROOT),
        ({"leave_one_out_std": True, "ddof": 0}, 0.75, -0.25 / math.sqrt(2 / 9)),
    ],
)
def test_advantages_of_one_correct_row_of_four(settings, best, other):
    actual = advantages(Config(eps=1e-12, **settings) if set(settings) & {"ddof"} else Config(**settings), [1, 0, 0, 0])
    torch.testing.assert_close(actual, f64(best, other, other, other), atol=1e-5, rtol=0)


@pytest.mark.parametrize("eps", [1e-4, 1e-6, 1e-9])
def test_eps_is_added_to_the_standard_deviation(eps):
    actual = advantages(Config(eps=eps), [1, 0, 0, 0])
    torch.testing.assert_close(actual, f64(0.75, -0.25, -0.25, -0.25) / (0.5 + eps), atol=1e-15, rtol=0)
    batch = advantages(Config(by="batch_std", eps=eps), [1, 0, 0, 4], group=[1, 1, 2, 2])
    std = f64(1, 0, 0, 4).std()
    torch.testing.assert_close(batch, f64(0.5, -0.5, -2, 2) / (std + eps), atol=1e-15, rtol=0)


def direct(score: torch.Tensor, group: torch.Tensor, counted: torch.Tensor, config: Config) -> torch.Tensor:
    """The advantages, row by row, from the scores of the counted rows of each group."""
    result = torch.zeros_like(score)
    for i in counted.nonzero()[:, 0].tolist():
        rows = [j for j in counted.nonzero()[:, 0].tolist() if group[j] == group[i]]
        others = [j for j in rows if j != i]
        if not others:
            result[i] = score[i] if config.singleton == "score" else 0
            continue
        base = score[others if config.baseline == "leave_one_out" else rows].mean()
        spread = {"group_std": others if config.leave_one_out_std else rows, "batch_std": counted.nonzero()[:, 0]}
        divisor = 1.0
        if config.by in spread:
            values = score[spread[config.by]]
            squares = (values - values.mean()).square().sum()
            if squares > 1e-12 or not config.leave_one_out_std:
                divisor = (squares / max(len(values) - config.ddof, 1)).sqrt() + config.eps
        if config.by == "mean":
            mean = score[rows].mean()
            divisor = mean if mean > 1e-6 else math.inf
        result[i] = (score[i] - base) / divisor
    return result


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(ddof=0, eps=0.5),
        Config(leave_one_out_std=True, baseline="leave_one_out"),
        Config(leave_one_out_std=True, ddof=0, singleton="score"),
        Config(by="batch_std", baseline="leave_one_out", ddof=0),
        Config(by="mean", baseline="leave_one_out"),
        Config(by="none", singleton="score"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_advantage_loss_and_gradient_equal_a_loop_over_rows(config, seed):
    algorithm = modify(config, grpo.algorithm())
    batch = example(algorithm, seed=seed)
    mask, counted = batch["mask"], batch["mask"].any(-1)
    expected = direct(batch["reward"].masked_fill(~batch["attention_mask"], 0).sum(-1), batch["group"], counted, config)
    advantage, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(advantage, expected[:, None] * mask)

    logp = batch["logp"].clone().requires_grad_()
    ratio, a = (logp - batch["old_logp"]).exp(), expected[:, None]
    tokens = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2)).where(mask, 0)
    total = (tokens.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / counted.sum()
    torch.testing.assert_close(loss, total.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(total, logp)[0])


@pytest.mark.parametrize(
    ("config", "other"),
    [(Config(), grpo), (Config(by="none"), dr_grpo), (Config(by="mean"), max_rl)],
)
def test_settings_that_give_another_algorithm_give_the_same_numbers(config, other):
    algorithm = grpo.algorithm()._replace(advantage=modify(config, gpg.algorithm()).advantage)
    expected = grpo.algorithm()._replace(advantage=other.algorithm().advantage)
    for seed in range(5):
        for dtype in (torch.float32, torch.float64):
            batch = example(expected, seed=seed).apply(lambda x, to=dtype: x.to(to) if x.is_floating_point() else x)
            for actual, value in zip(
                advantage_losses_and_gradients(algorithm, batch),
                advantage_losses_and_gradients(expected, batch),
                strict=True,
            ):
                assert torch.equal(actual, value)


@pytest.mark.parametrize("by", ["group_std", "batch_std", "mean", "none"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_and_single_rows_have_the_advantage_zero(by, baseline, dtype):
    algorithm = modify(Config(by=by, baseline=baseline), grpo.algorithm())
    batch = group_with_rewards([0.1, 0.1, 0.1, 0.7], group=[4, 4, 4, 9])
    batch = batch.apply(lambda x: x.to(dtype) if x.is_floating_point() else x)
    assert not with_advantage(algorithm, batch)["advantage"].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_of_the_other_rows_are_no_standard_deviation(dtype):
    """The variance of seven equal rewards is computed as a difference, and is not exactly 0."""
    config = Config(baseline="leave_one_out", leave_one_out_std=True)
    batch = group_with_rewards([0.35] * 7 + [0.0]).apply(lambda x: x.to(dtype) if x.is_floating_point() else x)
    advantage = with_advantage(modify(config, grpo.algorithm()), batch)["advantage"][:, 1]
    expected = [0.05 / math.sqrt(0.35**2 / 7)] * 7 + [-0.35]
    torch.testing.assert_close(advantage.double(), f64(*expected), atol=1e-5, rtol=0)


def test_a_single_row_can_keep_its_score():
    algorithm = modify(Config(singleton="score"), grpo.algorithm())
    assert (algorithm.min_group_size, modify(Config(), grpo.algorithm()).min_group_size) == (1, 2)
    assert advantages(Config(singleton="score"), [0.7, 1, 0], group=[4, 5, 5])[0] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ddof": 2}, "ddof\n  got:  2\n  need: 0 or 1"),
        ({"by": "none", "eps": 0.5}, "eps\n  got:  0.5, with by = none\n  need: by = group_std or by = batch_std"),
        ({"by": "mean", "ddof": 0}, "ddof\n  got:  0, with by = mean\n  need: by = group_std or by = batch_std"),
        (
            {"by": "batch_std", "leave_one_out_std": True},
            "leave_one_out_std\n  got:  True, with by = batch_std\n  need: by = group_std",
        ),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        Config(**settings)
    assert str(caught.value) == message


@pytest.mark.parametrize("module", [ppo, opo])
def test_an_advantage_that_is_not_relative_to_a_group_mean_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm with another advantage\n"
        "  need: a score minus a mean of its group, as in GRPO, Dr. GRPO and RLOO"
    )


def test_the_estimator_is_replaced_inside_of_a_chain():
    algorithm = modify(Config(by="batch_std"), opd.algorithm(opd.Config(reward_coef=0.5)))
    assert str(algorithm.advantage).count("_batch_std") == 1
    assert _outcome_advantage.__name__ in str(algorithm.advantage)


@pytest.mark.parametrize("module", [grpo, rloo, gpg])
@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(by="batch_std"),
        Config(by="mean", singleton="score"),
        Config(by="none", baseline="leave_one_out"),
        Config(leave_one_out_std=True, ddof=0),
    ],
)
def test_laws(module, config):
    exempt = {*exemptions_of_module(module), *exemptions(config)}
    check_laws(modify(config, module.algorithm()), exempt=exempt)


def test_whitening_before_or_after_gives_the_same_algorithm():
    """The scale changes the estimator, which is before the whitening in either order."""
    scale, whitening = Config(by="none"), advantage_whitening.Config()
    first = advantage_whitening.modify(whitening, advantage_scale.modify(scale, grpo.algorithm()))
    second = advantage_scale.modify(scale, advantage_whitening.modify(whitening, grpo.algorithm()))
    assert first == second
