"""The adaptive entropy bonus: coefficient, state, and laws."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import grpo
from purerl.algos.algebra import compute_advantages
from purerl.algos.modifiers import entropy_bonus
from purerl.algos.parts.entropy import with_adaptive_entropy
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.testing import check_algorithm
from tests.algos.helpers import example, loss_of, with_advantage

SETTING = dict(entropy_coef=0.5, target=1.0, step_size=0.25, max_coef=0.75)
ADAPTIVE = with_adaptive_entropy(with_modifiers(grpo.algorithm(), entropy_bonus.Config(coef=9.0)), **SETTING)


def batch_with_entropy(entropy: float):
    batch = example(ADAPTIVE)
    return with_fields(batch, old_entropy=torch.where(batch["mask"], entropy, torch.nan).to(batch["old_logp"].dtype))


def test_entropy_coefficient_is_a_state_between_zero_and_the_maximum():
    state, coefficients = ADAPTIVE.advantage.init(), []
    for entropy in (0.1, 0.1, 0.1, 1.0, 3.0, 3.0, 3.0, 3.0, 0.1):
        state, batch = compute_advantages(ADAPTIVE, state, batch_with_entropy(entropy))
        coefficients.append(float(batch["entropy_coef"].max()))
    assert coefficients == [0.5, 0.75, 0.75, 0.75, 0, 0, 0, 0, 0]
    assert float(state[1]) == 0.25, "from 0.75 down to 0, then up by one step"


@pytest.mark.parametrize(("entropy", "coefficient"), [(0.1, 0.5), (3.0, 0.0)])
def test_adaptive_bonus_replaces_the_constant_bonus(entropy: float, coefficient: float):
    bonus = [entropy_bonus.Config(coef=coefficient)] if coefficient else []
    [plain] = with_modifiers(grpo.algorithm(), *bonus).objectives
    batch = with_advantage(ADAPTIVE, batch_with_entropy(entropy))
    torch.testing.assert_close(loss_of(ADAPTIVE.objectives[0], batch), loss_of(plain, batch))


def test_entropy_coefficient_does_not_change_without_counted_tokens():
    batch = batch_with_entropy(0.1)
    state, _ = compute_advantages(
        ADAPTIVE, ADAPTIVE.advantage.init(), with_fields(batch, mask=torch.zeros_like(batch["mask"]))
    )
    assert float(state[1]) == 0.5


def test_adaptive_entropy_algorithm_satisfies_the_laws():
    check_algorithm(ADAPTIVE, batches=3, exempt=["group_independence", "reinforce_gradient_on_policy"])
