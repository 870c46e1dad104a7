"""The modifier `off_policy_mask`: masked rows by their definition, refusals and laws."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import deepseek_v3_2, dr_grpo, grpo, ppo, rloo, sft
from purerl.algos.algebra import Algorithm, Objective, Term, identity, read_field
from purerl.algos.modifiers import bypass, importance_weight, kl_loss, off_policy_mask
from purerl.algos.parts.reductions import token_mean
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, loss_of, with_advantage

from .laws import check_laws


def modified(base=grpo, **settings):
    return off_policy_mask.modify(off_policy_mask.Config(**settings), base.algorithm())


def masked_by_hand(batch: TensorDict, advantage: Tensor, delta: float) -> Tensor:
    """The tokens without policy loss, row by row."""
    masked = torch.zeros_like(batch["mask"])
    for i, counted in enumerate(batch["mask"]):
        distance = (batch["rollout_logp"] - batch["logp"])[i][counted].mean() if counted.any() else 0.0
        masked[i] = (advantage[i] < 0) & bool(distance > delta)
    return masked


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("base", [grpo, rloo])
def test_loss_and_gradient_equal_their_definition(base, delta):
    algorithm = modified(base, delta=delta)
    number_masked = 0
    for seed in range(6):
        batch = example(algorithm, seed=seed)
        mask, advantage = batch["mask"], with_advantage(base.algorithm(), batch)["advantage"]
        masked = masked_by_hand(batch, advantage, delta)
        number_masked += int((masked & mask).sum())

        def loss_by_hand(logp, batch=batch, mask=mask, advantage=advantage, masked=masked):
            if base is rloo:
                loss = -advantage * logp
                rows = [torch.where(masked, 0, loss)[i][mask[i]].sum() for i in range(len(mask)) if mask[i].any()]
                return torch.stack(rows).mean()
            ratio = (logp - batch["old_logp"]).exp()
            loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
            rows = [torch.where(masked, 0, loss)[i][mask[i]].mean() for i in range(len(mask)) if mask[i].any()]
            return torch.stack(rows).mean()

        _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
        torch.testing.assert_close(loss, loss_by_hand(batch["logp"]))
        torch.testing.assert_close(gradient, gradient_of(loss_by_hand, batch["logp"]))
    assert number_masked


def test_other_terms_of_a_masked_row_remain():
    penalty = kl_loss.Config(coef=0.5)
    with_penalty = kl_loss.modify(penalty, modified(delta=0.0))
    batch = with_advantage(with_penalty, example(with_penalty))
    terms = with_penalty.objectives[0].terms
    [plain] = kl_loss.modify(penalty, grpo.algorithm()).objectives
    assert terms[1] == plain.terms[1]
    added = loss_of(with_penalty.objectives[0], batch) - loss_of(modified(delta=0.0).objectives[0], batch)
    expected = loss_of(plain, batch) - loss_of(grpo.algorithm().objectives[0], batch)
    torch.testing.assert_close(added, expected)


# --- composition -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [(bypass, bypass.Config()), (importance_weight, importance_weight.Config())], ids=["bypass", "weight"]
)
def test_the_order_of_mask_and_bypass_or_weight_does_not_matter(other):
    module, config = other
    mask = off_policy_mask.Config(delta=0.0)
    first = off_policy_mask.modify(mask, module.modify(config, grpo.algorithm()))
    second = module.modify(config, off_policy_mask.modify(mask, grpo.algorithm()))
    batch = example(first)
    results = [advantage_losses_and_gradients(algorithm, batch) for algorithm in (first, second)]
    torch.testing.assert_close(*results)


def test_dr_grpo_with_its_modifiers_is_deepseek_v3_2():
    """With the mean over tokens and rows, which is the only other difference."""
    algorithm = bypass.modify(bypass.Config(), modified(dr_grpo, delta=0.05))
    expected = deepseek_v3_2.algorithm(deepseek_v3_2.Config(delta=0.05))
    [policy] = algorithm.objectives
    reduce = expected.objectives[0].terms[0].reduce
    algorithm = algorithm._replace(objectives=(policy._replace(terms=(policy.terms[0]._replace(reduce=reduce),)),))
    assert algorithm == expected


# --- refusals and laws -------------------------------------------------------------------------------------------


def test_an_algorithm_with_this_mask_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm with an off-policy mask"):
        modified(deepseek_v3_2)


def test_an_algorithm_without_a_policy_gradient_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  the loss nll"):
        modified(sft)


def test_a_policy_loss_without_an_advantage_is_refused():
    policy = Objective("policy", (), ("logp",), (Term("policy", read_field("logp"), token_mean),))
    with pytest.raises(ConfigError, match="has no effect\n  got:  a policy loss without an advantage"):
        off_policy_mask.modify(off_policy_mask.Config(), Algorithm((), identity, (policy,)))


def test_delta_is_not_negative():
    with pytest.raises(ConfigError, match="delta\n  got:  -0.1"):
        off_policy_mask.Config(delta=-0.1)


@pytest.mark.parametrize("base", [grpo, rloo, ppo])
def test_laws(base):
    exempt = {*getattr(base, "EXEMPTIONS", {}), *off_policy_mask.EXEMPTIONS}
    check_laws(modified(base, delta=0.0), exempt=exempt)
