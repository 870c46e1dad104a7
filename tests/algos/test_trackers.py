"""Baselines with state, resampling, and reward transforms."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import (
    best_weight,
    extreme_weight,
    ngu,
    pf_ppo,
    rae,
    resample,
    spo,
    table_lookup,
    update_beta_counts,
    update_moving_average,
)
from purerl.algos.algebra import compute_advantages
from purerl.algos.parts.shaping import component_reward, mask_truncated_rows
from purerl.batch import check_batch, collate, with_fields
from tests.algos.helpers import example, with_advantage

KEY, COUNTED = torch.tensor([2, 0, 2, 2]), torch.tensor([True, True, True, False])


def test_moving_average_of_equal_scores_equals_sequential_updates():
    table = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)
    score = torch.tensor([0.3, 0.8, 0.3, torch.nan], dtype=torch.float64)
    expected = table.clone()
    for key, s in zip(KEY[:3].tolist(), score[:3].tolist(), strict=True):
        expected[key] = 0.9 * expected[key] + 0.1 * s
    torch.testing.assert_close(update_moving_average(table, score, KEY, COUNTED, decay=0.9), expected)


def test_beta_counts_converge_to_the_horizon_of_the_decay():
    alpha = beta = torch.tensor([5.0], dtype=torch.float64)
    for _ in range(400):
        alpha, beta = update_beta_counts(alpha, beta, torch.ones(1), torch.tensor([0]), COUNTED[:1], decay=0.9)
    torch.testing.assert_close(alpha + beta, torch.tensor([10.0], dtype=torch.float64))
    assert float(alpha / (alpha + beta)) == pytest.approx(1)


def test_leading_axes_of_tables_equal_a_loop():
    table = torch.zeros(3)
    score, key = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0, 1], [2, 2]])
    counted = score > -1
    actual = update_moving_average(table, score, key, counted, decay=0.5)
    loop = [update_moving_average(table, *batch, decay=0.5) for batch in zip(score, key, counted, strict=True)]
    torch.testing.assert_close(actual, torch.stack(loop))
    assert table_lookup(table, key).shape == key.shape


def rows(reward: list[float], **fields) -> TensorDict:
    examples = [dict(tokens=[0, 0], action=[0, 1], row=k, group=k, reward=[0.0, r]) for k, r in enumerate(reward)]
    return with_fields(collate(examples), **{name: torch.tensor(value) for name, value in fields.items()})


def test_rae_subtracts_the_baseline_before_the_update():
    transform = rae.role_advantage(decay=0.5, roles=2)
    state, batch = transform.apply(transform.init(), rows([1.0, 0.0], role=[0, 1]))
    assert batch["advantage"][:, 1].tolist() == [1.0, 0.0]
    state, batch = transform.apply(state, rows([1.0, 1.0], role=[0, 1]))
    assert batch["advantage"][:, 1].tolist() == [0.5, 1.0]
    assert state.tolist() == [0.75, 0.5]


def test_spo_subtracts_the_success_rate_of_the_prompt():
    algorithm = spo.algorithm(spo.Config(decay=0.5, prompts=4))
    state = algorithm.advantage.init()
    assert [x.tolist() for x in state] == [[1.0] * 4] * 2
    state, batch = compute_advantages(algorithm, state, rows([1.0, 0.0], example=[0, 3]))
    torch.testing.assert_close(batch["advantage"][:, 1], torch.tensor([1.0, -1.0]) * math.sqrt(0.5))
    assert [x.tolist() for x in state] == [[1.5, 1.0, 1.0, 0.5], [0.5, 1.0, 1.0, 1.5]]
    _, batch = compute_advantages(algorithm, state, rows([1.0, 1.0], example=[0, 3]))
    assert batch["advantage"][1, 1] > 0 > batch["advantage"][0, 1], "a lower success rate gives a larger advantage"


# --- resampling --------------------------------------------------------------------------------------------------


def test_resample_draws_rows_in_proportion_to_their_weight():
    generator, weight = torch.Generator().manual_seed(0), torch.tensor([1.0, 2.0, 5.0, 9.0, 0.0], dtype=torch.float64)
    counted = torch.tensor([True, True, True, False, True])
    noise = torch.rand(20_000, 5, generator=generator, dtype=torch.float64)
    copies = resample(weight.expand_as(noise), noise, counted.expand_as(noise))
    assert (copies.sum(-1) == 4).all()
    probability = torch.tensor([1.0, 2.0, 5.0, 0.0, 0.0], dtype=torch.float64) / 8
    torch.testing.assert_close(copies.mean(0), 4 * probability, atol=0.03, rtol=0)
    # The draws are independent, so the variance is that of a binomial distribution.
    torch.testing.assert_close(copies.var(0), 4 * probability * (1 - probability), atol=0.03, rtol=0)
    torch.testing.assert_close(
        copies, torch.func.vmap(resample)(weight.expand_as(noise), noise, counted.expand_as(noise))
    )


def test_resample_of_an_empty_batch_is_empty():
    empty = torch.zeros(0)
    assert resample(empty, empty, empty.bool()).shape == (0,)
    assert extreme_weight(empty, empty.bool()).shape == best_weight(empty, empty.bool()).shape == (0,)


def test_pf_ppo_mean_over_copies_is_the_mean_over_drawn_rows():
    algorithm = pf_ppo.algorithm()
    batch = example(algorithm)
    after = with_advantage(algorithm, batch)
    mask, copies = batch["mask"], after["copies"]
    tokens = mask.sum(-1)
    assert float((copies * tokens).sum()) == pytest.approx(int(tokens.sum()))
    drawn = (copies / copies[copies > 0].min()).round().long()
    ratio = copies[copies > 0] / drawn[copies > 0]
    row_of_token = mask.nonzero()[:, 0]
    resampled = row_of_token.repeat_interleave(drawn[row_of_token])
    value = torch.arange(len(mask), dtype=torch.float64)
    actual = (copies * tokens * value).sum() / tokens.sum()
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    torch.testing.assert_close(actual, value[resampled].mean())


# --- rewards -----------------------------------------------------------------------------------------------------


def test_mask_truncated_rows():
    _, batch = mask_truncated_rows.apply((), rows([1.0, 1.0], truncated=[True, False]))
    assert batch["mask"].any(-1).tolist() == [False, True]


def test_component_reward_writes_the_weighted_sum():
    batch = rows([0.0, 0.0], components=[[1.0, 2.0], [0.0, 4.0]])
    check_batch(batch, ["components"])
    _, batch = component_reward(weights=(1.0, 0.5)).apply((), batch)
    assert batch["reward"][:, 1].tolist() == [2.0, 2.0]


# --- histories of prompts ----------------------------------------------------------------------------------------


def prompts(reward: list[float], example: list[int]) -> TensorDict:
    """Rows in which the rows of an example are a group."""
    return with_fields(rows(reward, example=example), group=torch.tensor(example))


def test_ngu_has_the_deviation_from_the_mean_when_a_prompt_is_drawn_for_the_first_time():
    algorithm = ngu.algorithm(ngu.Config(prompts=4))
    _, batch = compute_advantages(algorithm, algorithm.advantage.init(), prompts([1.0, 0.0, 0.0, 0.0], [3] * 4))
    torch.testing.assert_close(batch["advantage"][:, 1], torch.tensor([0.75, -0.25, -0.25, -0.25]))


def test_ngu_counts_the_attempts_at_each_prompt():
    """After one success in four, a group with two of four: the rate is 3 of 8, and the group sums to 0."""
    algorithm = ngu.algorithm(ngu.Config(prompts=4))
    first = prompts([1.0, 0.0, 0.0, 0.0, 1.0], [3, 3, 3, 3, 0])
    state, _ = compute_advantages(algorithm, algorithm.advantage.init(), first)
    assert [x.tolist() for x in state] == [[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 4.0]]
    state, batch = compute_advantages(algorithm, state, prompts([0.0, 1.0, 1.0, 0.0], [3] * 4))
    torch.testing.assert_close(batch["advantage"][:, 1], torch.tensor([-0.625, 0.625, 0.625, -0.625]))
    assert [x.tolist() for x in state] == [[1.0, 0.0, 0.0, 3.0], [1.0, 0.0, 0.0, 8.0]]


def test_ngu_leaves_groups_alone_that_are_solved_always_or_never():
    algorithm = ngu.algorithm(ngu.Config(prompts=4))
    state = (torch.tensor([1.0, 1, 0, 0]).double(), torch.tensor([4.0, 4, 0, 0]).double())
    _, batch = compute_advantages(algorithm, state, prompts([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1]))
    assert batch["advantage"].abs().max() == 0
