"""Preference losses, and regressions on log-ratios, compared with their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import a_star_po, dpo, flowrl, gvpo, ipo, leave_one_out_advantage, spin, sppo, target_po
from purerl.algos.algebra import compute_loss, prepare_step
from purerl.algos.estimators.group_relative import win_rate_advantage
from purerl.algos.parts.regressions import gvpo_loss
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.batch import with_fields
from purerl.errors import ConfigError
from tests.algos.helpers import example, f64, gradient_of, loss_of, with_advantage

INT64 = torch.iinfo(torch.int64)


# --- pairs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "anchor"), [(dpo, "ref_logp"), (ipo, "ref_logp"), (spin, "old_logp")])
def test_margin_is_relative_to_the_anchor(module, anchor):
    [objective] = module.algorithm(module.Config(beta=0.5)).objectives
    assert objective.reads == (anchor, "chosen")
    batch = example(module.algorithm())
    step, counts = prepare_step(objective, batch)
    mask, chosen = step["mask"], step["chosen"]
    total = torch.where(mask, batch["logp"] - batch[anchor], 0).sum(-1)
    labels = step["group"][mask.any(-1)].unique()
    margins = [float(total[(step["group"] == g) & chosen] - total[(step["group"] == g) & ~chosen]) for g in labels]
    dpo_loss, ipo_loss = (lambda d: math.log1p(math.exp(-0.5 * d))), (lambda d: (d - 1) ** 2)
    expected = sum(map(ipo_loss if module is ipo else dpo_loss, margins)) / len(margins)
    loss, metrics = compute_loss(objective, step, counts)
    assert float(loss) == pytest.approx(expected)
    assert float(metrics["margin"].total / metrics["margin"].weight) == pytest.approx(sum(margins) / 2 / len(margins))


@pytest.mark.parametrize("weights", [(), (0.8, 0.2)])
def test_losses_of_dpo_are_added_with_their_weights(weights):
    names = ("sigmoid", "nca_pair")
    alone = [dpo.algorithm(dpo.Config(losses=name)) for name in names]
    both = dpo.algorithm(dpo.Config(losses=names, weights=weights))
    batch = example(both)
    losses = [loss_of(algorithm.objectives[0], batch) for algorithm in alone]
    factors = weights or (1.0, 1.0)
    expected = factors[0] * losses[0] + factors[1] * losses[1]
    torch.testing.assert_close(loss_of(both.objectives[0], batch), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            dict(losses="sigmod"),
            "losses\n  got:  \\('sigmod',\\)\n  need: a list of at least one of: .*\n  do:   .*sigmoid",
        ),
        (dict(losses=[]), "losses\n  got:  \\(\\)"),
        (dict(losses=["hinge", "hinge"]), "losses\n  got:  .*\n  need: .*\n  do:   name each of them once"),
        (dict(weights=[0.5, 0.5]), "weights\n  got:  2 weights\n  need: 1: one for each of losses, or none"),
        (dict(exo_smoothing=0.1), "exo_smoothing\n  got:  losses = sigmoid\n  need: the loss exo_pair"),
        (dict(losses="exo_pair", discopop_tau=0.1), "discopop_tau\n  got:  losses = exo_pair"),
    ],
)
def test_settings_without_an_effect_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        dpo.Config(**settings)


# --- win rates ---------------------------------------------------------------------------------------------------


def test_win_rate_advantage_equals_the_definition_on_groups_of_different_sizes():
    draw = torch.Generator().manual_seed(0)
    group = torch.tensor([INT64.max, INT64.min, 0, -1])[torch.randint(0, 4, (40,), generator=draw)]
    score = torch.randint(0, 4, (40,), generator=draw).double()
    counted = torch.rand(40, generator=draw) < 0.8
    score[~counted] = torch.nan
    actual = win_rate_advantage(score, group, counted)
    for row in range(40):
        rivals = score[(group == group[row]) & counted].tolist()
        wins = [1.0 if score[row] > rival else 0.5 if score[row] == rival else 0.0 for rival in rivals]
        expected = sum(wins) / len(wins) - 0.5 if counted[row] else 0.0
        assert float(actual[row]) == pytest.approx(expected)


# --- regressions -------------------------------------------------------------------------------------------------


def test_sppo_equals_its_definition():
    algorithm = sppo.algorithm(sppo.Config(eta=7))
    batch = with_advantage(algorithm, example(algorithm))
    mask, counted = batch["mask"], batch["mask"].any(-1)
    log_ratio = sequence_log_ratio(batch["logp"], batch["old_logp"], mask)
    reward = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    wins = win_rate_advantage(reward, batch["group"], counted)
    expected = (log_ratio - 7 * wins).square()[counted].mean()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), expected)


def test_a_star_po_equals_its_definition():
    """In value and gradient, in float64: the gradient of a token is 2 beta (beta L - A) / rows."""
    algorithm = a_star_po.algorithm(a_star_po.Config(beta=0.3))
    batch = with_advantage(algorithm, example(algorithm))
    mask, counted = batch["mask"], batch["mask"].any(-1)
    log_ratio = torch.where(mask, batch["logp"] - batch["ref_logp"], 0).sum(-1)
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    error = 0.3 * log_ratio - (score - batch["optimal_value"])
    [policy] = algorithm.objectives
    torch.testing.assert_close(loss_of(policy, batch), error.square()[counted].mean())
    actual = gradient_of(lambda logp: loss_of(policy, with_fields(batch, logp=logp)), batch["logp"])
    torch.testing.assert_close(actual, mask * (2 * 0.3 * error / counted.sum()).unsqueeze(-1))


def test_a_star_po_needs_no_group():
    """Rows with other labels have the same loss: one completion per prompt is enough."""
    algorithm = a_star_po.algorithm()
    batch = example(algorithm)
    alone = with_fields(batch, group=torch.arange(len(batch)))
    losses = [loss_of(algorithm.objectives[0], with_advantage(algorithm, each)) for each in (batch, alone)]
    torch.testing.assert_close(*losses)


GROUP = torch.tensor([4, 9, 4, 4, 9, 2])
COUNTED = torch.ones(6) > 0


def test_gvpo_loss_is_half_the_variance_of_the_error():
    draw = torch.Generator().manual_seed(0)
    log_ratio, score = (torch.randn(6, generator=draw, dtype=torch.float64) for _ in range(2))
    centered = torch.stack([s - score[g == GROUP].mean() for s, g in zip(score, GROUP, strict=True)])
    actual = gvpo_loss(log_ratio, centered, GROUP, COUNTED, beta=0.3)
    for label in (4, 9):
        members = label == GROUP
        torch.testing.assert_close(actual[members].mean(), (0.3 * log_ratio - score)[members].var() / 2)
    assert float(actual[-1]) == 0.0


def test_gvpo_gradient_of_an_unchanged_policy_is_beta_times_rloo():
    score, zero = f64(1, 2, 0, 5, 1, 7), torch.zeros(6, dtype=torch.float64)
    centered = torch.stack([s - score[g == GROUP].mean() for s, g in zip(score, GROUP, strict=True)])
    actual = gradient_of(lambda x: gvpo_loss(x, centered, GROUP, COUNTED, beta=0.3), zero)
    torch.testing.assert_close(actual, -0.3 * leave_one_out_advantage(score, GROUP, COUNTED))


def test_gvpo_loss_does_not_depend_on_a_partition_function():
    log_ratio = f64(1, 2, 0, 5, 1, 7)
    constant = torch.where(GROUP == 4, 100.0, -3.0).double()
    plain, shifted = (gvpo_loss(x, log_ratio * 0, GROUP, COUNTED, beta=0.3) for x in (log_ratio, log_ratio + constant))
    torch.testing.assert_close(plain, shifted)


def test_gvpo_equals_its_definition():
    algorithm = gvpo.algorithm(gvpo.Config(beta=0.5))
    assert algorithm.objectives[0].unit == "group"
    batch = with_advantage(algorithm, example(algorithm))
    counted = batch["mask"].any(-1)
    log_ratio = sequence_log_ratio(batch["logp"], batch["old_logp"], batch["mask"])
    reward = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    error = (0.5 * log_ratio - reward)[counted]
    groups = batch["group"][counted]
    parts = [error[groups == g].var() / 2 * (groups == g).sum() for g in groups.unique() if (groups == g).sum() > 1]
    expected = sum(parts) / counted.sum()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), expected)


def test_flowrl_equals_its_definition():
    algorithm = flowrl.algorithm(flowrl.Config(beta=2, clip_low=0.1, clip_high=0.3))
    batch = with_advantage(algorithm, example(algorithm))
    losses = []
    for row in range(len(batch)):
        mask = batch["mask"][row]
        if mask.any():
            logp, old, ref, a, z = (
                batch[name][row][mask] for name in ("logp", "old_logp", "ref_logp", "advantage", "log_partition")
            )
            weight = float((logp - old).sum().exp().clamp(0.9, 1.3))
            losses.append(weight * float(z[0] + (logp - ref).mean() - 2 * a[0]) ** 2)
    assert float(loss_of(algorithm.objectives[0], batch)) == pytest.approx(sum(losses) / len(losses))


def test_target_po_equals_its_definition():
    algorithm = target_po.algorithm(target_po.Config(eta=0.7))
    assert algorithm.objectives[0].unit == "group"
    batch = with_advantage(algorithm, example(algorithm))
    mask, counted = batch["mask"], batch["mask"].any(-1)
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    logp, old = (torch.where(mask, batch[name], 0).sum(-1) for name in ("logp", "old_logp"))
    losses = []
    for label in batch["group"][counted].unique():
        group = counted & (batch["group"] == label)
        s = score[group]
        u = (s - s.mean()) / s.std(correction=0) if len(s) > 1 and s.max() > s.min() else 0 * s
        target = (old[group] + u / 0.7).softmax(-1)
        losses += [-(target * logp[group].log_softmax(-1)).sum()] * len(s)
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), torch.stack(losses).mean())


def test_target_po_has_no_gradient_at_its_target():
    """At a policy with the probabilities of the target, in a group of rows with one token each."""
    algorithm = target_po.algorithm()
    batch = with_advantage(algorithm, example(algorithm, ((3, ".a"),) * 4))
    [policy] = algorithm.objectives

    def loss(logp):
        return loss_of(policy, with_fields(batch, logp=logp))

    target = batch["old_logp"] + batch["advantage"]
    assert gradient_of(loss, batch["old_logp"]).abs().max() > 1e-3
    torch.testing.assert_close(gradient_of(loss, target), torch.zeros_like(target))
