"""The modifier `rank_matching`: the loss by its definition, refusals and laws."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dpo, grpo, simpo, spin
from purerl.algos.modifiers import length_normalization, rank_matching
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example

from .laws import check_laws

LAYOUT = ((3, "..aax"), (3, ".aa"), (-1, ".a.a"), (-1, "..xx"), (5, "..a"), (5, ".aaaa"), (8, ".aa"), (8, ".a"))


def modified(base=dpo, of="margins", **settings):
    return rank_matching.modify(rank_matching.Config(of=of), base.algorithm(base.Config(**settings)))


def sums(batch, field: str):
    """The sums of chosen and of rejected rows [pairs], without the second group, which is no pair."""
    total = torch.where(batch["mask"], batch[field], 0).sum(-1)
    is_pair = batch["group"] != -1
    return total[is_pair & batch["chosen"]], total[is_pair & ~batch["chosen"]]


def on_policy():
    batch = example(modified(), layout=LAYOUT)
    return with_fields(batch, logp=batch["old_logp"])


def test_loss_of_margins_compares_values_of_the_same_rank():
    """On policy, the order is that of the values of `logp`."""
    batch = on_policy()
    chosen, rejected = sums(batch, "logp")
    reference = torch.sub(*sums(batch, "ref_logp")).sort().values
    expected = -torch.nn.functional.logsigmoid(0.1 * ((chosen - rejected).sort().values - reference)).mean()
    torch.testing.assert_close(advantage_losses_and_gradients(modified(), batch)[0], expected)


def test_loss_of_completions_compares_rows_of_the_same_rank():
    batch = on_policy()
    batch = with_fields(batch, old_logp=batch["logp"])
    (chosen, rejected), (ref_chosen, ref_rejected) = sums(batch, "logp"), sums(batch, "ref_logp")
    margins = (chosen - ref_chosen).sort().values - (rejected - ref_rejected).sort().values
    expected = -torch.nn.functional.logsigmoid(0.1 * margins).mean()
    torch.testing.assert_close(advantage_losses_and_gradients(modified(of="completions"), batch)[0], expected)


def test_pairs_are_matched_once():
    with pytest.raises(ConfigError, match="has no effect\n  got:  pairs that are matched by rank"):
        rank_matching.modify(rank_matching.Config(), modified())


def test_an_algorithm_without_pairs_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm without a loss of pairs"):
        modified(grpo)


@pytest.mark.parametrize("base", [simpo, spin])
def test_margins_without_a_reference_model_are_refused(base):
    with pytest.raises(ConfigError, match="has no effect\n  got:  another log-ratio of rows"):
        modified(base)


def test_margins_per_token_are_refused():
    algorithm = with_modifiers(dpo.algorithm(), length_normalization.Config())
    with pytest.raises(ConfigError, match="has no effect\n  got:  another log-ratio of rows"):
        rank_matching.modify(rank_matching.Config(), algorithm)


@pytest.mark.parametrize("loss", ["nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down"])
def test_margins_of_a_loss_of_more_than_the_margin_are_refused(loss):
    with pytest.raises(ConfigError, match="has no effect\n  got:  a loss of more than the margin"):
        modified(losses=loss)
    modified(losses=loss, of="completions")


@pytest.mark.parametrize("of", ["margins", "completions"])
def test_laws(of):
    check_laws(modified(of=of), exempt={**dpo.EXEMPTIONS, **rank_matching.EXEMPTIONS})
