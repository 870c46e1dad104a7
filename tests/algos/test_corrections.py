"""Off-policy corrections: weights, rejection, metrics, nesting and edge cases."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import decoupled_ppo, deepseek_v3_2, dpo, grpo, k1, k2, k3, kl_cov, opd_top_k, ppo, rloo, sapo, sft
from purerl.algos.algebra import Algorithm, bind, compute_loss, identity, prepare_step
from purerl.algos.modifiers import entropy_bonus, kl_loss, kl_reward
from purerl.algos.parts.bypass import bypass_old_logp, use_current_outputs
from purerl.algos.parts.corrections import (
    banded_ratio,
    mask_off_policy_sequences,
    reject_rows,
    reject_rows_with_outlier_token,
    reject_tokens,
    sequence_importance_ratio,
    sequence_weight,
    token_weight,
    truncated_ratio,
    with_corrections,
)
from purerl.algos.parts.rows import row_max, row_mean, row_sum
from purerl.batch import collate, with_fields
from purerl.composition import with_modifiers
from purerl.errors import ConfigError
from purerl.testing import check_algorithm, fields_of
from purerl.testing.outcome import run_objective
from tests.algos.helpers import advantage_losses_and_gradients, example, loss_of, with_advantage

CAP = bind(truncated_ratio, ratio_cap=2.0)


def rows(*log_ratios: list[float], reward: list[float] | None = None, group: list[int] | None = None) -> TensorDict:
    """Rows whose tokens have the given old_logp - rollout_logp, right-padded to the maximum length."""
    width = max(map(len, log_ratios))
    batch = collate(
        [
            dict(tokens=[0] * (1 + len(lr)), action=[0] + [1] * len(lr), row=k, group=(group or [0] * 9)[k])
            for k, lr in enumerate(log_ratios)
        ]
    )
    lr = torch.tensor([[0.0, *row, *[0.0] * (width - len(row))] for row in log_ratios], dtype=torch.float64)
    rewards = torch.zeros_like(lr)
    rewards[:, 0] = torch.tensor(reward or [0.0] * len(log_ratios), dtype=torch.float64)
    fields = dict(old_logp=-3 + lr, rollout_logp=-3 + 0 * lr, logp=-3 + lr, entropy=0 * lr, reward=rewards)
    return with_fields(batch, **fields)


EMPTY = Algorithm(("old_logp",), identity, rloo.algorithm().objectives)


def applied(batch: TensorDict, *corrections) -> TensorDict:
    return with_advantage(with_corrections(EMPTY, *corrections), batch)


# --- weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (token_weight(CAP), [[0, 2, 0.5], [0, 1, 0]]),
        (token_weight(bind(banded_ratio, min_ratio=0.6, max_ratio=5.0)), [[0, 4, 0], [0, 1, 0]]),
        (sequence_weight(CAP), [[0, 2, 2], [0, 1, 0]]),
        (sequence_weight(bind(banded_ratio, min_ratio=0.6, max_ratio=1.5)), [[0, 0, 0], [0, 1, 0]]),
    ],
)
def test_correction_writes_weights(correction, expected):
    after = applied(rows([math.log(4), math.log(0.5)], [0.0]), correction)
    torch.testing.assert_close(after["weight"], torch.tensor(expected, dtype=torch.float64))
    assert not after["rejected"].any()


def test_weights_of_several_corrections_multiply():
    after = applied(rows([math.log(4)]), token_weight(CAP), sequence_weight(CAP))
    torch.testing.assert_close(after["weight"], torch.tensor([[0.0, 4.0]], dtype=torch.float64))


def test_sequence_importance_ratio_does_not_overflow():
    actual = sequence_importance_ratio(torch.full((1, 9), 1e3), torch.zeros(1, 9), torch.ones(1, 9) > 0)
    torch.testing.assert_close(actual, torch.tensor([math.exp(20)]))


# --- rejection ---------------------------------------------------------------------------------------------------

TOKENS = ([0.1, -2.0], [1.0, 0.2, 0.3], [-0.1])


@pytest.mark.parametrize("aggregate", [row_sum, row_mean, row_max])
def test_aggregate_of_rows_without_tokens_is_zero(aggregate):
    assert aggregate(torch.zeros(2, 0), torch.zeros(2, 0) > 0).tolist() == [0, 0]


@pytest.mark.parametrize("measure", [k1, k2, k3])
@pytest.mark.parametrize("aggregate", [row_sum, row_mean, row_max])
def test_reject_rows_equals_the_definition(measure, aggregate):
    batch = rows(*TOKENS)
    of_token = {k1: lambda x: -x, k2: lambda x: x * x / 2, k3: lambda x: math.exp(x) - x - 1}[measure]
    of_row = {row_sum: sum, row_mean: lambda v: sum(v) / len(v), row_max: max}[aggregate]
    values = [of_row([of_token(x) for x in row]) for row in TOKENS]
    for bound in (min(values), sorted(values)[1], max(values)):
        after = applied(batch, reject_rows(measure, aggregate, min_value=-9.0, max_value=bound + 1e-9))
        assert after["mask"].any(-1).tolist() == [value <= bound + 1e-9 for value in values]
        after = applied(batch, reject_rows(measure, aggregate, min_value=bound - 1e-9, max_value=9.0))
        assert after["mask"].any(-1).tolist() == [value >= bound - 1e-9 for value in values]


def test_reject_tokens_and_reject_rows_with_outlier_token():
    batch = rows(*TOKENS)
    after = applied(batch, reject_tokens(k1, min_value=-0.5, max_value=0.5))
    assert after["mask"].int().tolist() == [[0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    assert (after["mask"] | after["rejected"]).equal(batch["mask"])
    after = applied(batch, reject_rows_with_outlier_token(k1, min_value=-0.5, max_value=0.5))
    assert after["mask"].int().tolist() == [[0] * 4, [0] * 4, [0, 1, 0, 0]]


def test_mean_k1_is_the_log_of_the_geometric_mean_ratio():
    batch = rows(*TOKENS)
    mean_k1 = row_mean(k1(batch["rollout_logp"], batch["old_logp"]), batch["mask"])
    geometric = [math.prod(map(math.exp, row)) ** (1 / len(row)) for row in TOKENS]
    torch.testing.assert_close((-mean_k1).exp(), torch.tensor(geometric, dtype=torch.float64))


REJECT = reject_rows(k2, row_max, min_value=0.0, max_value=1.0)


@pytest.mark.parametrize("module", [grpo, rloo])
def test_rejected_row_has_no_effect(module):
    """The numerator, the denominator and the baseline of the group are the same as without the row."""
    algorithm = with_corrections(module.algorithm(), REJECT)
    batch = rows([0.1, 0.2], [0.3], [5.0, 0.0], [-0.2, 0.1], reward=[1.0, 0.0, 9.0, 0.5])
    remaining = torch.tensor([True, True, False, True])
    advantage, loss, gradient = advantage_losses_and_gradients(algorithm, with_advantage(algorithm, batch))
    expected = advantage_losses_and_gradients(algorithm, with_advantage(algorithm, batch[remaining]))
    torch.testing.assert_close([advantage[remaining], loss, gradient[remaining]], expected)
    assert not gradient[~remaining].any()


def metrics_of(algorithm: Algorithm, batch: TensorDict) -> dict:
    [policy] = [objective for objective in algorithm.objectives if objective.role == "policy"]
    step, counts = prepare_step(policy, with_advantage(algorithm, batch))
    return compute_loss(policy, step, counts)[1]


def test_metrics_of_corrections():
    algorithm = with_corrections(grpo.algorithm(), reject_tokens(k1, min_value=-2.0, max_value=2.0), token_weight(CAP))
    metrics = metrics_of(algorithm, rows([math.log(4), math.log(0.5), 9.0], [0.0]))
    means = {name: float(metric.total / metric.weight) for name, metric in metrics.items()}
    assert means["weight"] == pytest.approx(3.5 / 3)
    assert means["weight_square"] == pytest.approx(5.25 / 3)
    assert means["chi2"] == pytest.approx(17.25 / 3 - 1)
    assert means["log_perplexity_gap"] == pytest.approx(-math.log(2) / 3)
    assert means["rejected_fraction"] == 0.25


def test_rejecting_every_token_gives_a_loss_of_zero():
    algorithm = with_corrections(grpo.algorithm(), reject_tokens(k1, min_value=5.0, max_value=6.0), token_weight(CAP))
    batch = rows([0.1, 0.2], [0.3], reward=[1.0, 0.0])
    assert all(torch.isfinite(value).all() for value in advantage_losses_and_gradients(algorithm, batch))
    metrics = metrics_of(algorithm, batch)
    assert all(torch.isfinite(torch.as_tensor(metric.total)).all() for metric in metrics.values())
    assert float(metrics["rejected_fraction"].total / metrics["rejected_fraction"].weight) == 1.0
    assert float(loss_of(algorithm.objectives[0], with_advantage(algorithm, batch))) == 0.0


# --- algorithms --------------------------------------------------------------------------------------------------


def test_only_the_policy_term_is_weighted():
    plain = with_modifiers(grpo.algorithm(), kl_loss.Config(coef=0.3), entropy_bonus.Config(coef=0.2))
    algorithm = with_corrections(plain, sequence_weight(bind(truncated_ratio, ratio_cap=0.0)))
    batch = with_advantage(algorithm, example(algorithm))
    [policy] = plain.objectives
    other_terms = policy._replace(terms=policy.terms[1:])
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), loss_of(other_terms, batch))


@pytest.mark.parametrize(
    ("algorithm", "got"),
    [
        (dpo.algorithm(), "the loss preference"),
        (opd_top_k.algorithm(), "the loss reverse_kl"),
        (sft.algorithm(), "the loss nll"),
        (Algorithm((), identity, ()), "an algorithm that trains no policy"),
    ],
)
def test_corrections_of_an_algorithm_without_a_policy_term_are_refused(algorithm, got):
    changes = (
        lambda: with_corrections(algorithm, token_weight(CAP)),
        lambda: mask_off_policy_sequences(algorithm, delta=1.0),
    )
    for change in changes:
        with pytest.raises(
            ConfigError, match=rf"^has no effect\n  got:  {got}\n  need: an algorithm with a policy gradient"
        ):
            change()


@pytest.mark.slow
def test_corrected_algorithms_satisfy_the_laws():
    algorithm = with_corrections(
        rloo.algorithm(),
        reject_tokens(k3, min_value=0.0, max_value=0.5),
        reject_rows(k1, row_mean, min_value=-0.5, max_value=0.5),
        reject_rows_with_outlier_token(k2, min_value=0.0, max_value=0.4),
        sequence_weight(CAP),
    )
    # The reward of a rejected row is dropped, and a rejected token changes the denominator of all other losses.
    check_algorithm(algorithm, batches=3, exempt=["no_reward_lost", "group_independence"])
    check_algorithm(bypass_old_logp(ppo.algorithm()), batches=3, exempt=ppo.EXEMPTIONS)
    for variant in (algorithm, bypass_old_logp(algorithm), mask_off_policy_sequences(algorithm, delta=0.1)):
        assert pickle.loads(pickle.dumps(variant)) == variant


NEAR, FAR = reject_tokens(k1, min_value=-0.5, max_value=0.5), reject_rows(k1, row_mean, min_value=-0.4, max_value=0.4)


@pytest.mark.parametrize("inner", [(token_weight(CAP),), (NEAR,), (token_weight(CAP), NEAR)])
@pytest.mark.parametrize("outer", [(sequence_weight(CAP),), (FAR,), (FAR, token_weight(CAP))])
def test_nested_corrections_equal_one_call(inner, outer):
    nested = with_corrections(with_corrections(grpo.algorithm(), *inner), *outer)
    flat = with_corrections(grpo.algorithm(), *outer, *inner)
    batch = example(flat)
    actual, expected = (advantage_losses_and_gradients(algorithm, batch) for algorithm in (nested, flat))
    torch.testing.assert_close(actual, expected)
    assert list(map(str, metrics_of(nested, batch).items())) == list(map(str, metrics_of(flat, batch).items()))


@pytest.mark.parametrize("module", [grpo, ppo, deepseek_v3_2])
def test_bypassed_algorithm_can_be_corrected(module):
    plain = module.algorithm()
    algorithm = with_corrections(bypass_old_logp(plain) if module is not deepseek_v3_2 else plain, NEAR)
    batch = example(algorithm)
    assert "old_logp" in fields_of(algorithm)
    assert 0 < metrics_of(algorithm, batch)["rejected_fraction"].total < batch["mask"].sum()
    assert all(value.isfinite().all() for value in advantage_losses_and_gradients(algorithm, batch))


def test_bypass_reads_rollout_logp_instead_of_old_logp():
    for module in (grpo, ppo, decoupled_ppo):
        assert "old_logp" not in fields_of(bypass_old_logp(module.algorithm()))
    plain = with_modifiers(ppo.algorithm(), kl_reward.Config(coef=0.1))
    bypassed = bypass_old_logp(plain)
    batch = example(bypassed)
    expected = advantage_losses_and_gradients(plain, with_fields(batch, old_logp=batch["rollout_logp"]))
    torch.testing.assert_close(advantage_losses_and_gradients(bypassed, batch), expected)


def test_current_outputs_equal_scored_fields_of_the_same_policy():
    for module in (grpo, rloo, decoupled_ppo, sapo):
        algorithm = module.algorithm()
        policy = algorithm.objectives[-1]
        batch = with_advantage(algorithm, example(algorithm))
        current = use_current_outputs(policy, {"old_logp": "logp"})
        assert "old_logp" not in current.reads
        batch = with_fields(batch, old_logp=batch["logp"])
        torch.testing.assert_close(
            run_objective(current, batch.exclude("old_logp")), run_objective(policy, batch), rtol=0, atol=0
        )


def test_objective_with_prepare_still_reads_scored_fields():
    [policy] = kl_cov.algorithm().objectives
    assert use_current_outputs(policy, {"old_logp": "logp"}) == policy


def test_off_policy_sequence_stays_in_kl_term_and_denominator():
    plain = with_modifiers(grpo.algorithm(), kl_loss.Config(coef=0.5))
    algorithm = mask_off_policy_sequences(plain, delta=0.0)
    batch = with_advantage(algorithm, example(algorithm))
    off_policy = with_fields(batch, rollout_logp=batch["logp"] + 1)
    expected = loss_of(plain.objectives[0], with_fields(batch, advantage=batch["advantage"].clamp(min=0)))
    torch.testing.assert_close(loss_of(algorithm.objectives[0], off_policy), expected)
    on_policy = with_fields(batch, rollout_logp=batch["logp"] - 1)
    torch.testing.assert_close(loss_of(algorithm.objectives[0], on_policy), loss_of(plain.objectives[0], batch))


def test_deepseek_v3_2_weights_the_kl_term_by_the_ratio():
    algorithm = deepseek_v3_2.algorithm(deepseek_v3_2.Config(kl_loss=0.5))
    bare = deepseek_v3_2.algorithm()
    batch = with_advantage(algorithm, example(algorithm))
    mask = batch["mask"]
    x = batch["logp"] - batch["ref_logp"]
    divergence = (batch["logp"] - batch["rollout_logp"]).exp() * ((-x).exp() + x - 1)
    row_means = torch.where(mask, divergence, 0).sum(-1) / mask.sum(-1).clamp(min=1)
    actual = loss_of(algorithm.objectives[0], batch) - loss_of(bare.objectives[0], batch)
    torch.testing.assert_close(actual, 0.5 * row_means.sum() / mask.any(-1).sum())
