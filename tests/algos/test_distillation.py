"""Learning from a teacher, and from an implicit reward model: by hand, and by their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import leave_one_out_advantage, opd, prime, whiten
from purerl.algos.algebra import begin, evaluate, roles
from purerl.algos.parts.distillation import teacher_advantage
from purerl.algos.prime import implicit_reward_loss, leave_one_out_process, on_last_action
from purerl.batch import FIELDS, put
from tests.algos.running import example, loss_of, with_advantage


def f64(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- a teacher ---------------------------------------------------------------------------------------------------


def test_the_teacher_s_advantage_has_no_gradient():
    logp, teacher = f64([-3.0, -1.0]).requires_grad_(), f64([-1.0, -2.0]).requires_grad_()
    found = teacher_advantage(teacher, logp, distillation_coef=0.5)
    assert found.tolist() == [[1.0, -0.5]]
    assert not found.requires_grad


def test_opd_is_the_policy_gradient_of_the_teacher_s_advantage():
    algorithm = opd.algorithm(opd.Config(distillation_coef=2))
    assert "teacher" in roles(algorithm, FIELDS)
    assert "reward" not in algorithm.reads
    batch = with_advantage(algorithm, example(algorithm))
    mask = batch["mask"]
    loss = -2 * (batch["teacher_logp"] - batch["old_logp"]) * (batch["logp"] - batch["old_logp"]).exp()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), loss[mask].mean())


def test_rewards_come_on_top_of_the_teacher():
    both = opd.algorithm(opd.Config(reward_coef=0.5))
    batch = example(both)
    teacher, found = (with_advantage(a, batch)["advantage"] for a in (opd.algorithm(), both))
    mask, group = batch["mask"], batch["group"]
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    for row in mask.any(-1).nonzero()[:, 0].tolist():
        mean = score[(group == group[row]) & mask.any(-1)].mean()
        more = (found - teacher)[row][mask[row]]
        torch.testing.assert_close(more, (0.5 * (score[row] - mean)).expand_as(more))


# --- PRIME -------------------------------------------------------------------------------------------------------


def test_the_reward_model_s_loss_is_a_cross_entropy():
    log_ratio, score = f64(-3.0, 0.0, 2.0), f64(0.0, 1.0, 0.25)
    p = torch.sigmoid(0.5 * log_ratio)
    expected = -(score * p.log() + (1 - score) * (1 - p).log())
    torch.testing.assert_close(implicit_reward_loss(log_ratio, score, beta=0.5), expected)
    assert implicit_reward_loss(f64(-1e5, 1e5), f64(0.0, 1.0), beta=1.0).tolist() == [0.0, 0.0]


def test_process_rewards_are_by_the_definition():
    draw = torch.Generator().manual_seed(0)
    process = torch.randn(7, 5, generator=draw, dtype=torch.float64)
    mask = torch.rand(7, 5, generator=draw) < 0.6
    mask[:, 0], mask[2] = True, False
    group = torch.tensor([4, -1, 4, 4, -1, 8, 4])
    found = leave_one_out_process(process, group, mask)
    means = [float(p[m].mean()) if m.any() else 0.0 for p, m in zip(process, mask, strict=True)]
    for row in range(7):
        mine = [k for k in range(7) if group[k] == group[row] and mask[k].any()]
        n, total = len(mine), sum(means[k] for k in mine)
        for t in range(5):
            right = mask[row, t] and n > 1
            expected = (n * float(process[row, t]) - total) / (n - 1) if right else 0.0
            assert float(found[row, t]) == pytest.approx(expected)


def test_the_outcome_sits_on_the_last_action_token():
    action = torch.tensor([[False, True, True, False], [False] * 4])
    assert on_last_action(torch.tensor([3.0, 5.0]), action).tolist() == [[0, 0, 3, 0], [0] * 4]


def test_prime_by_its_parts():
    algorithm = prime.algorithm(prime.Config(beta=0.5, process_coef=2, outcome_coef=3))
    batch = example(algorithm)
    mask, action = batch["mask"], batch["action"] & batch["mask"].any(-1, keepdim=True)
    process = leave_one_out_process(0.5 * (batch["reward_model_logp"] - batch["ref_logp"]), batch["group"], mask)
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    outcome = leave_one_out_advantage(score, batch["group"], mask.any(-1))
    reward = 2 * process + 3 * on_last_action(outcome, action)
    returns = reward.flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(with_advantage(algorithm, batch)["advantage"], whiten(returns, mask))


def test_the_reward_model_learns_first_from_the_scores_of_whole_rows():
    algorithm = prime.algorithm(prime.Config(beta=0.5))
    [model] = algorithm.before
    assert model.role == "reward_model"
    assert set(roles(algorithm, FIELDS)) == {"reward_model", "policy", "reference"}
    batch = example(algorithm)
    batch = put(batch, score=torch.arange(6, dtype=torch.float64) % 2)
    step, counts = begin(model, batch)
    loss, metrics = evaluate(model, step, counts)
    losses, right = [], []
    for row in batch["mask"].any(-1).nonzero()[:, 0].tolist():
        x = 0.5 * float((batch["logp"] - batch["ref_logp"])[row][batch["mask"][row]].sum())
        losses.append(math.log1p(math.exp(x)) - float(batch["score"][row]) * x)
        right.append((x > 0) == (batch["score"][row] == 1))
    assert float(loss) == pytest.approx(sum(losses) / len(losses))
    assert float(metrics["accuracy"].total) == sum(map(bool, right))
    assert int(metrics["accuracy"].weight) == len(right)
