"""The modifier `importance_weight`: weights by their definition, normalization, refusals and laws."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import dpo, gmpo, grpo, rloo, sft
from purerl.algos.modifiers import bypass, entropy_bonus, importance_weight, rejection
from purerl.batch import with_fields
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, loss_of, with_advantage

from .laws import check_laws

BAND = dict(how="band", min_ratio=0.7, max_ratio=1.3)
CLAMP = dict(how="clamp", min_ratio=0.7, max_ratio=1.3)
SETTINGS = [dict(max_ratio=1.1), BAND, CLAMP]


def modified(base=grpo, **settings):
    return importance_weight.modify(importance_weight.Config(**settings), base.algorithm())


def weights_of(batch: TensorDict, level: str = "token", how: str = "truncate", **bounds: float) -> Tensor:
    """The weights by their definition, token by token; 0 at tokens that are not counted."""
    low, high = bounds.get("min_ratio", 0.0), bounds["max_ratio"]
    result = torch.zeros_like(batch["old_logp"])
    for i, t in batch["mask"].nonzero().tolist():
        difference = batch["old_logp"][i] - batch["rollout_logp"][i]
        ratio = math.exp(difference[batch["mask"][i]].sum() if level == "sequence" else difference[t])
        inside = low <= ratio <= high
        result[i, t] = ratio if inside else 0.0 if how == "band" else min(max(ratio, low), high)
    if level == "geometric_mean":
        for row, counted in zip(result, batch["mask"], strict=True):
            row[counted] = row[counted].prod() ** (1 / max(int(counted.sum()), 1))
    return result


def loss_by_hand(batch: TensorDict, weight: Tensor, logp: Tensor) -> Tensor:
    """The loss of GRPO with a weight at each token."""
    mask, advantage = batch["mask"], with_advantage(grpo.algorithm(), batch)["advantage"]
    ratio = (logp - batch["old_logp"]).exp()
    loss = weight * torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    rows = [row[counted].mean() for row, counted in zip(loss, mask, strict=True) if counted.any()]
    return torch.stack(rows).mean()


def assert_is(algorithm, batch: TensorDict, weight: Tensor) -> None:
    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(loss, loss_by_hand(batch, weight, batch["logp"]))
    torch.testing.assert_close(gradient, gradient_of(lambda logp: loss_by_hand(batch, weight, logp), batch["logp"]))


@pytest.mark.parametrize("level", ["token", "sequence", "geometric_mean"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_loss_and_gradient_equal_their_definition(level, settings):
    algorithm = modified(level=level, **settings)
    for seed in range(3):
        batch = example(algorithm, seed=seed)
        assert_is(algorithm, batch, weights_of(batch, level, **settings))


def test_ratios_of_the_example_are_on_both_sides_of_the_bounds():
    ratio = weights_of(example(modified()), max_ratio=1e9)
    ratio = ratio[ratio > 0]
    assert (ratio < 0.7).any()
    assert (ratio > 1.3).any()
    assert ((ratio > 0.7) & (ratio < 1.3)).any()


@pytest.mark.parametrize("settings", SETTINGS)
def test_normalized_weights_of_tokens_are_divided_by_their_mean_over_tokens(settings):
    algorithm = modified(normalize=True, **settings)
    batch = example(algorithm)
    weight = weights_of(batch, **settings)
    assert_is(algorithm, batch, weight / weight[batch["mask"]].mean())


@pytest.mark.parametrize("level", ["sequence", "geometric_mean"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_normalized_weights_of_rows_are_divided_by_their_mean_over_rows(settings, level):
    algorithm = modified(normalize=True, level=level, **settings)
    batch = example(algorithm)
    weight = weights_of(batch, level, **settings)
    mean = weight.amax(-1)[batch["mask"].any(-1)].mean()
    assert_is(algorithm, batch, weight / (mean if mean > 0 else 1))


def test_normalized_weights_of_zero_stay_zero():
    algorithm = modified(normalize=True, **BAND)
    batch = example(algorithm)
    batch = with_fields(batch, rollout_logp=batch["old_logp"] - 3)
    assert not with_advantage(algorithm, batch)["weight"].any()
    assert_is(algorithm, batch, torch.zeros_like(batch["logp"]))


def test_only_the_policy_loss_is_weighted():
    algorithm = entropy_bonus.modify(entropy_bonus.Config(coef=0.5), modified(max_ratio=1.1))
    batch = with_advantage(algorithm, example(algorithm))
    entropies = [row[counted].mean() for row, counted in zip(batch["entropy"], batch["mask"], strict=True)]
    bonus = 0.5 * torch.stack([x for x in entropies if x.isfinite()]).mean()
    expected = loss_by_hand(batch, weights_of(batch, max_ratio=1.1), batch["logp"]) - bonus
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), expected)


# --- composition -------------------------------------------------------------------------------------------------


def test_after_bypass_the_ratio_is_relative_to_the_rollout_policy_and_the_weight_is_not():
    config = importance_weight.Config(max_ratio=1.1)
    algorithm = importance_weight.modify(config, bypass.modify(bypass.Config(), grpo.algorithm()))
    batch = example(algorithm)
    bypassed = with_fields(batch, old_logp=batch["rollout_logp"])
    weight = weights_of(batch, max_ratio=1.1)
    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(loss, loss_by_hand(bypassed, weight, batch["logp"]))
    expected = gradient_of(lambda logp: loss_by_hand(bypassed, weight, logp), batch["logp"])
    torch.testing.assert_close(gradient, expected)


def test_bypass_after_importance_weight_is_refused():
    with pytest.raises(ConfigError, match="compares old_logp with rollout_logp"):
        bypass.modify(bypass.Config(), modified())


def test_the_mean_of_the_weights_is_over_the_tokens_that_a_later_rejection_keeps():
    weight = importance_weight.Config(normalize=True)
    reject = rejection.Config(measure="k2", max_value=0.02)
    first = rejection.modify(reject, importance_weight.modify(weight, grpo.algorithm()))
    second = importance_weight.modify(weight, rejection.modify(reject, grpo.algorithm()))
    batch = example(first)
    means = []
    for algorithm in (first, second):
        after = with_advantage(algorithm, batch)
        assert 0 < after["rejected"].sum() < batch["mask"].sum()
        means.append(float(after["weight"][after["mask"]].mean()))
    assert means[0] == pytest.approx(1)
    assert abs(means[1] - 1) > 1e-3


# --- refusals and laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [dpo, sft])
def test_an_algorithm_without_a_policy_gradient_is_refused(base):
    with pytest.raises(ConfigError, match="has no effect") as refused:
        modified(base)
    assert "need: an algorithm with a policy gradient or a surrogate of it" in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(min_ratio=0.5), "min_ratio\n  got:  0.5, with how = truncate\n  need: 0: truncate has no lower bound"),
        (dict(how="clamp"), "min_ratio\n  got:  0, with how = clamp\n  need: a number above 0"),
        (dict(how="band", min_ratio=1, max_ratio=1), "min_ratio\n  got:  1.0\n  need: a number below max_ratio"),
        (dict(max_ratio=0.9), "max_ratio\n  got:  0.9\n  need: a number at least 1"),
        (dict(how="band", min_ratio=1.1), "min_ratio\n  got:  1.1\n  need: a number at least 0 and at most 1"),
        (dict(level="row"), "level\n  got:  'row'\n  need: one of: token, sequence"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError) as refused:
        importance_weight.Config(**settings)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("base", [grpo, rloo, gmpo])
@pytest.mark.parametrize(
    "settings", [{}, dict(level="sequence", normalize=True, **BAND)], ids=["truncate", "band-normalize"]
)
def test_laws(base, settings):
    # The gradient is the derivative of the loss for these algorithms, so only the mean over the batch is an exemption.
    exempt = {*importance_weight.exemptions(importance_weight.Config(**settings))}
    exempt -= {"gradient_matches_finite_differences"}
    exempt |= {*getattr(base, "EXEMPTIONS", {})}
    check_laws(modified(base, **settings), exempt=exempt)
