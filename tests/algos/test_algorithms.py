"""Named algorithms: comparison, settings and composition."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from purerl.algos import (
    clip_cov,
    dapo,
    dpo,
    dr_grpo,
    gae,
    grpo,
    icepop,
    kl_cov,
    opd_top_k,
    ppo,
    prime,
    sft,
    whiten,
)
from purerl.algos.algebra import compute_loss, fingerprint, prepare_step, select_rows
from purerl.algos.modifiers import entropy_bonus, kl_loss, kl_reward
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.errors import ConfigError
from purerl.testing import fields_of
from tests.algos.helpers import (
    MODULES,
    NAMES,
    PAIRS,
    example,
    group_with_rewards,
    loss_of,
    with_advantage,
)

# --- comparison and settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_algorithm_is_compared_by_value(module):
    explicit, default = module.algorithm(module.Config()), module.algorithm()
    assert explicit == default
    assert hash(explicit) == hash(default)
    assert pickle.loads(pickle.dumps(explicit)) == explicit


def test_integer_and_float_settings_have_the_same_fingerprint():
    from_int, from_float = grpo.algorithm(grpo.Config(clip_high=1)), grpo.algorithm(grpo.Config(clip_high=1.0))
    assert fingerprint(from_int) == fingerprint(from_float)


@pytest.mark.parametrize(
    ("module", "setting"),
    [
        (grpo, dict(clip_low=-0.1)),
        (grpo, dict(clip_low=1.1)),
        (dapo, dict(clip_high=math.nan)),
        (dr_grpo, dict(norm_length=0)),
        (ppo, dict(lambda_=1.5)),
        (ppo, dict(discount="0.9")),
        (ppo, dict(value_clip=True)),
        (kl_cov, dict(top_fraction=0.0)),
        (dpo, dict(beta=None)),
        (entropy_bonus, dict(coef=math.inf)),
        (icepop, dict(min_ratio=5.0, max_ratio=0.5)),
        (clip_cov, dict(cov_low=5.0, cov_high=1.0)),
        (opd_top_k, dict(reverse_coef=0.0)),
    ],
)
def test_setting_out_of_bounds_is_refused(module, setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        module.Config(**setting)


def test_error_message_of_a_setting_out_of_bounds():
    with pytest.raises(ConfigError) as refused:
        kl_cov.Config(top_fraction=2)
    assert str(refused.value) == (
        "top_fraction\n  got:  2.0\n  need: a number above 0 and at most 1\n  do:   remove it to use the default, 0.002"
    )


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_reference_is_read_only_if_its_coefficient_is_not_zero(module):
    coefficients = [name for name in ("kl_loss", "kl_reward") if hasattr(module.Config(), name)]
    for value in (0.0, 0.1) if coefficients else ():
        algorithm = module.algorithm(module.Config(**dict.fromkeys(coefficients, value)))
        assert ("ref_logp" in fields_of(algorithm)) == (value > 0)


@pytest.mark.parametrize("modifier", [kl_loss, kl_reward])
def test_reference_is_read_only_with_a_kl_penalty(modifier):
    without = [module.algorithm() for module in MODULES if "ref_logp" not in fields_of(module.algorithm())]
    penalized = [with_modifiers(algorithm, modifier.Config()) for algorithm in without if accepts(modifier, algorithm)]
    assert len(penalized) > 30
    assert all("ref_logp" in fields_of(algorithm) for algorithm in penalized)


def accepts(modifier, algorithm) -> bool:
    try:
        with_modifiers(algorithm, modifier.Config())
    except ConfigError:
        return False
    return True


# --- composition -------------------------------------------------------------------------------------------------


def test_ppo_equals_its_definition():
    algorithm = with_modifiers(ppo.algorithm(ppo.Config(discount=0.9, lambda_=0.8)), kl_reward.Config(coef=0.5))
    batch = example(algorithm)
    action = batch["action"] & batch["mask"].any(-1, keepdim=True)
    reward = torch.where(batch["attention_mask"] & action.any(-1, keepdim=True), batch["reward"], 0)
    reward = reward - torch.where(action, 0.5 * (batch["old_logp"] - batch["ref_logp"]), 0)
    advantage = gae(reward, batch["old_value"], action, discount=0.9, lambda_=0.8)
    after = with_advantage(algorithm, batch)
    torch.testing.assert_close(after["advantage"], whiten(advantage, batch["mask"]))
    returns = torch.where(batch["mask"], advantage + batch["old_value"], 0)
    torch.testing.assert_close(after["returns"], returns)


def test_ppo_updates_the_critic_first():
    assert [objective.role for objective in ppo.algorithm().objectives] == ["critic", "policy"]


def test_dpo_masks_out_rows_without_a_partner():
    algorithm = dpo.algorithm()
    batch = with_fields(example(algorithm), chosen=torch.tensor([True, False] * 3))
    [objective] = algorithm.objectives
    step, counts = prepare_step(objective, batch)
    assert step["mask"].any(-1).tolist() == [True, True, False, False, True, True]
    assert int(counts["preference"].rows) == 4
    loss = compute_loss(objective, step, counts)[0]
    torch.testing.assert_close(loss, loss_of(objective, batch[torch.tensor([0, 1, 4, 5])]))


def test_dpo_loss_of_a_group_that_is_not_a_pair_is_zero():
    algorithm = dpo.algorithm()
    batch = with_fields(example(algorithm, PAIRS[:2]), chosen=torch.tensor([True, True]))
    assert float(loss_of(algorithm.objectives[0], batch)) == 0.0


def test_sft_loss_is_the_mean_over_all_counted_tokens():
    batch = example(sft.algorithm())
    expected = -batch["logp"][batch["mask"]].mean()
    torch.testing.assert_close(loss_of(sft.algorithm().objectives[0], batch), expected)


@pytest.mark.parametrize("module", [dapo, prime])
def test_only_groups_with_variance_are_selected(module):
    batch = group_with_rewards([1.0, 0.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    batch = with_fields(batch, group=torch.tensor([5, 5, 8, 8, 2, 2, 2]))
    assert select_rows(module.algorithm(), batch).tolist() == [True] * 2 + [False] * 5


def test_kl_cov_penalizes_tokens_selected_over_the_whole_step():
    algorithm = kl_cov.algorithm(kl_cov.Config(top_fraction=0.3, penalty_coef=2.0))
    batch = with_advantage(algorithm, example(algorithm))
    step, counts = prepare_step(algorithm.objectives[0], batch)
    selected, mask = step["penalized"], batch["mask"]
    assert int(selected.sum()) == int(0.3 * int(mask.sum()))
    log_ratio = batch["logp"] - batch["old_logp"]
    loss = -batch["advantage"] * log_ratio.exp() + 2.0 * torch.where(selected, log_ratio.abs(), 0)
    torch.testing.assert_close(compute_loss(algorithm.objectives[0], step, counts)[0], loss[mask].sum() / mask.sum())


def test_entropy_bonus_and_kl_term_use_the_reduction_of_the_surrogate():
    bare = dr_grpo.algorithm(dr_grpo.Config(norm_length=10))
    algorithm = with_modifiers(bare, kl_loss.Config(coef=0.5), entropy_bonus.Config(coef=0.25))
    batch = with_advantage(algorithm, example(algorithm))
    mask, rows = batch["mask"], batch["mask"].any(-1).sum()
    x = (batch["logp"] - batch["ref_logp"])[mask]
    added = 0.5 * ((-x).exp() + x - 1).sum() - 0.25 * batch["entropy"][mask].sum()
    actual = loss_of(algorithm.objectives[0], batch) - loss_of(bare.objectives[0], batch)
    torch.testing.assert_close(actual, added / (rows * 10))


@pytest.mark.slow
def test_compiled_gradients_equal_eager_gradients():
    algorithm = with_modifiers(dr_grpo.algorithm(), kl_loss.Config(coef=0.1))
    batch = with_advantage(algorithm, example(algorithm))

    def loss(logp: torch.Tensor) -> torch.Tensor:
        return loss_of(algorithm.objectives[0], with_fields(batch, logp=logp))

    logp = batch["logp"].clone().requires_grad_()
    [actual] = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(logp), logp)
    torch.testing.assert_close(actual, torch.func.grad(loss)(batch["logp"]))
