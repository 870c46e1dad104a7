"""Functions from rewards [rows, time] to advantages [rows, time], as each library calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.batch import Batch, Function, Row, Settings, row
from benchmarks.peers.libraries import core_algos, experience, torchrl_values, verl_torch
from purerl.algos.estimators.components import component_normalized_advantage
from purerl.algos.estimators.group_relative import (
    gpg_advantage,
    group_centered_advantage,
    group_normalized_advantage,
    leave_one_out_advantage,
    length_weighted_advantage,
)
from purerl.algos.estimators.optimal_baseline import optimal_token_advantage
from purerl.algos.estimators.pass_k import leave_one_out_max_advantage
from purerl.algos.estimators.returns import discounted_returns, gae
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.whiten import whiten
from purerl.kernels.masks import any_true, count_true

__all__ = ["GROUPS", "RECURRENCES"]

GAMMA, LAMBDA = 0.99, 0.95


def verl(name: str, *fields: str, **options: Any) -> tuple[Any, Function]:
    """verl's function `compute_<name>`, with `fields` of the batch as positional arguments."""

    def call(batch: Batch) -> Tensor:
        function = getattr(core_algos, f"compute_{name}")
        return function(*(getattr(batch, field) for field in fields), **options)[0]

    return core_algos, call


# --- over time ---------------------------------------------------------------------------------------------------


def _gae(b: Batch) -> Tensor:
    return gae(b.reward, b.value, b.action, discount=GAMMA, lambda_=LAMBDA)


def _returns(b: Batch) -> Tensor:
    return discounted_returns(b.reward, b.action, discount=GAMMA)


def _remax(b: Batch) -> Tensor:
    returns = discounted_returns(b.reward, b.action, discount=1.0)
    return torch.where(b.action, returns - b.baseline.unsqueeze(-1), 0)


def _torchrl_gae(name: str) -> tuple[Any, Function]:
    def call(b: Batch) -> Tensor:
        e = b.episode
        function = getattr(torchrl_values, name)
        return function(GAMMA, LAMBDA, e.value, e.following, e.reward, e.done, e.done)[0].squeeze(-1)

    return torchrl_values, call


def _torchrl_returns(b: Batch) -> Tensor:
    return torchrl_values.reward2go(b.episode.reward, b.episode.done, gamma=GAMMA).squeeze(-1)


def _openrlhf_gae(b: Batch) -> Tensor:
    """A method that does not use its object."""
    owner = next(kind for kind in vars(experience).values() if hasattr(kind, "get_advantages_and_returns"))
    return owner.get_advantages_and_returns(None, b.value, b.reward, b.mask, GAMMA, LAMBDA)[0]


def _verl_whiten(b: Batch) -> Tensor:
    return verl_torch.masked_whiten(b.advantage, b.mask)


GAE_PEERS = {
    "torchrl": _torchrl_gae("generalized_advantage_estimate"),
    "torchrl vec": _torchrl_gae("vec_generalized_advantage_estimate"),
    "openrlhf": (experience, _openrlhf_gae),
}
VERL_GAE = verl("gae_advantage_return", "reward", "value", "mask", gamma=GAMMA, lam=LAMBDA)
VERL_PLUS = verl("reinforce_plus_plus_outcome_advantage", "reward", "mask", config=Settings(gamma=GAMMA))

RECURRENCES: list[Row] = [
    row("gae", _gae, 3, others=GAE_PEERS, verl_target=10, other_target=3),
    row("gae, whitened", lambda b: whiten(_gae(b), b.action), 3, others={"verl": VERL_GAE}, verl_target=10),
    row("discounted returns", _returns, 2, others={"torchrl": (torchrl_values, _torchrl_returns)}, other_target=3),
    row("reinforce++", lambda b: whiten(_returns(b), b.action), 2, others={"verl": VERL_PLUS}, verl_target=10),
    row("remax", _remax, 2, others={"verl": verl("remax_outcome_advantage", "reward", "baseline", "mask")}),
    row("whitening", lambda b: whiten(b.advantage, b.action), 2, others={"verl": (verl_torch, _verl_whiten)}),
]

# --- over groups -------------------------------------------------------------------------------------------------


def _outcome(estimator: Callable) -> Function:
    return lambda b: broadcast_to_tokens(estimator(b.reward.sum(-1), b.group, any_true(b.action)), b.action)


def _opo(b: Batch) -> Tensor:
    length = count_true(b.action).to(b.reward.dtype)
    return broadcast_to_tokens(
        length_weighted_advantage(b.reward.sum(-1), length, b.group, any_true(b.action)), b.action
    )


def _gdpo(b: Batch) -> Tensor:
    components = b.reward.sum(-1).unsqueeze(-1)
    return whiten(
        broadcast_to_tokens(
            component_normalized_advantage(components, b.group, any_true(b.action), weights=()), b.action
        ),
        b.action,
    )


def _otb(b: Batch) -> Tensor:
    returns = discounted_returns(b.reward, b.action, discount=1.0)
    return optimal_token_advantage(returns, b.old_logp, b.sum_pi_squared, b.action, b.action, b.group)


def _group(name: str, purerl: Function, verl_name: str, vectorized: str | None = None, **options: Any) -> Row:
    fields = ("reward", "mask", "uid")
    others = {"verl": verl(f"{verl_name}_outcome_advantage", *fields, **options)}
    if vectorized:
        others["verl vec"] = verl(f"{vectorized}_outcome_advantage", *fields, **options)
    return row(name, purerl, 2, others=others, grouped=True, verl_target=10)


NO_STD = dict(norm_adv_by_std_in_grpo=False)
VERL_OTB = verl("optimal_token_baseline_advantage", "reward", "mask", "uid", "old_logp", "sum_pi_squared")

GROUPS: list[Row] = [
    _group("grpo", _outcome(group_normalized_advantage), "grpo", "grpo_vectorized"),
    _group("grpo without std", _outcome(group_centered_advantage), "grpo", "grpo_vectorized", **NO_STD),
    _group("rloo", _outcome(leave_one_out_advantage), "rloo", "rloo_vectorized"),
    _group("opo", _opo, "opo"),
    _group("gpg", _outcome(gpg_advantage), "gpg"),
    _group("pass@k, leave one out", _outcome(leave_one_out_max_advantage), "grpo_passk", config=Settings(NO_STD)),
    _group("gdpo", _gdpo, "gdpo"),
    row("optimal token baseline", _otb, 4, others={"verl": VERL_OTB}, grouped=True),
]
