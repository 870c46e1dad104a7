"""The modifier `label_smoothing`: both losses by their definition, refusals and laws."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import dpo, grpo, ipo, orpo, simpo, spin
from purerl.algos.modifiers import label_smoothing
from purerl.batch import with_fields
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of

from .laws import check_laws


def modified(base=dpo, **settings):
    config = base.Config() if base is orpo else base.Config(beta=0.7)
    return label_smoothing.modify(label_smoothing.Config(**settings), base.algorithm(config))


def loss_by_hand(batch: TensorDict, anchor: str, smoothing: float, logp: Tensor, *, robust: bool = False) -> Tensor:
    """The mean over pairs, from the sigmoid itself."""
    chosen, mask, losses = batch["chosen"], batch["mask"], []
    for group in batch["group"].unique().tolist():
        counted = (batch["group"] == group) & mask.any(-1)
        if [*map(int, ((counted & chosen).sum(), (counted & ~chosen).sum()))] == [1, 1]:
            x = torch.where(mask, logp - batch[anchor], 0)
            z = 0.7 * (x[counted & chosen].sum() - x[counted & ~chosen].sum())
            right, wrong = -torch.sigmoid(z).log(), -torch.sigmoid(-z).log()
            sign, divisor = (-1, 1 - 2 * smoothing) if robust else (1, 1)
            losses.append(((1 - smoothing) * right + sign * smoothing * wrong) / divisor)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize(("base", "anchor"), [(dpo, "ref_logp"), (spin, "old_logp")])
def test_loss_and_gradient_equal_their_definition(base, anchor, robust):
    for smoothing in (0.01, 0.3):
        algorithm = modified(base, smoothing=smoothing, robust=robust)
        batch = with_fields(example(algorithm), chosen=torch.tensor([True, False] * 3))
        loss, gradient = advantage_losses_and_gradients(algorithm, batch)
        torch.testing.assert_close(loss, loss_by_hand(batch, anchor, smoothing, batch["logp"], robust=robust))
        expected = gradient_of(
            lambda logp: loss_by_hand(batch, anchor, smoothing, logp, robust=robust),  # noqa: B023
            batch["logp"],
        )
        torch.testing.assert_close(gradient, expected)


def test_the_expected_robust_loss_under_wrong_labels_is_the_loss_of_dpo():
    algorithm = modified(smoothing=0.2, robust=True)
    batch = with_fields(example(algorithm), chosen=torch.tensor([True, False] * 3))
    flipped = with_fields(batch, chosen=~batch["chosen"])
    (right, right_gradient), (wrong, wrong_gradient) = (
        advantage_losses_and_gradients(algorithm, each) for each in (batch, flipped)
    )
    expected = advantage_losses_and_gradients(dpo.algorithm(dpo.Config(beta=0.7)), batch)
    actual = [0.8 * right + 0.2 * wrong, 0.8 * right_gradient + 0.2 * wrong_gradient]
    torch.testing.assert_close(actual, expected)


def test_the_smoothed_loss_has_its_minimum_at_a_finite_margin():
    algorithm = modified(smoothing=0.2)
    batch = with_fields(example(algorithm)[:2], chosen=torch.tensor([True, False]))
    margin = math.log(0.8 / 0.2) / 0.7
    logp = batch["ref_logp"].clone()
    logp[0, batch["mask"][0].nonzero()[0]] += margin
    _, gradient = advantage_losses_and_gradients(algorithm, with_fields(batch, logp=logp))
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_an_algorithm_without_pairs_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm without a loss of pairs"):
        label_smoothing.modify(label_smoothing.Config(), grpo.algorithm())


def test_labels_are_smoothed_once():
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm with smoothed labels"):
        label_smoothing.modify(label_smoothing.Config(), modified())


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.6, -0.1])
def test_a_probability_of_zero_or_of_a_half_is_refused(smoothing):
    with pytest.raises(ConfigError, match="smoothing\n  got:"):
        label_smoothing.Config(smoothing=smoothing)


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("base", [dpo, ipo, orpo, simpo, spin])
def test_laws(base, robust):
    check_laws(modified(base, robust=robust), exempt=base.EXEMPTIONS)
