"""Pass@k advantages, compared with an enumeration of all sets of k rows and of all leave-one-out groups."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch

from purerl.algos import leave_one_out_max_advantage, pass_k_advantage


def over_all_sets(correct: list[bool], k: int) -> list[float]:
    """The reward of each set, whitened over all sets; then the mean over the sets that contain a row."""
    sets = list(itertools.combinations(range(len(correct)), k))
    reward = [float(any(correct[i] for i in members)) for members in sets]
    mean, std = statistics.fmean(reward), statistics.pstdev(reward)
    if std == 0:
        return [0.0] * len(correct)
    return [
        statistics.fmean((r - mean) / std for r, members in zip(reward, sets, strict=True) if row in members)
        for row in range(len(correct))
    ]


@pytest.mark.parametrize(
    "correct", [[1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0], [1, 1], [1, 0, 0, 0, 0]]
)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_k_advantage_is_the_mean_over_all_sets(correct, k):
    score = torch.tensor(correct, dtype=torch.float64)
    actual = pass_k_advantage(score, torch.zeros(len(correct), dtype=torch.int64), score > -1, k=k)
    expected = over_all_sets([r > 0 for r in correct], k) if k <= len(correct) else [0.0] * len(correct)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))
    assert abs(float(actual.sum())) < 1e-12


def test_group_with_fewer_than_k_rows_has_no_advantage():
    score, group = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([5, 5, 5])
    assert not pass_k_advantage(score, group, torch.tensor([True, True, False]), k=3).any()


def test_large_groups_lose_no_precision():
    score = (torch.arange(512) < 2).float()
    actual = pass_k_advantage(score, torch.zeros(512, dtype=torch.int64), score > -1, k=64)
    exact = pass_k_advantage(score.double(), torch.zeros(512, dtype=torch.int64), score > -1, k=64)
    torch.testing.assert_close(actual.double(), exact, rtol=1e-4, atol=1e-5)


def test_best_row_gets_its_lead_over_the_second_best():
    draw = torch.Generator().manual_seed(0)
    score = torch.randint(0, 9, (60,), generator=draw).double() - 4
    group, counted = torch.randint(-8, 8, (60,), generator=draw), torch.rand(60, generator=draw) < 0.8
    actual = leave_one_out_max_advantage(torch.where(counted, score, torch.nan), group, counted)
    for i in range(60):
        members = [j for j in range(60) if group[j] == group[i] and counted[j]]
        other_scores = [float(score[j]) for j in members if j != i]
        has_lead = counted[i] and other_scores
        expected = max(float(score[j]) for j in members) - max(other_scores) if has_lead else 0.0
        assert float(actual[i]) == expected


@pytest.mark.parametrize("k", [1, 2])
def test_leading_axes_and_vmap_equal_a_loop(k):
    draw = torch.Generator().manual_seed(0)
    score, group = torch.randint(0, 2, (3, 8), generator=draw).float(), torch.randint(-2, 2, (3, 8), generator=draw)
    counted = torch.rand(3, 8, generator=draw) < 0.7
    for function in (leave_one_out_max_advantage, lambda *inputs: pass_k_advantage(*inputs, k=k)):
        loop = torch.stack([function(*row) for row in zip(score, group, counted, strict=True)])
        torch.testing.assert_close(function(score, group, counted), loop)
        torch.testing.assert_close(torch.func.vmap(function)(score, group, counted), loop)
        assert function(score[0, :0], group[0, :0], counted[0, :0]).shape == (0,)


def test_mean_gradient_is_the_gradient_of_the_expected_maximum():
    """A sum over all groups of three rows with one token each, weighted by probability."""
    logits = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64, requires_grad=True)
    reward, label = torch.tensor([1.0, 0.0, 0.3], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    logp, actual, expected = logits.log_softmax(-1), 0.0, 0.0
    for group in itertools.product(range(3), repeat=3):
        drawn = torch.tensor(group)
        probability = logp[drawn].sum().exp()
        advantage = leave_one_out_max_advantage(reward[drawn], label, label == 0)
        actual = actual + probability.detach() * (advantage * logp[drawn]).sum()
        expected = expected + probability * reward[drawn].max()
    [actual], [expected] = (torch.autograd.grad(x, logits, retain_graph=True) for x in (actual, expected))
    torch.testing.assert_close(actual, expected)
