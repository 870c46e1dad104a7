"""Named algorithms: as data, and what they are made of."""

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
    rloo,
    sft,
    whiten,
)
from purerl.algos.algebra import begin, evaluate, fingerprint, select
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import fields_of
from tests.algos.running import (
    MODULES,
    NAMES,
    PAIRS,
    example,
    loss_of,
    right_and_wrong,
    with_advantage,
)

# --- as data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_an_algorithm_is_compared_by_value(module):
    one, other = module.algorithm(module.Config()), module.algorithm()
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one


def test_an_int_is_the_float_that_it_stands_for():
    one, other = grpo.algorithm(grpo.Config(clip_high=1)), grpo.algorithm(grpo.Config(clip_high=1.0))
    assert fingerprint(one) == fingerprint(other)


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
        (rloo, dict(entropy_coef=math.inf)),
        (icepop, dict(min_ratio=5.0, max_ratio=0.5)),
        (clip_cov, dict(cov_low=5.0, cov_high=1.0)),
        (opd_top_k, dict(reverse_coef=0.0)),
    ],
)
def test_a_setting_out_of_bounds_is_refused(module, setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        module.Config(**setting)


def test_what_is_refused_is_told_what_is_needed():
    with pytest.raises(ConfigError) as refused:
        kl_cov.Config(top_fraction=2)
    assert str(refused.value) == (
        "top_fraction\n  got:  2.0\n  need: a number above 0 and at most 1\n  do:   leave it out for 0.002"
    )


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_the_reference_is_read_only_where_it_weighs(module):
    coefficients = [name for name in ("kl_loss_coef", "kl_reward_coef") if hasattr(module.Config(), name)]
    for value in (0.0, 0.1) if coefficients else ():
        algorithm = module.algorithm(module.Config(**dict.fromkeys(coefficients, value)))
        assert ("ref_logp" in fields_of(algorithm)) == (value > 0)


# --- by hand -----------------------------------------------------------------------------------------------------


def test_ppo_by_its_parts():
    config = ppo.Config(kl_reward_coef=0.5, discount=0.9, lambda_=0.8)
    algorithm = ppo.algorithm(config)
    batch = example(algorithm)
    action = batch["action"] & batch["mask"].any(-1, keepdim=True)
    reward = torch.where(batch["attention_mask"] & action.any(-1, keepdim=True), batch["reward"], 0)
    reward = reward - torch.where(action, 0.5 * (batch["old_logp"] - batch["ref_logp"]), 0)
    advantage = gae(reward, batch["old_value"], action, discount=0.9, lambda_=0.8)
    found = with_advantage(algorithm, batch)
    torch.testing.assert_close(found["advantage"], whiten(advantage, batch["mask"]))
    returns = torch.where(batch["mask"], advantage + batch["old_value"], 0)
    torch.testing.assert_close(found["returns"], returns)


def test_ppo_updates_the_critic_first():
    assert [objective.role for objective in ppo.algorithm().objectives] == ["critic", "policy"]


def test_dpo_leaves_out_a_row_without_partner():
    algorithm = dpo.algorithm()
    batch = with_fields(example(algorithm), chosen=torch.tensor([True, False] * 3))
    [objective] = algorithm.objectives
    step, counts = begin(objective, batch)
    assert step["mask"].any(-1).tolist() == [True, True, False, False, True, True]
    assert int(counts["preference"].rows) == 4
    whole = evaluate(objective, step, counts)[0]
    torch.testing.assert_close(whole, loss_of(objective, batch[torch.tensor([0, 1, 4, 5])]))


def test_dpo_leaves_out_a_group_that_is_no_pair():
    algorithm = dpo.algorithm()
    batch = with_fields(example(algorithm, PAIRS[:2]), chosen=torch.tensor([True, True]))
    assert float(loss_of(algorithm.objectives[0], batch)) == 0.0


def test_sft_is_the_mean_of_all_tokens():
    batch = example(sft.algorithm())
    expected = -batch["logp"][batch["mask"]].mean()
    torch.testing.assert_close(loss_of(sft.algorithm().objectives[0], batch), expected)


@pytest.mark.parametrize("module", [dapo, prime])
def test_groups_with_variance_are_kept(module):
    batch = right_and_wrong([1.0, 0.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    batch = with_fields(batch, group=torch.tensor([5, 5, 8, 8, 2, 2, 2]))
    assert select(module.algorithm(), batch).tolist() == [True] * 2 + [False] * 5


def test_kl_cov_penalizes_what_it_chose_over_the_whole_step():
    algorithm = kl_cov.algorithm(kl_cov.Config(top_fraction=0.3, penalty_coef=2.0))
    batch = with_advantage(algorithm, example(algorithm))
    step, counts = begin(algorithm.objectives[0], batch)
    chosen, mask = step["penalized"], batch["mask"]
    assert int(chosen.sum()) == int(0.3 * int(mask.sum()))
    moved = batch["logp"] - batch["old_logp"]
    loss = -batch["advantage"] * moved.exp() + 2.0 * torch.where(chosen, moved.abs(), 0)
    torch.testing.assert_close(evaluate(algorithm.objectives[0], step, counts)[0], loss[mask].sum() / mask.sum())


def test_a_bonus_and_a_divergence_are_reduced_like_the_surrogate():
    algorithm = dr_grpo.algorithm(dr_grpo.Config(norm_length=10, kl_loss_coef=0.5, entropy_coef=0.25))
    batch = with_advantage(algorithm, example(algorithm))
    bare = dr_grpo.algorithm(dr_grpo.Config(norm_length=10))
    mask, rows = batch["mask"], batch["mask"].any(-1).sum()
    x = (batch["logp"] - batch["ref_logp"])[mask]
    more = 0.5 * ((-x).exp() + x - 1).sum() - 0.25 * batch["entropy"][mask].sum()
    found = loss_of(algorithm.objectives[0], batch) - loss_of(bare.objectives[0], batch)
    torch.testing.assert_close(found, more / (rows * 10))


def test_gradients_are_compiled_too():
    algorithm = dr_grpo.algorithm(dr_grpo.Config(kl_loss_coef=0.1))
    batch = with_advantage(algorithm, example(algorithm))

    def loss(logp: torch.Tensor) -> torch.Tensor:
        return loss_of(algorithm.objectives[0], with_fields(batch, logp=logp))

    logp = batch["logp"].clone().requires_grad_()
    [found] = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(logp), logp)
    torch.testing.assert_close(found, torch.func.grad(loss)(batch["logp"]))
