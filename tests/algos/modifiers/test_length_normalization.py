"""The modifier `length_normalization`: the loss by its definition, refusals and laws."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import cpo, dpo, grpo, ipo, orpo, simpo
from purerl.algos.modifiers import length_normalization
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example

from .laws import check_laws


def modified(base):
    return length_normalization.modify(length_normalization.Config(), base.algorithm())


def test_loss_is_that_of_mean_log_ratios():
    """With rows of one length n, the loss of IPO is that with log-ratios that are divided by n."""
    batch = example(ipo.algorithm(), layout=((3, ".aaaa"), (3, ".a.aaa"), (-1, ".aaaa"), (-1, "..aaaa")))
    scaled = batch.clone()
    scaled["ref_logp"] = batch["logp"] + (batch["ref_logp"] - batch["logp"]) / 4
    loss, gradient = advantage_losses_and_gradients(modified(ipo), batch)
    expected, expected_gradient = advantage_losses_and_gradients(ipo.algorithm(), scaled)
    torch.testing.assert_close([loss, gradient], [expected, expected_gradient / 4])


def test_margins_in_the_metrics_are_means_too():
    [objective] = modified(dpo).objectives
    assert "per_token" in str(objective.metrics)


@pytest.mark.parametrize("base", [orpo, simpo])
def test_log_ratios_that_are_divided_already_are_refused(base):
    with pytest.raises(ConfigError, match="has no effect\n  got:  log-ratios that are divided by lengths"):
        modified(base)


def test_an_algorithm_without_log_ratios_of_rows_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  a loss without log-ratios of rows"):
        modified(grpo)


@pytest.mark.parametrize("base", [cpo, dpo, ipo])
def test_laws(base):
    check_laws(modified(base), exempt=base.EXEMPTIONS)
