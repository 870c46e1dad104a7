"""The modifier `rejection`: tokens and rows by their definition, refusals and laws."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import grpo, icepop, ipo, ppo, rloo
from purerl.algos.modifiers import bypass, rejection
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, with_advantage

from .laws import check_laws


def binary_kl(a: float, b: float) -> float:
    """The KL divergence of two distributions with two outcomes."""
    return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))


# Functions of rollout_logp and old_logp.
MEASURES = {
    "k1": lambda a, b: a - b,
    "k2": lambda a, b: (a - b) ** 2 / 2,
    "k3": lambda a, b: math.exp(b - a) + a - b - 1,
    "binary_kl": lambda a, b: max(binary_kl(math.exp(a), math.exp(b)), binary_kl(math.exp(b), math.exp(a))),
}
AGGREGATES = {"row_sum": sum, "row_mean": lambda values: sum(values) / len(values), "row_max": max}
LEVELS = ["token", *AGGREGATES, "any_token"]
BOUNDS = {"k1": (-0.2, 0.15), "k2": (0.0, 0.02), "k3": (0.0, 0.02), "binary_kl": (0.0, 0.01)}


def modified(base=grpo, **settings):
    return rejection.modify(rejection.Config(**settings), base.algorithm())


def mask_by_hand(batch: TensorDict, level: str, measure: str, low: float, high: float) -> Tensor:
    """The tokens that are not rejected, by their definition, row by row."""
    kept = torch.zeros_like(batch["mask"])
    for i, counted in enumerate(batch["mask"]):
        pairs = zip(batch["rollout_logp"][i][counted].tolist(), batch["old_logp"][i][counted].tolist(), strict=True)
        values = [MEASURES[measure](*pair) for pair in pairs]
        inside = [low <= value <= high for value in values]
        if level == "token":
            kept[i][counted] = torch.tensor(inside, dtype=torch.bool)
        elif values and level == "any_token":
            kept[i][counted] = all(inside)
        elif values:
            kept[i][counted] = low <= AGGREGATES[level](values) <= high
    return kept


def loss_by_hand(batch: TensorDict, mask: Tensor, logp: Tensor) -> Tensor:
    """The loss of GRPO on the tokens of `mask`: groups, denominators and means have no other rows."""
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    losses = []
    for i in mask.any(-1).nonzero()[:, 0].tolist():
        group = score[mask.any(-1) & (batch["group"] == batch["group"][i])]
        advantage = (score[i] - group.mean()) / (group.std() + 1e-6) if len(group) > 1 else torch.tensor(0.0)
        ratio = (logp[i] - batch["old_logp"][i]).exp()[mask[i]]
        losses.append(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean())
    return torch.stack(losses).mean() if losses else 0 * logp[:0].sum()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("measure", MEASURES)
def test_loss_and_gradient_equal_their_definition(level, measure):
    low, high = BOUNDS[measure]
    algorithm = modified(level=level, measure=measure, min_value=low, max_value=high)
    numbers = []
    for seed in range(4):
        batch = example(algorithm, seed=seed)
        mask = mask_by_hand(batch, level, measure, low, high)
        numbers.append((int(mask.sum()), int(batch["mask"].sum())))
        _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
        torch.testing.assert_close(with_advantage(algorithm, batch)["mask"], mask)
        torch.testing.assert_close(loss, loss_by_hand(batch, mask, batch["logp"]), atol=1e-9, rtol=1e-6)
        expected = gradient_of(lambda logp: loss_by_hand(batch, mask, logp), batch["logp"])  # noqa: B023
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=1e-6)
    assert any(0 < kept < counted for kept, counted in numbers)


def test_any_token_equals_row_max_for_measures_that_are_not_negative():
    for measure in ("k2", "k3", "binary_kl"):
        first, second = (modified(level=level, measure=measure, max_value=0.02) for level in ("any_token", "row_max"))
        batch = example(first)
        assert torch.equal(with_advantage(first, batch)["mask"], with_advantage(second, batch)["mask"])


def test_default_bound_of_k3_is_a_ratio_of_about_two_or_a_third():
    bound = rejection.Config().max_value
    for ratio in (2.36, 0.30):
        assert MEASURES["k3"](-math.log(ratio), 0) == pytest.approx(bound, abs=0.01)


# --- composition -------------------------------------------------------------------------------------------------


def test_after_bypass_the_true_old_logp_decides():
    plain = bypass.modify(bypass.Config(), grpo.algorithm())
    algorithm = rejection.modify(rejection.Config(max_value=0.02), plain)
    batch = example(algorithm)
    mask = mask_by_hand(batch, "token", "k3", 0.0, 0.02)
    assert torch.equal(with_advantage(algorithm, batch)["mask"], mask)
    assert 0 < mask.sum() < batch["mask"].sum()


def test_bypass_after_rejection_is_refused():
    with pytest.raises(ConfigError, match="do:   apply bypass before importance_weight and rejection"):
        bypass.modify(bypass.Config(), modified())


def test_rejection_is_added_to_the_weights_of_icepop():
    algorithm = modified(icepop, max_value=0.02)
    batch = example(algorithm)
    after, plain = with_advantage(algorithm, batch), with_advantage(icepop.algorithm(), batch)
    assert torch.equal(after["mask"], mask_by_hand(batch, "token", "k3", 0.0, 0.02))
    assert torch.equal(after["weight"], torch.where(after["mask"], plain["weight"], 0))


# --- refusals and laws -------------------------------------------------------------------------------------------


def test_an_algorithm_without_a_policy_gradient_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  the loss preference"):
        modified(ipo)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(measure="k1"), "min_value\n  got:  0, with measure = k1\n  need: a number below 0: k1 has either sign"),
        (dict(min_value=-0.5), "min_value\n  got:  -0.5, with measure = k3\n  need: 0: k3 is at least 0"),
        (dict(max_value=0), "max_value\n  got:  0.0\n  need: a number above 0"),
        (dict(measure="k1", min_value=0.1), "min_value\n  got:  0.1\n  need: a number at most 0"),
        (dict(level="row"), "level\n  got:  'row'\n  need: one of: token, row_sum, row_mean, row_max, any_token"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError) as refused:
        rejection.Config(**settings)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("base", [grpo, rloo, ppo])
@pytest.mark.parametrize("level", ["token", "row_mean"])
def test_laws(base, level):
    exempt = {**rejection.EXEMPTIONS, **getattr(base, "EXEMPTIONS", {})}
    check_laws(modified(base, level=level, max_value=0.05), exempt=exempt)
