"""Step relative advantages and the optimal token baseline, compared with loops in plain Python."""

from __future__ import annotations

import statistics

import pytest
import torch

from purerl.algos import discounted_returns, grpo, optimal_token_advantage, otb, step_relative_advantage, turn_credit
from purerl.algos.algebra import compute_advantages
from purerl.algos.estimators.steps import find_steps
from purerl.algos.modifiers import advantage_scale
from purerl.batch import collate
from tests.algos import helpers
from tests.algos.helpers import with_advantage


def example(rows: int = 9, time: int = 14, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    reward = torch.randn(rows, time, generator=draw, dtype=torch.float64)
    action = torch.rand(rows, time, generator=draw) < 0.7
    action[-1] = False
    return dict(
        reward=reward,
        turn=torch.randint(0, 3, (rows, time), generator=draw).sort(-1).values,
        anchor=torch.tensor([2**62, -5])[torch.randint(0, 2, (rows, time), generator=draw)],
        group=torch.randint(-1, 1, (rows,), generator=draw),
        action=action,
        mask=action & (torch.rand(rows, time, generator=draw) < 0.8),
    )


def steps_in_plain_python(b: dict, row: int) -> list[dict]:
    """The steps of a row, with their tokens, their reward, and the state at their start."""
    steps = []
    for t in range(b["turn"].shape[1]):
        if b["action"][row, t]:
            if not steps or int(b["turn"][row, t]) != steps[-1]["turn"]:
                steps.append(dict(turn=int(b["turn"][row, t]), anchor=int(b["anchor"][row, t]), tokens=[], reward=0.0))
            steps[-1]["tokens"].append(t)
    for t in range(b["turn"].shape[1]):
        for step in [s for s in steps if s["tokens"][0] <= t][-1:] or steps[:1]:
            step["reward"] += float(b["reward"][row, t])
    return steps


@pytest.mark.parametrize("seed", range(3))
def test_step_relative_advantage_equals_the_definition(seed):
    b, steps_by_state = example(seed=seed), {}
    for row in range(len(b["group"])):
        steps = steps_in_plain_python(b, row)
        for k, step in enumerate(steps):
            step["return"] = sum(0.9 ** (j - k) * later["reward"] for j, later in enumerate(steps) if j >= k)
            step["row"] = row
            if b["mask"][row, step["tokens"]].any():
                steps_by_state.setdefault((int(b["group"][row]), step["anchor"]), []).append(step)
    expected = torch.zeros_like(b["reward"])
    for steps in steps_by_state.values():
        returns = [step["return"] for step in steps]
        for step in steps if len(steps) > 1 else ():
            value = (step["return"] - statistics.fmean(returns)) / (statistics.stdev(returns) + 1e-6)
            expected[step["row"], step["tokens"]] = value
    actual = step_relative_advantage(*b.values(), discount=0.9)
    torch.testing.assert_close(actual, torch.where(b["mask"], expected, 0))
    batches = [torch.stack(fields) for fields in zip(b.values(), example(seed=7).values(), strict=True)]
    loop = torch.stack([step_relative_advantage(*fields, discount=0.9) for fields in zip(*batches, strict=True)])
    torch.testing.assert_close(step_relative_advantage(*batches, discount=0.9), loop)


def test_repeated_turn_starts_a_new_step():
    turn, action = torch.tensor([[5, 5, 0, 5]]), torch.ones(1, 4) > 0
    step, is_start = find_steps(turn, action)
    assert step.tolist() == [[0, 0, 1, 2]]
    assert is_start.tolist() == [[True, False, True, True]]


@pytest.mark.parametrize("seed", range(3))
def test_optimal_token_advantage_equals_the_definition(seed):
    b, draw = example(seed=seed), torch.Generator().manual_seed(seed)
    p = torch.rand(b["action"].shape, generator=draw, dtype=torch.float64)
    sum_pi_squared = p.square() + 0.1
    returns = discounted_returns(b["reward"], b["action"], discount=1.0)
    expected = torch.zeros_like(returns)
    positions = [action.nonzero()[:, 0].tolist() for action in b["action"]]
    for i, row_positions in enumerate(positions):
        for k, t in enumerate(row_positions):
            pairs = []
            for j, other_positions in enumerate(positions):
                reaches_k = k < len(other_positions) and b["mask"][j, other_positions[k]]
                if b["group"][j] == b["group"][i] and reaches_k:
                    counted = [s for s in other_positions[: k + 1] if b["mask"][j, s]]
                    weight = sum(float(1 - 2 * p[j, s] + sum_pi_squared[j, s]) for s in counted)
                    pairs.append((weight, float(returns[j, other_positions[k]])))
            if b["mask"][i, t] and len(pairs) > 1:
                baseline = sum(w * g for w, g in pairs) / (sum(w for w, _ in pairs) + 1e-8)
                expected[i, t] = returns[i, t] - baseline
    actual = optimal_token_advantage(returns, p.log(), sum_pi_squared, b["action"], b["mask"], b["group"])
    torch.testing.assert_close(actual, expected)


def test_weight_is_the_squared_gradient_in_the_logits():
    logits = torch.tensor([0.3, -1.0, 0.9], dtype=torch.float64, requires_grad=True)
    pi = logits.softmax(-1)
    [gradient] = torch.autograd.grad(pi[1].log(), logits, retain_graph=True)
    torch.testing.assert_close(gradient.square().sum(), 1 - 2 * pi[1].detach() + pi.detach().square().sum())


def test_optimal_token_baseline_is_documented_as_it_is_computed():
    """The docstring of `otb` has the formulas of the estimator, with the field that a run gives for `logp`."""
    ours, estimator = (" ".join((text or "").split()) for text in (otb.__doc__, optimal_token_advantage.__doc__))
    for formula in (
        "w_it = max(1 - 2 exp(logp_it) + sum_v pi_it(v)^2, 0)",
        "W_it = sum_{j <= t} w_ij",
        "M_t = max_i(G_it)",
        "B_t = M_t + (sum_i W_it (G_it - M_t)) / (sum_i W_it + 1e-8)",
        "A_it = G_it - B_t",
    ):
        assert formula in estimator
        assert formula.replace("exp(logp", "exp(old_logp") in ours


def test_optimal_token_baseline_of_a_certain_policy_is_the_largest_return():
    """All weights are 0: B_t = M_t. The unshifted formula, with B_t = 0, would give the returns 3 and 1."""
    mask, returns, one = torch.ones(2, 1, dtype=torch.bool), torch.tensor([[3.0], [1.0]]), torch.ones(2, 1)
    actual = optimal_token_advantage(returns, one.log(), one, mask, mask, torch.tensor([4, 4]))
    assert actual.tolist() == [[0.0], [-2.0]]


# --- turn credit -------------------------------------------------------------------------------------------------


def test_turn_credit_moves_the_advantage_of_a_row_to_the_turns_that_made_progress():
    """Row 0 has two turns of 1 and 2 tokens. The second makes a progress of 3, of which decay 1/2 leaves 2 with it.

    Scores are 1 + 3 and 0: A = 2 and -2. Credits 1, 2, 2 have the mean 5/3.
    """
    rows = [
        {"tokens": [0] * 5, "action": [0, 1, 0, 1, 1], "row": 0, "group": 4, "reward": [0.0, 0, 0, 0, 1],
         "turn": [0, 0, 1, 1, 1], "progress": [0.0, 0, 0, 0, 3]},
        {"tokens": [0] * 2, "action": [0, 1], "row": 1, "group": 4, "reward": [0.0, 0],
         "turn": [0, 0], "progress": [0.0, 0]},
    ]  # fmt: skip
    algorithm = turn_credit.algorithm(turn_credit.Config(credit_coef=0.5, decay=0.5))
    _, batch = compute_advantages(algorithm, algorithm.advantage.init(), collate(rows))
    expected = [[0, 2 + 0.5 * (1 - 5 / 3), 0, *[2 + 0.5 * (2 - 5 / 3)] * 2], [0, -2, 0, 0, 0]]
    torch.testing.assert_close(batch["advantage"], torch.tensor(expected))
    assert float(batch["advantage"][0].sum()) == pytest.approx(3 * 2), "the row as a whole keeps its advantage"


def test_turn_credit_without_progress_is_dr_grpo_in_its_advantage():
    algorithm = turn_credit.algorithm()
    batch = helpers.example(algorithm)
    batch["progress"] = torch.zeros_like(batch["progress"])
    centered = with_advantage(advantage_scale.modify(advantage_scale.Config(by="none"), grpo.algorithm()), batch)
    torch.testing.assert_close(with_advantage(algorithm, batch)["advantage"], centered["advantage"])
