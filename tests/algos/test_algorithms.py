"""Named algorithms: what they are made of, what they are equal to, and that they run in every way they may be run."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import dapo, dpo, dr_grpo, gae, grpo, gspo, kl_cov, ppo, prime, reinforce_plus_plus, rloo, sft, whiten
from purerl.algos.algebra import Algorithm, begin, evaluate, fingerprint, select
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.batch import collate, put
from purerl.errors import ConfigError
from purerl.testing import fields_of
from tests.algos.running import LAYOUT, MODULES, NAMES, PAIRS, TOKENS, example, learned, loss_of, with_advantage


def same(one: Algorithm, other: Algorithm, layout=LAYOUT) -> None:
    for seed in range(5):
        batch = example(one, layout, seed)
        torch.testing.assert_close(learned(one, batch), learned(other, batch))


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


def right_and_wrong(reward: list[float], **fields) -> TensorDict:
    """Rows of one group, of two action tokens each; the outcome on the last."""
    rows = [dict(tokens=[0] * 3, action=[0, 1, 1], row=k, group=7, reward=[0, 0, r]) for k, r in enumerate(reward)]
    return put(collate(rows), **{name: torch.tensor(value) for name, value in fields.items()})


@pytest.mark.parametrize(
    ("module", "right", "wrong"),
    [(grpo, 1.5, -0.5), (dapo, 1.5, -0.5), (gspo, 1.5, -0.5), (dr_grpo, 0.75, -0.25), (rloo, 1.0, -1 / 3)],
)
def test_advantages_of_one_right_answer_in_four(module, right, wrong):
    found = with_advantage(module.algorithm(), right_and_wrong([1.0, 0.0, 0.0, 0.0]))["advantage"]
    expected = torch.tensor([right] + [wrong] * 3)[:, None] * torch.tensor([0.0, 1.0, 1.0])
    torch.testing.assert_close(found, expected, atol=4e-6, rtol=0)


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


def test_dpo_by_hand():
    # D = (-1 - 1) - (-2 - 3) = 3 against a reference of 0
    batch = right_and_wrong([0.0, 0.0], chosen=[True, False])
    logp = torch.tensor([[0.0, -1.0, -1.0], [0.0, -2.0, -3.0]])
    batch = put(batch, logp=logp, ref_logp=torch.zeros_like(logp))
    [objective] = dpo.algorithm(dpo.Config(beta=0.5)).objectives
    step, counts = begin(objective, batch)
    loss, metrics = evaluate(objective, step, counts)
    torch.testing.assert_close(loss, torch.tensor(math.log(1 + math.exp(-1.5))))
    means = {name: float(metric.total / metric.weight) for name, metric in metrics.items()}
    assert (means["accuracy"], means["margin"]) == (1.0, 1.5)


def test_dpo_leaves_out_a_row_without_partner():
    algorithm = dpo.algorithm()
    batch = put(example(algorithm), chosen=torch.tensor([True, False] * 3))
    [objective] = algorithm.objectives
    step, counts = begin(objective, batch)
    assert step["mask"].any(-1).tolist() == [True, True, False, False, True, True]
    assert int(counts["preference"].rows) == 4
    whole = evaluate(objective, step, counts)[0]
    torch.testing.assert_close(whole, loss_of(objective, batch[torch.tensor([0, 1, 4, 5])]))


def test_dpo_leaves_out_a_group_that_is_no_pair():
    algorithm = dpo.algorithm()
    batch = put(example(algorithm, PAIRS[:2]), chosen=torch.tensor([True, True]))
    assert float(loss_of(algorithm.objectives[0], batch)) == 0.0


def test_sft_is_the_mean_of_all_tokens():
    batch = example(sft.algorithm())
    expected = -batch["logp"][batch["mask"]].mean()
    torch.testing.assert_close(loss_of(sft.algorithm().objectives[0], batch), expected)


@pytest.mark.parametrize("module", [dapo, prime])
def test_groups_that_vary_are_kept(module):
    batch = right_and_wrong([1.0, 0.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    batch = put(batch, group=torch.tensor([5, 5, 8, 8, 2, 2, 2]))
    assert select(module.algorithm(), batch).tolist() == [True] * 2 + [False] * 5


def test_kl_cov_penalises_what_it_chose_over_the_whole_step():
    algorithm = kl_cov.algorithm(kl_cov.Config(top_fraction=0.3, penalty_coef=2.0))
    batch = with_advantage(algorithm, example(algorithm))
    step, counts = begin(algorithm.objectives[0], batch)
    chosen, mask = step["penalised"], batch["mask"]
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


def test_metrics_of_a_policy():
    batch = right_and_wrong([1.0, 0.0])
    logp = torch.tensor([[0.0, 1.5, 1.0], [0.0, 1.5, 1.0]]).log().clamp(min=-1)
    batch = put(batch, logp=logp, old_logp=torch.zeros_like(logp), entropy=torch.full_like(logp, 2.0))
    algorithm = grpo.algorithm()
    batch = with_advantage(algorithm, batch)
    step, counts = begin(algorithm.objectives[0], batch)
    metrics = evaluate(algorithm.objectives[0], step, counts)[1]
    means = {name: round(float(metric.total / metric.weight), 4) for name, metric in metrics.items()}
    k3 = 1.5 - math.log(1.5) - 1
    assert means["ratio"] == 1.25
    assert means["clip_fraction"] == 0.25
    assert means["entropy"] == 2.0
    assert means["kl"] == round(k3 / 2, 4)


# --- equal to each other -----------------------------------------------------------------------------------------


def in_the_mean_of_rows(algorithm: Algorithm) -> Algorithm:
    [policy] = algorithm.objectives
    terms = tuple(term._replace(reduce=sequence_mean_of_token_mean) for term in policy.terms)
    return algorithm._replace(objectives=(policy._replace(terms=terms),))


CLIP = dict(clip_low=0.2, clip_high=0.25)


def test_dapo_in_the_mean_of_rows_is_grpo():
    same(in_the_mean_of_rows(dapo.algorithm(dapo.Config(**CLIP))), grpo.algorithm(grpo.Config(**CLIP)))


def test_dr_grpo_with_an_advantage_of_its_own_is_grpo_at_one_token():
    normalised = dr_grpo.algorithm(dr_grpo.Config(**CLIP, norm_length=1))._replace(advantage=grpo.algorithm().advantage)
    same(normalised, grpo.algorithm(grpo.Config(**CLIP)), TOKENS)


def test_gspo_at_one_token_is_grpo():
    same(gspo.algorithm(gspo.Config(**CLIP)), grpo.algorithm(grpo.Config(**CLIP)), TOKENS)


def test_reinforce_plus_plus_is_ppo_without_a_critic():
    one = reinforce_plus_plus.algorithm(reinforce_plus_plus.Config(discount=0.9, kl_reward_coef=0.1))
    other = ppo.algorithm(ppo.Config(discount=0.9, lambda_=1.0, kl_reward_coef=0.1))
    batch = example(other)
    batch = put(batch, old_value=torch.zeros_like(batch["old_value"]))
    torch.testing.assert_close(learned(one, batch), learned(other._replace(objectives=other.objectives[1:]), batch))


def test_on_policy_all_are_reinforce():
    for module in (grpo, dr_grpo, dapo, rloo, gspo, reinforce_plus_plus, kl_cov):
        algorithm = module.algorithm()
        batch = example(algorithm)
        batch = put(batch, old_logp=batch["logp"])
        batch = with_advantage(algorithm, batch)
        [policy] = algorithm.objectives
        step, counts = begin(policy, batch)
        logp = batch["logp"].clone().requires_grad_()
        [found] = torch.autograd.grad(evaluate(policy, put(step, logp=logp), counts)[0], logp)
        loss = policy.terms[0].reduce(-batch["advantage"] * logp, batch["mask"], counts["policy"])
        torch.testing.assert_close(found, torch.autograd.grad(loss, logp)[0])
