"""Presets of verl against verl's own functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.config.presets import presets

from .agreement import assert_agree, stated
from .compositions import Result, algorithm_of, completions, result_of

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: nox -s oracle")
actor = pytest.importorskip("verl.workers.config.actor", reason="verl is not installed: nox -s oracle")

SEEDS = range(25)
ACTOR = {"strategy": "fsdp", "rollout_n": 1, "ppo_mini_batch_size": 1, "ppo_micro_batch_size_per_gpu": 1}


class Case(NamedTuple):
    """verl's advantage, its loss, settings that differ from verl's defaults, and a change of the batch."""

    advantage: Callable
    loss: Callable = core_algos.compute_policy_loss_vanilla
    settings: Mapping[str, Any] = MappingProxyType({})
    change: Callable[[TensorDict], TensorDict] = TensorDict.clone


def _in_bypass_mode(batch: TensorDict) -> TensorDict:
    """The rollout policy is the old policy, as with verl's bypass_mode. Probabilities are at most 1."""
    rollout = batch["rollout_logp"].clamp(max=-1e-3)
    return with_fields(batch, rollout_logp=rollout, old_logp=rollout, logp=batch["logp"].clamp(max=-1e-3))


def _with_equal_order(batch: TensorDict) -> TensorDict:
    """Current covariances are 0.8 times the old ones: verl chooses tokens by the first, purerl by the second."""
    return with_fields(batch, logp=0.8 * batch["old_logp"])


def _in_pairs(batch: TensorDict) -> TensorDict:
    """Each row twice, with other values: no token is at a position that only one row of its group reaches."""
    flipped = {name: batch[name].flip(0) for name in ("old_logp", "logp", "ref_logp", "sum_pi_squared")}
    reward = at_last_action(batch["reward"].sum(-1).flip(0), batch["action"])
    other = with_fields(batch, row=batch["row"] + len(batch), reward=reward, **flipped)
    return TensorDict(torch.cat([batch, other]))


_PASS_K = partial(core_algos.compute_grpo_passk_outcome_advantage, config={"norm_adv_by_std_in_grpo": False})
_GRPO = core_algos.compute_grpo_outcome_advantage


def _gdpo(token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, components: Tensor) -> Any:
    """verl's GDPO. It reads the rewards of a row from a batch, at the last token; the batch has no prompts."""
    keys, last = ["first", "second"], response_mask.sum(-1).long()
    attention = torch.arange(response_mask.shape[1]) <= last.unsqueeze(-1)
    return core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards,
        response_mask,
        index,
        config={"gdpo_reward_keys": keys},
        non_tensor_batch=dict(zip(keys, components.T.double().numpy(), strict=True)),
        batch={"prompts": torch.zeros(len(index), 0), "attention_mask": attention},
    )


CASES: dict[str, Case] = {
    "ppo": Case(core_algos.compute_gae_advantage_return),
    "grpo": Case(_GRPO),
    "dr_grpo": Case(partial(_GRPO, norm_adv_by_std_in_grpo=False)),
    "rloo": Case(core_algos.compute_rloo_outcome_advantage),
    "remax": Case(core_algos.compute_remax_outcome_advantage),
    "opo": Case(core_algos.compute_opo_outcome_advantage),
    "otb": Case(core_algos.compute_optimal_token_baseline_advantage, change=_in_pairs),
    "pass_k_leave_one_out": Case(_PASS_K),
    "gdpo": Case(_gdpo),
    "reinforce_plus_plus": Case(core_algos.compute_reinforce_plus_plus_outcome_advantage),
    "reinforce_plus_plus_baseline": Case(core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage),
    "gspo": Case(_GRPO, core_algos.compute_policy_loss_gspo),
    "sapo": Case(_GRPO, core_algos.compute_policy_loss_sapo),
    "cispo": Case(_GRPO, core_algos.compute_policy_loss_cispo),
    "gmpo": Case(_GRPO, core_algos.compute_policy_loss_geo_mean),
    "kl_cov": Case(_GRPO, core_algos.compute_policy_loss_kl_cov, change=_with_equal_order),
    "dppo": Case(_GRPO, core_algos.compute_policy_loss_dppo_tv, change=_in_bypass_mode),
    "dppo_kl": Case(_GRPO, core_algos.compute_policy_loss_dppo_kl, change=_in_bypass_mode),
    "dro": Case(_GRPO, core_algos.compute_policy_loss_dro, {"policy_loss": actor.PolicyLossConfig(dro_beta=0.05)}),
    "dapo": Case(_GRPO, settings={"clip_ratio_high": 0.28, "clip_ratio_c": 10.0}),
}


