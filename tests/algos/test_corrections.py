"""Corrections for rows that another policy sampled: by hand, what leaves with what is rejected, and edge cases."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import decoupled_ppo, deepseek_v3_2, grpo, k1, k2, k3, kl_cov, ppo, rloo, sapo
from purerl.algos.algebra import Algorithm, begin, bind, evaluate, identity
from purerl.algos.parts.bypass import bypass_old_logp, use_current_outputs
from purerl.algos.parts.corrections import (
    banded,
    corrected,
    reject_rows,
    reject_rows_with_token,
    reject_tokens,
    sequence_masked,
    token_weight,
    truncated,
    whole_row_ratio,
    whole_row_weight,
)
from purerl.algos.parts.rows import row_max, row_mean, row_sum
from purerl.batch import collate, with_fields
from purerl.testing import check_algorithm, fields_of
from purerl.testing.outcome import run_objective
from tests.algos.running import example, learned, loss_of, with_advantage

CAP = bind(truncated, cap=2.0)


def rows(*log_ratios: list[float], reward: list[float] | None = None, group: list[int] | None = None) -> TensorDict:
    """Rows whose tokens have old_logp - rollout_logp as given, right-padded to the longest."""
    width = max(map(len, log_ratios))
    batch = collate(
        [
            dict(tokens=[0] * (1 + len(lr)), action=[0] + [1] * len(lr), row=k, group=(group or [0] * 9)[k])
            for k, lr in enumerate(log_ratios)
        ]
    )
    lr = torch.tensor([[0.0, *row, *[0.0] * (width - len(row))] for row in log_ratios], dtype=torch.float64)
    given = torch.zeros_like(lr)
    given[:, 0] = torch.tensor(reward or [0.0] * len(log_ratios), dtype=torch.float64)
    names = dict(old_logp=-3 + lr, rollout_logp=-3 + 0 * lr, logp=-3 + lr, entropy=0 * lr, reward=given)
    return with_fields(batch, **names)


NOTHING = Algorithm(("old_logp",), identity, ())


def applied(batch: TensorDict, *corrections) -> TensorDict:
    return with_advantage(corrected(NOTHING, *corrections), batch)


# --- weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (token_weight(CAP), [[0, 2, 0.5], [0, 1, 0]]),
        (token_weight(bind(banded, least=0.6, most=5.0)), [[0, 4, 0], [0, 1, 0]]),
        (whole_row_weight(CAP), [[0, 2, 2], [0, 1, 0]]),
        (whole_row_weight(bind(banded, least=0.6, most=1.5)), [[0, 0, 0], [0, 1, 0]]),
    ],
)
def test_weights_by_hand(correction, expected):
    found = applied(rows([math.log(4), math.log(0.5)], [0.0]), correction)
    torch.testing.assert_close(found["weight"], torch.tensor(expected, dtype=torch.float64))
    assert not found["rejected"].any()


def test_weights_multiply():
    found = applied(rows([math.log(4)]), token_weight(CAP), whole_row_weight(CAP))
    torch.testing.assert_close(found["weight"], torch.tensor([[0.0, 4.0]], dtype=torch.float64))


def test_no_ratio_of_a_row_overflows():
    found = whole_row_ratio(torch.full((1, 9), 1e3), torch.zeros(1, 9), torch.ones(1, 9) > 0)
    torch.testing.assert_close(found, torch.tensor([math.exp(20)]))


# --- rejection ---------------------------------------------------------------------------------------------------

TOKENS = ([0.1, -2.0], [1.0, 0.2, 0.3], [-0.1])


@pytest.mark.parametrize("measure", [k1, k2, k3])
@pytest.mark.parametrize("aggregate", [row_sum, row_mean, row_max])
def test_rejection_of_rows_is_by_the_definition(measure, aggregate):
    batch = rows(*TOKENS)
    of_token = {k1: lambda x: -x, k2: lambda x: x * x / 2, k3: lambda x: math.exp(x) - x - 1}[measure]
    of_row = {row_sum: sum, row_mean: lambda v: sum(v) / len(v), row_max: max}[aggregate]
    values = [of_row([of_token(x) for x in row]) for row in TOKENS]
    for bound in (min(values), sorted(values)[1], max(values)):
        found = applied(batch, reject_rows(measure, aggregate, least=-9.0, most=bound + 1e-9))
        assert found["mask"].any(-1).tolist() == [value <= bound + 1e-9 for value in values]
        found = applied(batch, reject_rows(measure, aggregate, least=bound - 1e-9, most=9.0))
        assert found["mask"].any(-1).tolist() == [value >= bound - 1e-9 for value in values]


def test_rejection_of_tokens_and_of_rows_with_one():
    batch = rows(*TOKENS)
    found = applied(batch, reject_tokens(k1, least=-0.5, most=0.5))
    assert found["mask"].int().tolist() == [[0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    assert (found["mask"] | found["rejected"]).equal(batch["mask"])
    found = applied(batch, reject_rows_with_token(k1, least=-0.5, most=0.5))
    assert found["mask"].int().tolist() == [[0] * 4, [0] * 4, [0, 1, 0, 0]]


def test_the_mean_of_k1_is_the_geometric_mean():
    batch = rows(*TOKENS)
    found = row_mean(k1(batch["rollout_logp"], batch["old_logp"]), batch["mask"])
    geometric = [math.prod(map(math.exp, row)) ** (1 / len(row)) for row in TOKENS]
    torch.testing.assert_close((-found).exp(), torch.tensor(geometric, dtype=torch.float64))


REJECT = reject_rows(k2, row_max, least=0.0, most=1.0)


@pytest.mark.parametrize("module", [grpo, rloo])
def test_a_rejected_row_leaves_every_effect(module):
    """Numerator, denominator, and the baseline of its group: as if it had never been there."""
    algorithm = corrected(module.algorithm(), REJECT)
    batch = rows([0.1, 0.2], [0.3], [5.0, 0.0], [-0.2, 0.1], reward=[1.0, 0.0, 9.0, 0.5])
    kept = torch.tensor([True, True, False, True])
    whole, part = (learned(algorithm, with_advantage(algorithm, b)) for b in (batch, batch[kept]))
    torch.testing.assert_close(whole[0][kept], part[0])
    torch.testing.assert_close(whole[1], part[1])
    torch.testing.assert_close(whole[2][kept], part[2])
    assert not whole[2][~kept].any()


def metrics_of(algorithm: Algorithm, batch: TensorDict) -> dict:
    [policy] = [objective for objective in algorithm.objectives if objective.role == "policy"]
    step, counts = begin(policy, with_advantage(algorithm, batch))
    return evaluate(policy, step, counts)[1]


def test_metrics_by_hand():
    algorithm = corrected(grpo.algorithm(), reject_tokens(k1, least=-2.0, most=2.0), token_weight(CAP))
    found = metrics_of(algorithm, rows([math.log(4), math.log(0.5), 9.0], [0.0]))
    means = {name: float(metric.total / metric.weight) for name, metric in found.items()}
    assert means["weight"] == pytest.approx(3.5 / 3)
    assert means["weight_square"] == pytest.approx(5.25 / 3)
    assert means["chi2"] == pytest.approx(17.25 / 3 - 1)
    assert means["log_perplexity_gap"] == pytest.approx(-math.log(2) / 3)
    assert means["rejected_fraction"] == 0.25


def test_everything_may_be_rejected():
    algorithm = corrected(grpo.algorithm(), reject_tokens(k1, least=5.0, most=6.0), token_weight(CAP))
    batch = rows([0.1, 0.2], [0.3], reward=[1.0, 0.0])
    assert all(torch.isfinite(value).all() for value in learned(algorithm, batch))
    found = metrics_of(algorithm, batch)
    assert all(torch.isfinite(torch.as_tensor(metric.total)).all() for metric in found.values())
    assert float(found["rejected_fraction"].total / found["rejected_fraction"].weight) == 1.0
    assert float(loss_of(algorithm.objectives[0], with_advantage(algorithm, batch))) == 0.0


# --- algorithms --------------------------------------------------------------------------------------------------


def test_only_the_surrogate_is_weighed():
    setting = dict(kl_loss_coef=0.3, entropy_coef=0.2)
    algorithm = corrected(grpo.algorithm(grpo.Config(**setting)), whole_row_weight(bind(truncated, cap=0.0)))
    batch = with_advantage(algorithm, example(algorithm))
    [policy] = grpo.algorithm(grpo.Config(**setting)).objectives
    beside = policy._replace(terms=policy.terms[1:])
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), loss_of(beside, batch))


def test_every_correction_satisfies_the_laws():
    algorithm = corrected(
        rloo.algorithm(),
        reject_tokens(k3, least=0.0, most=0.5),
        reject_rows(k1, row_mean, least=-0.5, most=0.5),
        reject_rows_with_token(k2, least=0.0, most=0.4),
        whole_row_weight(CAP),
    )
    # The reward of a rejected row is to be lost; and a rejected token changes what the others' losses are divided by.
    check_algorithm(algorithm, batches=3, exempt=["no_reward_lost", "group_independence"])
    check_algorithm(bypass_old_logp(ppo.algorithm()), batches=3, exempt=ppo.EXEMPTIONS)
    for one in (algorithm, bypass_old_logp(algorithm), sequence_masked(algorithm, delta=0.1)):
        assert pickle.loads(pickle.dumps(one)) == one


NEAR, FAR = reject_tokens(k1, least=-0.5, most=0.5), reject_rows(k1, row_mean, least=-0.4, most=0.4)


@pytest.mark.parametrize("inner", [(token_weight(CAP),), (NEAR,), (token_weight(CAP), NEAR)])
@pytest.mark.parametrize("outer", [(whole_row_weight(CAP),), (FAR,), (FAR, token_weight(CAP))])
def test_what_is_corrected_already_takes_more(inner, outer):
    nested = corrected(corrected(grpo.algorithm(), *inner), *outer)
    once = corrected(grpo.algorithm(), *outer, *inner)
    batch = example(once)
    torch.testing.assert_close(learned(nested, batch), learned(once, batch))
    assert list(map(str, metrics_of(nested, batch).items())) == list(map(str, metrics_of(once, batch).items()))


@pytest.mark.parametrize("module", [grpo, ppo, deepseek_v3_2])
def test_what_bypasses_the_scores_can_be_corrected(module):
    plain = module.algorithm()
    algorithm = corrected(bypass_old_logp(plain) if module is not deepseek_v3_2 else plain, NEAR)
    batch = example(algorithm)
    assert "old_logp" in fields_of(algorithm)
    assert 0 < metrics_of(algorithm, batch)["rejected_fraction"].total < batch["mask"].sum()
    assert all(value.isfinite().all() for value in learned(algorithm, batch))


def test_bypass_scores_no_old_policy():
    for module in (grpo, ppo, decoupled_ppo):
        assert "old_logp" not in fields_of(bypass_old_logp(module.algorithm()))
    batch = example(bypass_old_logp(ppo.algorithm(ppo.Config(kl_reward_coef=0.1))))
    bypass = learned(bypass_old_logp(ppo.algorithm(ppo.Config(kl_reward_coef=0.1))), batch)
    plain = learned(ppo.algorithm(ppo.Config(kl_reward_coef=0.1)), with_fields(batch, old_logp=batch["rollout_logp"]))
    torch.testing.assert_close(bypass, plain)


def test_an_unmoved_policy_is_its_own_old_one():
    for module in (grpo, rloo, decoupled_ppo, sapo):
        algorithm = module.algorithm()
        policy = algorithm.objectives[-1]
        batch = with_advantage(algorithm, example(algorithm))
        own = use_current_outputs(policy, {"old_logp": "logp"})
        assert "old_logp" not in own.reads
        batch = with_fields(batch, old_logp=batch["logp"])
        torch.testing.assert_close(
            run_objective(own, batch.exclude("old_logp")), run_objective(policy, batch), rtol=0, atol=0
        )


def test_what_prepares_a_step_is_scored_before_it():
    [policy] = kl_cov.algorithm().objectives
    assert use_current_outputs(policy, {"old_logp": "logp"}) == policy


def test_a_stale_row_keeps_its_divergence_and_its_place_in_denominators():
    plain = grpo.algorithm(grpo.Config(kl_loss_coef=0.5))
    algorithm = sequence_masked(plain, delta=0.0)
    batch = with_advantage(algorithm, example(algorithm))
    far = with_fields(batch, rollout_logp=batch["logp"] + 1)
    bad = batch["advantage"] < 0
    good = with_fields(batch, advantage=torch.where(bad, 0, batch["advantage"]))
    torch.testing.assert_close(loss_of(algorithm.objectives[0], far), loss_of(plain.objectives[0], good))
    near = with_fields(batch, rollout_logp=batch["logp"] - 1)
    torch.testing.assert_close(loss_of(algorithm.objectives[0], near), loss_of(plain.objectives[0], batch))


def test_deepseek_s_divergence_is_weighed_by_the_ratio():
    algorithm = deepseek_v3_2.algorithm(deepseek_v3_2.Config(kl_loss_coef=0.5))
    bare = deepseek_v3_2.algorithm()
    batch = with_advantage(algorithm, example(algorithm))
    mask = batch["mask"]
    x = batch["logp"] - batch["ref_logp"]
    divergence = (batch["logp"] - batch["rollout_logp"]).exp() * ((-x).exp() + x - 1)
    of_row = torch.where(mask, divergence, 0).sum(-1) / mask.sum(-1).clamp(min=1)
    found = loss_of(algorithm.objectives[0], batch) - loss_of(bare.objectives[0], batch)
    torch.testing.assert_close(found, 0.5 * of_row.sum() / mask.any(-1).sum())
