"""The modifier `nll_loss`: the loss by its definition, refusals and laws."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import cpo, dpo, grpo, orpo, reward_model, simpo
from purerl.algos.modifiers import nll_loss
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example

from .laws import check_laws


def modified(base, **settings):
    return nll_loss.modify(nll_loss.Config(**settings), base.algorithm())


def test_loss_and_gradient_equal_their_definition():
    """The mean is over the tokens of the chosen rows of pairs: a group without a counted rejected row is none."""
    batch = example(dpo.algorithm())
    loss, gradient = advantage_losses_and_gradients(dpo.algorithm(), batch)
    actual, actual_gradient = advantage_losses_and_gradients(modified(dpo, coef=0.3), batch)
    counted = batch["mask"].any(-1)
    is_pair = torch.stack([(counted & (batch["group"] == group)).sum() == 2 for group in batch["group"]])
    tokens = batch["mask"] & (is_pair & batch["chosen"])[:, None]
    assert 0 < int(tokens.sum()) < int(batch["mask"].sum())
    torch.testing.assert_close(actual - loss, -0.3 * batch["logp"][tokens].mean())
    torch.testing.assert_close(actual_gradient - gradient, -0.3 * tokens.double() / tokens.sum())


@pytest.mark.parametrize("base", [grpo, reward_model])
def test_an_algorithm_without_log_probabilities_of_pairs_is_refused(base):
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm without log-probabilities of pairs"):
        modified(base)


@pytest.mark.parametrize("base", [cpo, orpo])
def test_a_second_likelihood_is_refused(base):
    with pytest.raises(ConfigError, match="has no effect\n  got:  a loss that has the term 'nll'"):
        modified(base)


@pytest.mark.parametrize("base", [dpo, simpo])
def test_laws(base):
    check_laws(modified(base), exempt=base.EXEMPTIONS)
