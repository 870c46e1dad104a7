"""The modifiers `kl_loss`, `kl_reward` and `entropy_bonus` with a target: coefficients that are a state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import grpo, reinforce_plus_plus, rloo
from purerl.algos.algebra import Algorithm, State, compute_advantages, compute_loss, prepare_step
from purerl.algos.modifiers import entropy_bonus, kl_loss, kl_reward, mask_truncated, reduction
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.errors import ConfigError
from purerl.testing import exemptions_of_modifier
from tests.algos.helpers import advantage_losses_and_gradients, example, loss_of, with_advantage

from .laws import check_laws

TARGET = dict(coef=0.1, target=1.0, horizon=60.0)
ENTROPY = dict(coef=0.5, target=1.0, step_size=0.25, max_coef=0.75)
KL = [(kl_loss, "kl_loss_coef"), (kl_reward, "kl_reward_coef")]


def modified(module: Any, base: Any = rloo, **settings: Any) -> Algorithm:
    return with_modifiers(base.algorithm(), module.Config(**settings))


def state_of(algorithm: Algorithm, batch: TensorDict) -> State:
    return compute_advantages(algorithm, algorithm.advantage.init(), batch)[0]


def numbers(state: State) -> list[float]:
    return [float(state)] if isinstance(state, torch.Tensor) else [x for part in state for x in numbers(part)]


def assert_equal(algorithm: Algorithm, state: State, plain: Algorithm, batch: TensorDict) -> None:
    """`algorithm` with `state` has the advantage, the loss and the gradient of `plain`."""
    results = []
    for each, start in ((algorithm, state), (plain, plain.advantage.init())):
        _, after = compute_advantages(each, start, batch)
        step, counts = prepare_step(each.objectives[0], after)
        logp = step["logp"].detach().clone().requires_grad_()
        loss, _ = compute_loss(each.objectives[0], with_fields(step, logp=logp), counts)
        results.append((after["advantage"], loss.detach(), *torch.autograd.grad(loss, logp)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("module", "field"), KL)
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_coefficient_adapts_to_the_divergence_of_the_batch_before(module, field, estimator):
    algorithm = modified(module, estimator=estimator, **TARGET)
    batch = example(algorithm)
    mask = batch["mask"]
    rows = int(mask.any(-1).sum())
    divergence = float((batch["old_logp"] - batch["ref_logp"])[mask].sum()) / rows
    expected = 0.1 * (1 + min(max(divergence - 1, -0.2), 0.2) * rows / 60)
    state = state_of(algorithm, batch)
    assert numbers(state) == [pytest.approx(expected)]
    for start, coef in ((algorithm.advantage.init(), 0.1), (state, expected)):
        assert_equal(algorithm, start, modified(module, estimator=estimator, coef=coef), batch)


@pytest.mark.parametrize(("module", "field"), KL)
def test_kl_coefficient_is_a_metric(module, field):
    algorithm = modified(module, **TARGET)
    step, counts = prepare_step(algorithm.objectives[0], with_advantage(algorithm, example(algorithm)))
    _, metrics = compute_loss(algorithm.objectives[0], step, counts)
    assert float(metrics[field].total / metrics[field].weight) == pytest.approx(0.1)


@pytest.mark.parametrize(("module", "settings"), [(kl_loss, TARGET), (kl_reward, TARGET), (entropy_bonus, ENTROPY)])
def test_coefficient_does_not_change_without_counted_tokens(module, settings):
    algorithm = modified(module, **settings)
    batch = example(algorithm)
    state = state_of(algorithm, with_fields(batch, mask=torch.zeros_like(batch["mask"])))
    assert numbers(state) == [settings["coef"]]


@pytest.mark.parametrize(("module", "settings"), [(kl_loss, TARGET), (kl_reward, TARGET), (entropy_bonus, ENTROPY)])
def test_coefficient_may_start_at_0_and_leaves_it(module, settings):
    algorithm = modified(module, **{**settings, "coef": 0.0})
    batch, state = example(algorithm), algorithm.advantage.init()
    changes = {"old_logp": batch["ref_logp"] + 3.0} if "ref_logp" in batch.keys() else {}
    changes |= {"old_entropy": 0 * batch["old_entropy"]} if "old_entropy" in batch.keys() else {}
    coefficients = []
    for _ in range(3):
        coefficients += numbers(state)
        state, _ = compute_advantages(algorithm, state, with_fields(batch, **changes))
    assert coefficients[0] == 0
    assert 0 < coefficients[1] < coefficients[2]


def test_truncated_rows_that_are_masked_have_no_effect_on_the_coefficient():
    algorithm = with_modifiers(grpo.algorithm(), mask_truncated.Config(), kl_reward.Config(**TARGET))
    batch = example(algorithm)
    truncated = batch["truncated"]
    assert truncated.any()
    changed = with_fields(batch, ref_logp=batch["ref_logp"] - 5.0 * truncated.unsqueeze(-1))
    assert state_of(algorithm, changed) == state_of(algorithm, batch)


def test_entropy_coefficient_is_between_zero_and_the_maximum():
    algorithm = modified(entropy_bonus, **ENTROPY)
    state, coefficients = algorithm.advantage.init(), []
    for entropy in (0.1, 0.1, 0.1, 1.0, 3.0, 3.0, 3.0, 3.0, 0.1):
        state, batch = compute_advantages(algorithm, state, _with_entropy(algorithm, entropy))
        coefficients.append(float(batch["entropy_coef"].max()))
    assert coefficients == [0.5, 0.75, 0.75, 0.75, 0, 0, 0, 0, 0]
    assert numbers(state) == [0.25], "from 0.75 down to 0, then up by one step"


@pytest.mark.parametrize(("entropy", "coefficient"), [(0.1, 0.5), (3.0, 0.0)])
def test_bonus_of_a_batch_has_its_coefficient(entropy: float, coefficient: float):
    algorithm = modified(entropy_bonus, **ENTROPY)
    bonus = [entropy_bonus.Config(coef=coefficient)] if coefficient else []
    [plain] = with_modifiers(rloo.algorithm(), *bonus).objectives
    batch = with_advantage(algorithm, _with_entropy(algorithm, entropy))
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), loss_of(plain, batch))


def _with_entropy(algorithm: Algorithm, entropy: float) -> TensorDict:
    batch = example(algorithm)
    return with_fields(batch, old_entropy=torch.where(batch["mask"], entropy, torch.nan).to(batch["old_entropy"].dtype))


@pytest.mark.parametrize(("module", "settings"), [(kl_loss, TARGET), (kl_reward, TARGET), (entropy_bonus, ENTROPY)])
def test_adaptive_modifiers_satisfy_the_laws(module, settings):
    exempt = exemptions_of_modifier(module.Config(**settings))
    check_laws(modified(module, grpo, **settings), exempt=exempt)


def test_order_of_an_adaptive_penalty_and_a_reduction_has_no_effect():
    pair = (kl_loss.Config(**TARGET), reduction.Config(by="prompt_mean"))
    first, second = (with_modifiers(grpo.algorithm(), *modifiers) for modifiers in (pair, pair[::-1]))
    batch = example(first)
    torch.testing.assert_close(*(advantage_losses_and_gradients(each, batch) for each in (first, second)))
    assert [term.scales for term in first.objectives[0].terms] == [
        ("prompt_weight",),
        ("kl_loss_coef", "prompt_weight"),
    ]


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (kl_loss, dict(horizon=60.0), "horizon\n  got:  60\n  need: 10000: without a target"),
        (kl_reward, dict(horizon=60.0), "horizon\n"),
        (kl_loss, dict(coef=0.0), "coef\n  got:  0\n  need: a number above 0: without a target"),
        (kl_reward, dict(coef=0.0), "coef\n"),
        (entropy_bonus, dict(coef=0.0), "coef\n"),
        (entropy_bonus, dict(step_size=0.5), "step_size\n"),
        (entropy_bonus, dict(max_coef=0.5), "max_coef\n"),
        (entropy_bonus, dict(coef=2.0, target=0.2), "max_coef\n  got:  1\n  need: at least coef, which is 2"),
    ],
)
def test_setting_without_effect_is_refused(module, settings, message):
    with pytest.raises(ConfigError) as error:
        module.Config(**settings)
    assert str(error.value).startswith(message)


def test_algorithm_with_a_penalty_of_its_own_accepts_a_second_one():
    algorithm = modified(kl_reward, reinforce_plus_plus, **TARGET)
    assert numbers(algorithm.advantage.init()) == [0.1]