def _advantage_and_returns(batch: TensorDict, estimator: Callable) -> tuple[Tensor, Tensor]:
    inputs = {
        "token_level_rewards": batch["reward"].clone(),
        "response_mask": batch["mask"].double(),
        "index": batch["group"].numpy().astype(object),
        "values": batch["old_value"],
        "reward_baselines": batch["greedy_score"],
        "old_log_probs": batch["old_logp"],
        "sum_pi_squared": batch["sum_pi_squared"],
        "components": batch["components"],
        "gamma": 1.0,
        "lam": 1.0,
        "config": SimpleNamespace(gamma=1.0),
    }
    names = inspect.signature(estimator).parameters
    preset = estimator.keywords if isinstance(estimator, partial) else {}
    return estimator(**{name: value for name, value in inputs.items() if name in names and name not in preset})


def _verl(batch: TensorDict, case: Case) -> Result:
    mask = batch["mask"].double()
    advantage, _ = _advantage_and_returns(batch, case.advantage)
    logp = batch["logp"].clone().requires_grad_()
    config = actor.ActorConfig(**ACTOR, **case.settings)
    # As in verl's trainer: the mode is that of the configuration, and not the default of the function.
    value, _ = case.loss(batch["old_logp"], logp, advantage, mask, loss_agg_mode=config.loss_agg_mode, config=config)
    [gradient] = torch.autograd.grad(value, logp)
    return Result(advantage * mask, value.detach(), gradient)


def _verl_critic(batch: TensorDict, estimator: Callable) -> Result:
    mask = batch["mask"].double()
    _, returns = _advantage_and_returns(batch, estimator)
    value = batch["value"].clone().requires_grad_()
    loss, _ = core_algos.compute_value_loss(value, returns, batch["old_value"], mask, cliprange_value=0.5)
    [gradient] = torch.autograd.grad(loss, value)
    return Result(returns * mask, loss.detach(), gradient)


# preset -> the largest relative difference, and its cause
_WHITENING = {"rtol": 1e-6, "cause": stated("verl", "1e-8 to the variance of the whitening")}
_TOKENS = {"rtol": 1e-6, "cause": stated("verl", "1e-8 to the number of tokens of a row")}
DIFFERENCES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"), _WHITENING),
    **dict.fromkeys(("sapo", "gmpo"), _TOKENS),
    "gdpo": {"rtol": 1e-5, "cause": stated("verl", "normalizes each reward in float32")},
    "otb": {"rtol": 1e-6, "cause": stated("verl", "W / (W + 1e-8)")},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_preset_has_the_value_and_gradient_of_verl(name: str, seed: int) -> None:
    batch = CASES[name].change(completions(seed))
    ours = result_of(algorithm_of(f"{name}@verl"), batch)
    assert_agree("verl", ours, _verl(batch, CASES[name]), **DIFFERENCES.get(name, {}))


@pytest.mark.parametrize("seed", SEEDS)
def test_critic_has_the_value_and_gradient_of_verl(seed: int) -> None:
    batch = completions(seed)
    ours = result_of(algorithm_of("ppo@verl"), batch, "critic")
    assert_agree("verl", ours, _verl_critic(batch, CASES["ppo"].advantage))


def test_groups_of_one_row_keep_their_score() -> None:
    batch = completions(0, samples=1)
    scaled = {"rtol": 1e-5, "cause": stated("verl", "a group of one row by 1 + 1e-6")}
    for name, difference in (("grpo", scaled), ("sapo", scaled), ("cispo", scaled), ("rloo", {})):
        assert_agree("verl", result_of(algorithm_of(f"{name}@verl"), batch), _verl(batch, CASES[name]), **difference)


def test_every_executed_preset_of_verl_is_compared() -> None:
    assert {p.name for p in presets().values() if p.library == "verl"} == {f"{name}@verl" for name in CASES}
