"""The modifier `high_entropy_tokens`: chosen tokens by their definition, composition, refusals and laws."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import clip_cov, dapo, dpo, forking_tokens, grpo, gvpo, kl_cov, rloo
from purerl.algos.modifiers import bypass, entropy_bonus, high_entropy_tokens, importance_weight, reduction
from purerl.errors import ConfigError
from purerl.testing import fields_of
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, loss_of, with_advantage

from .laws import check_laws

HALF = high_entropy_tokens.Config(top_fraction=0.5)


def modified(base=grpo, config=HALF):
    return high_entropy_tokens.modify(config, base.algorithm())


def chosen_by_hand(batch: TensorDict, top_fraction: float) -> Tensor:
    """The counted tokens with the largest entropy at the start of the update."""
    entropies = sorted(batch["old_entropy"][batch["mask"]].tolist(), reverse=True)
    threshold = entropies[max(1, math.floor(top_fraction * len(entropies))) - 1]
    return batch["mask"] & (batch["old_entropy"] >= threshold)


@pytest.mark.parametrize("top_fraction", [0.01, 0.2, 0.5])
@pytest.mark.parametrize("base", [grpo, rloo])
def test_loss_and_gradient_equal_their_definition(base, top_fraction):
    algorithm = modified(base, high_entropy_tokens.Config(top_fraction=top_fraction))
    has_gradient = False
    for seed in range(10):
        batch = example(algorithm, seed=seed)
        mask, advantage = batch["mask"], with_advantage(base.algorithm(), batch)["advantage"]
        chosen = chosen_by_hand(batch, top_fraction)

        def loss_by_hand(logp, batch=batch, mask=mask, advantage=advantage, chosen=chosen):
            """Dropped tokens stay in the denominators: the tokens of a row, or the rows."""
            if base is rloo:
                loss = torch.where(chosen, -advantage * logp, 0)
                return torch.stack([loss[i][mask[i]].sum() for i in range(len(mask)) if mask[i].any()]).mean()
            ratio = (logp - batch["old_logp"]).exp()
            loss = torch.where(chosen, torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)), 0)
            return torch.stack([loss[i][mask[i]].mean() for i in range(len(mask)) if mask[i].any()]).mean()

        _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
        torch.testing.assert_close(loss, loss_by_hand(batch["logp"]))
        torch.testing.assert_close(gradient, gradient_of(loss_by_hand, batch["logp"]))
        assert not gradient[~chosen].any()
        has_gradient |= bool(gradient[chosen].any())
    assert has_gradient


def test_entropies_of_the_current_policy_have_no_effect():
    algorithm = modified()
    batch = example(algorithm)
    assert {"entropy", "old_entropy"} <= {*fields_of(algorithm)}
    actual = advantage_losses_and_gradients(algorithm, batch.replace(entropy=-batch["entropy"]))
    torch.testing.assert_close(actual, advantage_losses_and_gradients(algorithm, batch), rtol=0, atol=0)


# --- composition -------------------------------------------------------------------------------------------------


def test_dapo_with_this_modifier_is_forking_tokens():
    assert modified(dapo, high_entropy_tokens.Config()) == forking_tokens.algorithm()


def test_the_tokens_that_another_function_prepares_are_kept():
    """KL-Cov still penalizes its tokens, also those that have no policy loss."""
    setting = kl_cov.Config(top_fraction=0.3, penalty_coef=2.0)
    algorithm = high_entropy_tokens.modify(HALF, kl_cov.algorithm(setting))
    batch = with_advantage(algorithm, example(algorithm))
    mask, chosen = batch["mask"], chosen_by_hand(batch, 0.5)
    policy = torch.where(chosen, -batch["advantage"] * (batch["logp"] - batch["old_logp"]).exp(), 0)[mask].mean()
    plain = kl_cov.algorithm(setting).objectives[0]
    penalty = loss_of(plain._replace(terms=plain.terms[1:]), batch)
    assert penalty > 0
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), policy + penalty)


def test_the_order_with_a_reduction_and_a_weight_does_not_matter():
    others = [(reduction, reduction.Config(by="token_sum")), (importance_weight, importance_weight.Config())]
    for module, config in others:
        first = high_entropy_tokens.modify(HALF, module.modify(config, grpo.algorithm()))
        second = module.modify(config, modified())
        batch = example(first)
        torch.testing.assert_close(*(advantage_losses_and_gradients(a, batch) for a in (first, second)))


@pytest.mark.parametrize("is_last", [True, False])
def test_tokens_are_chosen_before_and_after_bypass(is_last):
    plain = bypass.modify(bypass.Config(), grpo.algorithm())
    algorithm = bypass.modify(bypass.Config(), modified()) if is_last else high_entropy_tokens.modify(HALF, plain)
    batch = example(algorithm)
    gradient, expected = (advantage_losses_and_gradients(a, batch)[2] for a in (algorithm, plain))
    torch.testing.assert_close(gradient, torch.where(chosen_by_hand(batch, 0.5), expected, 0))


def test_an_entropy_bonus_covers_all_tokens():
    bonus = entropy_bonus.Config(coef=0.5, reduction="token_mean")
    algorithm = entropy_bonus.modify(bonus, modified())
    batch = with_advantage(algorithm, example(algorithm))
    added = loss_of(algorithm.objectives[0], batch) - loss_of(modified().objectives[0], batch)
    torch.testing.assert_close(added, -0.5 * batch["entropy"][batch["mask"]].mean())


# --- refusals and laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "got"),
    [
        (dpo, "the loss preference"),
        (clip_cov, "an algorithm that drops tokens"),
        (forking_tokens, "an algorithm that drops tokens"),
        (gvpo, "a loss that is defined for whole groups"),
    ],
)
def test_an_algorithm_without_an_effect_is_refused(base, got):
    with pytest.raises(ConfigError, match=f"has no effect\n  got:  {got}"):
        modified(base)


@pytest.mark.parametrize(
    ("value", "need"), [(1, "a number below 1"), (0, "a number above 0"), (1.5, "a number above 0 and at most 1")]
)
def test_a_fraction_of_all_tokens_or_none_is_refused(value, need):
    with pytest.raises(ConfigError, match=f"top_fraction\n  got:  .*\n  need: {need}"):
        high_entropy_tokens.Config(top_fraction=value)


@pytest.mark.parametrize("base", [grpo, rloo, kl_cov])
def test_laws(base):
    # Without the ratio of a sequence, the gradient is the derivative of the loss.
    exempt = {*high_entropy_tokens.EXEMPTIONS} - {"gradient_matches_finite_differences"}
    check_laws(modified(base), exempt=exempt)
