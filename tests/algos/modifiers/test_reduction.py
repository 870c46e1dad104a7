"""The modifier `reduction`: which terms of a loss it changes, and which it leaves or refuses."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dro, importance_po, kimi, kl_cov, vapo
from purerl.algos.algebra import Algorithm, prepare_step
from purerl.algos.modifiers import entropy_bonus, kl_loss, reduction
from purerl.composition import with_modifiers
from purerl.errors import ConfigError
from purerl.explain.algorithm import algorithm_named
from tests.algos.helpers import example, loss_of, with_advantage

ROW_MEAN = reduction.Config(by="sequence_mean_of_token_mean")
OWN = "sequence_mean_of_token_sum"


def _reductions(algorithm: Algorithm) -> dict[str, str]:
    return {term.name: term.reduce.__name__ for term in algorithm.objectives[-1].terms}


def _losses_of_tokens(name: str, step) -> torch.Tensor:
    """l_it of the docstring of the algorithm."""
    x = step["logp"] - step["rollout_logp" if name == "importance_po" else "old_logp"]
    if name == "dro":
        return -step["advantage"] * step["logp"] + 0.5 / 2 * x.square()
    if name == "kl_cov":
        return -step["advantage"] * x.exp() + 0.5 * torch.where(step["penalized"], x.abs(), 0)
    kept = (step["logp"].exp() - step["rollout_logp"].exp()).abs() <= 0.1
    return -torch.where(kept, x.exp(), 0) * step["advantage"] * step["logp"] + 0.5 * x.square()


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("dro", dro.algorithm(dro.Config(beta=0.5))),
        ("kl_cov", kl_cov.algorithm(kl_cov.Config(penalty_coef=0.5, top_fraction=0.4))),
        ("importance_po", importance_po.algorithm(importance_po.Config(mismatch_coef=0.5))),
    ],
)
def test_the_penalty_is_reduced_with_the_policy_loss(name: str, algorithm: Algorithm) -> None:
    changed = reduction.modify(ROW_MEAN, algorithm)
    batch = with_advantage(changed, example(changed))
    step, _ = prepare_step(changed.objectives[0], batch)
    mask = step["mask"]
    loss = torch.where(mask, _losses_of_tokens(name, step), 0)
    expected = (loss.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / mask.any(-1).sum()
    torch.testing.assert_close(loss_of(changed.objectives[0], batch), expected)
    assert _reductions(reduction.modify(reduction.Config(by="token_mean"), changed)) == _reductions(algorithm)


def test_a_penalty_of_whole_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no effect\n  got:  a loss that is defined for whole rows"):
        reduction.modify(ROW_MEAN, kimi.algorithm())


def test_a_loss_of_other_tokens_keeps_its_reduction() -> None:
    changed = reduction.modify(ROW_MEAN, vapo.algorithm())
    assert _reductions(changed) == {"policy": ROW_MEAN.by, "imitation": "token_mean"}


@pytest.mark.parametrize(
    "settings",
    [
        # Its own reduction is that of the policy loss before the change, after it, or neither.
        ["kl_loss.reduction=token_mean", "entropy_bonus.reduction=token_mean"],
        ["kl_loss.reduction=sequence_mean_of_token_mean", "entropy_bonus.reduction=sequence_mean_of_token_mean"],
        [f"kl_loss.reduction={OWN}", f"entropy_bonus.reduction={OWN}"],
    ],
)
def test_a_reduction_that_is_set_for_a_term_is_not_changed(settings: list[str]) -> None:
    by = settings[0].partition("=")[2]
    expected = {"policy": ROW_MEAN.by, "ref_kl": by, "entropy": by}
    change = f"reduction={ROW_MEAN.by}"
    for order in ([change, *settings], [*settings, change]):
        assert _reductions(algorithm_named("dapo", order)) == expected


def test_a_term_without_a_reduction_of_its_own_follows_the_policy_loss() -> None:
    terms = kl_loss.Config(), entropy_bonus.Config()
    for modifiers in ((*terms, ROW_MEAN), (ROW_MEAN, *terms)):
        changed = with_modifiers(dro.algorithm(), *modifiers)
        assert {*_reductions(changed).values()} == {ROW_MEAN.by}


def test_value_of_a_kl_penalty_with_its_own_reduction() -> None:
    bare = algorithm_named("grpo")
    changed = with_modifiers(bare, kl_loss.Config(coef=0.5, estimator="k2", reduction="token_mean"))
    batch = with_advantage(changed, example(changed))
    mask = batch["mask"]
    added = loss_of(changed.objectives[0], batch) - loss_of(bare.objectives[0], batch)
    torch.testing.assert_close(added, 0.5 * ((batch["logp"] - batch["ref_logp"])[mask].square() / 2).mean())
