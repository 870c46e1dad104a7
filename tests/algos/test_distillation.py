"""Distillation from a teacher, and the implicit reward model of PRIME, compared with their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import gkd, iw_opd, leave_one_out_advantage, opd, opd_top_k, prime, whiten
from purerl.algos.algebra import compute_loss, prepare_step, roles
from purerl.algos.parts.distillation import topk_forward_kl, topk_jsd, topk_reverse_kl
from purerl.algos.parts.rows import at_last_action
from purerl.algos.prime import implicit_reward_loss, leave_one_out_process
from purerl.batch import FIELDS, check_batch, collate, with_fields
from purerl.errors import BatchError, ConfigError
from tests.algos.helpers import example, f64, loss_of, with_advantage

# --- a teacher ---------------------------------------------------------------------------------------------------


def test_opd_loss_is_the_importance_surrogate_of_the_teacher_advantage():
    algorithm = opd.algorithm(opd.Config(distillation_coef=2))
    assert "teacher" in roles(algorithm, FIELDS)
    assert "reward" not in algorithm.reads
    batch = with_advantage(algorithm, example(algorithm))
    mask = batch["mask"]
    loss = -2 * (batch["teacher_logp"] - batch["old_logp"]) * (batch["logp"] - batch["old_logp"]).exp()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), loss[mask].mean())


def test_opd_adds_rewards_to_the_teacher_advantage():
    with_reward = opd.algorithm(opd.Config(reward_coef=0.5))
    batch = example(with_reward)
    teacher, total = (with_advantage(a, batch)["advantage"] for a in (opd.algorithm(), with_reward))
    mask, group = batch["mask"], batch["group"]
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    for row in mask.any(-1).nonzero()[:, 0].tolist():
        mean = score[(group == group[row]) & mask.any(-1)].mean()
        added = (total - teacher)[row][mask[row]]
        torch.testing.assert_close(added, (0.5 * (score[row] - mean)).expand_as(added))


LOGITS = f64([[0.3, -1.0, 0.9, 0.1]])[0]
TEACHER = f64([[0.0, 0.7, -0.4, 1.2]])[0].log_softmax(-1)
REVERSE = (topk_reverse_kl, lambda logp: (logp.exp() * (logp - TEACHER)).sum())
FORWARD = (topk_forward_kl, lambda logp: (TEACHER.exp() * (TEACHER - logp)).sum())


@pytest.mark.parametrize(("estimate", "exact"), [REVERSE, FORWARD])
def test_topk_kl_over_the_whole_vocabulary_is_the_kl_divergence(estimate, exact):
    values, gradients = [], []
    for function in (lambda logp: estimate(logp[None], TEACHER[None]).sum(), exact):
        logits = LOGITS.clone().requires_grad_()
        value = function(logits.log_softmax(-1))
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, logits)[0])
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("estimate", [topk_reverse_kl, topk_forward_kl])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_topk_kl_has_its_minimum_at_the_probabilities_of_the_teacher(estimate, k):
    teacher = TEACHER[None, :, :k].clone().requires_grad_()
    minimum = estimate(teacher, TEACHER[None, :, :k])
    torch.testing.assert_close(minimum, torch.zeros_like(minimum))
    [gradient] = torch.autograd.grad(minimum.sum(), teacher)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    actual = estimate(LOGITS.log_softmax(-1)[None, :, :k], TEACHER[None, :, :k])
    pi, p = LOGITS.softmax(-1)[0, :k].tolist(), TEACHER.exp()[0, :k].tolist()
    first, second = (pi, p) if estimate is topk_reverse_kl else (p, pi)
    expected = sum(a * math.log(a / b) - a + b for a, b in zip(first, second, strict=True))
    assert float(actual) == pytest.approx(expected)
    assert expected > 0


def test_opd_top_k_equals_its_definition():
    algorithm = opd_top_k.algorithm(opd_top_k.Config(reverse_coef=2, forward_coef=0.5))
    batch = example(algorithm)
    logp, teacher, mask = batch["topk_logp"], batch["teacher_topk_logp"], batch["mask"]
    pi, p = logp.exp(), teacher.exp()
    reverse = (pi * (logp - teacher) - pi + p).sum(-1)[mask].mean()
    forward = (p * (teacher - logp) - p + pi).sum(-1)[mask].mean()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), 2 * reverse + 0.5 * forward)


def test_iw_opd_weights_the_advantage_of_opd_by_what_came_before():
    batch = example(opd.algorithm())
    plain, weighted = (with_advantage(a, batch)["advantage"] for a in (opd.algorithm(), iw_opd.algorithm()))
    for row in batch["mask"].any(-1).nonzero()[:, 0].tolist():
        counted = batch["mask"][row]
        sizes = plain[row][counted].abs().tolist()
        expected = [1 + 0.5 * (1 - sum(sizes[:t]) / sum(sizes)) for t in range(len(sizes))]
        assert (weighted / plain)[row][counted].tolist() == pytest.approx(expected)


def test_iw_opd_without_weights_is_opd():
    batch = example(opd.algorithm())
    plain, weighted = (
        with_advantage(a, batch)["advantage"] for a in (opd.algorithm(), iw_opd.algorithm(iw_opd.Config(weight_coef=0)))
    )
    torch.testing.assert_close(weighted, plain)


@pytest.mark.parametrize("beta", [0.5, 0.1])
def test_gkd_over_the_whole_vocabulary_is_the_generalized_jensen_shannon_divergence(beta):
    def exact(logp):
        m = beta * TEACHER.exp() + (1 - beta) * logp.exp()
        from_teacher = (TEACHER.exp() * (TEACHER - m.log())).sum()
        return beta * from_teacher + (1 - beta) * (logp.exp() * (logp - m.log())).sum()

    values, gradients = [], []
    for function in (lambda logp: topk_jsd(logp[None], TEACHER[None], beta=beta).sum(), exact):
        logits = LOGITS.clone().requires_grad_()
        value = function(logits.log_softmax(-1))
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, logits)[0])
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("beta", "limit"), [(1e-4, topk_forward_kl), (1 - 1e-4, topk_reverse_kl)])
def test_gkd_is_between_the_forward_and_the_reverse_kl(beta, limit):
    logp = LOGITS.log_softmax(-1)[None]
    scaled = topk_jsd(logp, TEACHER[None], beta=beta) / min(beta, 1 - beta)
    torch.testing.assert_close(scaled, limit(logp, TEACHER[None]), rtol=1e-3, atol=0)


def test_gkd_equals_its_definition():
    algorithm = gkd.algorithm(gkd.Config(beta=0.3))
    batch = example(algorithm)
    pi, p = (batch[name].exp() for name in ("topk_logp", "teacher_topk_logp"))
    pi, p = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (pi, p))
    m = 0.3 * p + 0.7 * pi
    expected = (0.3 * p * (p / m).log() + 0.7 * pi * (pi / m).log()).sum(-1)[batch["mask"]].mean()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), expected)


def test_gkd_with_a_beta_without_a_loss_is_refused():
    with pytest.raises(
        ConfigError, match="beta\n  got:  1, with which the loss is 0\n  need: a number between 0 and 1"
    ):
        gkd.Config(beta=1)


def test_field_with_a_third_axis_is_collated_and_checked():
    rows = [
        dict(tokens=[1, 2], action=[0, 1], row=0, group=0, teacher_topk_tokens=[[0, 0], [5, 7]]),
        dict(tokens=[1], action=[0], row=1, group=0, teacher_topk_tokens=[[0, 0]]),
    ]
    batch = check_batch(collate(rows), ["teacher_topk_tokens"])
    assert batch["teacher_topk_tokens"].tolist() == [[[0, 0], [5, 7]], [[0, 0], [0, 0]]]
    for invalid in (torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 3, 2, dtype=torch.int64)):
        with pytest.raises(BatchError, match="teacher_topk_tokens"):
            check_batch(with_fields(batch, teacher_topk_tokens=invalid))


# --- PRIME -------------------------------------------------------------------------------------------------------


def test_implicit_reward_loss_is_a_cross_entropy():
    log_ratio, score = f64(-3.0, 0.0, 2.0), f64(0.0, 1.0, 0.25)
    p = torch.sigmoid(0.5 * log_ratio)
    expected = -(score * p.log() + (1 - score) * (1 - p).log())
    torch.testing.assert_close(implicit_reward_loss(log_ratio, score, beta=0.5), expected)
    assert implicit_reward_loss(f64(-1e5, 1e5), f64(0.0, 1.0), beta=1.0).tolist() == [0.0, 0.0]


def test_leave_one_out_process_equals_the_definition():
    draw = torch.Generator().manual_seed(0)
    process = torch.randn(7, 5, generator=draw, dtype=torch.float64)
    mask = torch.rand(7, 5, generator=draw) < 0.6
    mask[:, 0], mask[2] = True, False
    group = torch.tensor([4, -1, 4, 4, -1, 8, 4])
    actual = leave_one_out_process(process, group, mask)
    means = [float(p[m].mean()) if m.any() else 0.0 for p, m in zip(process, mask, strict=True)]
    for row in range(7):
        members = [k for k in range(7) if group[k] == group[row] and mask[k].any()]
        n, total = len(members), sum(means[k] for k in members)
        for t in range(5):
            has_value = mask[row, t] and n > 1
            expected = (n * float(process[row, t]) - total) / (n - 1) if has_value else 0.0
            assert float(actual[row, t]) == pytest.approx(expected)


def test_prime_advantage_equals_its_definition():
    algorithm = prime.algorithm(prime.Config(beta=0.5, process_coef=2, outcome_coef=3))
    batch = example(algorithm)
    mask, action = batch["mask"], batch["action"] & batch["mask"].any(-1, keepdim=True)
    process = leave_one_out_process(0.5 * (batch["reward_model_logp"] - batch["ref_logp"]), batch["group"], mask)
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    outcome = leave_one_out_advantage(score, batch["group"], mask.any(-1))
    reward = 2 * process + 3 * at_last_action(outcome, action)
    returns = reward.flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(with_advantage(algorithm, batch)["advantage"], whiten(returns, mask))


def test_prime_updates_the_reward_model_before_the_advantage():
    algorithm = prime.algorithm(prime.Config(beta=0.5))
    [model] = algorithm.before
    assert model.role == "reward_model"
    assert set(roles(algorithm, FIELDS)) == {"reward_model", "policy", "reference"}
    batch = example(algorithm)
    batch = with_fields(batch, score=torch.arange(6, dtype=torch.float64) % 2)
    step, counts = prepare_step(model, batch)
    loss, metrics = compute_loss(model, step, counts)
    losses, is_correct = [], []
    for row in batch["mask"].any(-1).nonzero()[:, 0].tolist():
        x = 0.5 * float((batch["logp"] - batch["ref_logp"])[row][batch["mask"][row]].sum())
        losses.append(math.log1p(math.exp(x)) - float(batch["score"][row]) * x)
        is_correct.append((x > 0) == (batch["score"][row] == 1))
    assert float(loss) == pytest.approx(sum(losses) / len(losses))
    assert float(metrics["accuracy"].total) == sum(map(bool, is_correct))
    assert int(metrics["accuracy"].weight) == len(is_correct)
