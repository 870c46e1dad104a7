"""The gradient of every public function is the derivative, by gradcheck in float64, unless it is stopped by design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.autograd import gradcheck

from purerl.algos import grpo, ppo
from purerl.algos.algebra import Counts, compute_advantages, compute_loss, prepare_step
from purerl.algos.diagnostics import gradient_cosine, objective_gradient, row_gradient_norms
from purerl.algos.parts.episodes import join_episodes, split_episodes
from purerl.algos.parts.policy import clip_surrogate_of, reference_regression_of, token_level_ratio
from purerl.algos.parts.zeros import zero_outside, zero_outside_actions
from purerl.batch import with_fields
from purerl.testing import example_batch
from tests.algos.public_functions import (
    BATCH_FUNCTIONS,
    FUNCTIONS,
    arguments,
    floats_of,
    is_differentiated,
    results_of,
)

WEIGHT = "the detached weight of a policy gradient, or a part of one, is a choice between constants"
INDICATOR = "it counts: the value is 0 or 1, and constant between the bounds"
ROW_RATIO = "the gradient of a token goes to its own logp, so that losses of other tokens do not add up at it"
BY_SIGN = "only the sign of an advantage is used"
STOPPED = {
    "dft.probability_weighted_nll": (("logp",), "the probability is a detached weight of the likelihood"),
    "diagnostics.clip_fraction": (("ratio", "advantage"), INDICATOR),
    "estimators.group_relative.best_of_group_advantage": (("score",), "the weight is that of a selected row"),
    "estimators.group_relative.win_rate_advantage": (("score",), "it counts wins"),
    "estimators.ranking.ranked_advantage": (("ranking",), "only the order of the ranking matters"),
    "estimators.ranking.win_rate": (("ranking",), "it counts wins"),
    "estimators.trackers.sum_by_entry": (("table",), "only its shape and dtype are read"),
    "estimators.pass_k.pass_k_advantage": (("score",), "it counts correct rows"),
    "flowrl.clipped_row_weight": (("logp",), WEIGHT),
    "modifiers.rank_matching.rank_matched_margin": (("policy",), "only the order of the policy's log-ratios matters"),
    "parts.distillation.teacher_advantage": (("teacher_logp", "logp"), "an advantage has no gradient"),
    "parts.divergences.on_policy_k3": (("logp",), "the ratio is 1, and its gradient is that of logp"),
    "parts.divergences.straight_through": (("value", "gradient"), "the value of one, and the gradient of the other"),
    "parts.divergences.weighted_k2": (("logp", "old_logp"), "the ratio is a detached weight"),
    "parts.divergences.weighted_k3": (("logp", "old_logp"), "the ratio is a detached weight"),
    "parts.elementwise.alike": (("other",), "only its number of axes is read"),
    "parts.elementwise.narrowed": (("x",), "only its dtype is read"),
    "parts.resampling.best_weight": (("score",), INDICATOR),
    "parts.resampling.extreme_weight": (("score",), INDICATOR),
    "parts.resampling.resample": (("weight", "noise"), "it counts draws"),
    "parts.surrogates.clip_high_indicator": (("ratio", "advantage"), INDICATOR),
    "parts.surrogates.clip_indicator": (("ratio", "advantage"), INDICATOR),
    "parts.surrogates.clip_low_indicator": (("ratio", "advantage"), INDICATOR),
    "parts.surrogates.geometric_mean_ratio": (("advantage",), BY_SIGN),
    "parts.surrogates.sequence_product_ratio": (("logp", "old_logp"), ROW_RATIO),
    "parts.surrogates.sequence_ratio": (("logp", "old_logp"), ROW_RATIO),
    "parts.weights.asymmetric_weight": (("advantage",), BY_SIGN),
    "parts.weights.complement_weight": (("advantage",), BY_SIGN),
    "parts.weights.divergence_masked_weight": (("advantage",), BY_SIGN),
    "parts.weights.gamma_weight": (("advantage",), BY_SIGN),
    "parts.weights.gradient_preserving_weight": (("advantage",), BY_SIGN),
    "parts.weights.tapered_weight": (("advantage",), BY_SIGN),
    "parts.weights.unbounded_positive_weight": (("advantage",), BY_SIGN),
}
"""Arguments that get no gradient, or not the derivative of the value, and the reason."""


def _results(name: str, given: dict[str, Any], key: str) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The results that are floats, as a function of the argument `key`."""
    return lambda x: tuple(y for y in results_of(name, given | {key: x}) if y.is_floating_point())


def _cases() -> list:
    cases = []
    for name in FUNCTIONS:
        given = arguments(name)
        if any(y.is_floating_point() for y in results_of(name, given)):
            cases += [pytest.param(name, key, id=f"{name}-{key}") for key in floats_of(given)]
    return cases


@pytest.mark.parametrize(("name", "key"), _cases())
def test_gradient_is_the_derivative_unless_it_is_stopped_by_design(name, key):
    given = arguments(name)
    is_stopped = key in STOPPED.get(name, ((),))[0]
    assert is_differentiated(_results(name, given, key), given[key]) != is_stopped


def test_list_has_only_arguments_that_exist_each_with_a_reason():
    for name, (keys, reason) in STOPPED.items():
        assert set(keys) <= set(floats_of(arguments(name)))
        assert reason


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal_values_have_a_finite_gradient(name):
    """A standard deviation of 0 must not give NaN: all values of an argument are the same in turn."""
    given = arguments(name)
    for key in floats_of(given):
        x = torch.full_like(given[key], given[key].flatten()[0].item()).requires_grad_()
        found = [y[y.isfinite()].sum() for y in _results(name, given, key)(x) if y.requires_grad]
        for gradient in torch.autograd.grad(found, x) if found else ():
            assert gradient.isfinite().all(), key


# --- functions of batches ----------------------------------------------------------------------------------------

LAYOUT = ((3, "..aax"), (3, ".aa"), (-1, ".a.aa"))
PPO = ppo.algorithm()
POLICY = grpo.algorithm().objectives[0]._replace(metric_outputs=(), metrics=lambda batch: {})
FIELDS = ("reward", "logp", "old_logp", "ref_logp", "rollout_logp", "old_value", "advantage", "returns", "value")


def _batch() -> TensorDict:
    return example_batch(FIELDS, LAYOUT, seed=1)


def _counts(batch: TensorDict) -> dict[str, Counts]:
    return prepare_step(POLICY, batch)[1]


def _forward(parameters: dict[str, Tensor], batch: TensorDict) -> dict[str, Tensor]:
    return {"logp": batch["old_logp"] + parameters["w"] * batch["returns"]}


def _with_episodes(batch: TensorDict) -> TensorDict:
    return with_fields(batch, episode=torch.tensor([4, 4, 9]))


def _through_episodes(batch: TensorDict) -> TensorDict:
    joined, index = join_episodes(_with_episodes(batch), ["reward"], None)
    return split_episodes(batch, joined, with_fields(joined, reward=joined["reward"].square()), index)


BY_BATCH: dict[str, Callable[[TensorDict], Any]] = {
    "algebra.compute_advantages": lambda b: compute_advantages(PPO, PPO.advantage.init(), b)[1],
    "algebra.compute_loss": lambda b: compute_loss(POLICY, b, _counts(b))[0],
    "algebra.prepare_step": lambda b: prepare_step(POLICY, b)[0],
    "diagnostics.gradient_cosine": lambda b: gradient_cosine({"w": b["logp"]}, {"w": b["old_logp"]}),
    "diagnostics.objective_gradient": lambda b: objective_gradient(
        POLICY, _forward, {"w": b["value"][0, 1]}, b.exclude("logp"), _counts(b)
    )["w"],
    "diagnostics.row_gradient_norms": lambda b: row_gradient_norms(
        POLICY, _forward, {"w": b["value"][0, 1]}, b.exclude("logp"), _counts(b)
    ),
    "parts.episodes.join_episodes": lambda b: join_episodes(_with_episodes(b), ["reward", "old_value"], None)[0],
    "parts.episodes.split_episodes": _through_episodes,
    "parts.policy.clip_surrogate_of": lambda b: clip_surrogate_of(
        b, ratio=token_level_ratio, clip_low=0.2, clip_high=0.3
    ),
    "parts.policy.reference_regression_of": lambda b: reference_regression_of(b, beta=0.3),
    "parts.zeros.zero_outside": lambda b: zero_outside(b, b["mask"]),
    "parts.zeros.zero_outside_actions": zero_outside_actions,
}

NOT_OF_FLOATS = {
    "algebra.keep_all": "rows that are kept",
    "algebra.no_metrics": "nothing",
    "algebra.select_rows": "rows that are kept",
    "algebra.unchanged": "the batch itself",
    "parts.episodes.count_rows": "a number of rows",
    "parts.episodes.tokens_of_episodes": "a number of tokens",
    "parts.episodes.write_episode_tokens": "a number of tokens",
    "parts.selection.groups_with_mean_in_range": "rows that are kept",
    "parts.selection.groups_with_variance": "rows that are kept",
    "weighted.merge": "metrics, which have no gradient",
}
"""Functions of batches without a gradient, and what they return."""


def test_every_function_of_a_batch_is_in_a_list():
    assert {*BY_BATCH, *NOT_OF_FLOATS} == BATCH_FUNCTIONS.keys()
    assert not BY_BATCH.keys() & NOT_OF_FLOATS


@pytest.mark.parametrize("name", BY_BATCH)
def test_gradient_of_a_batch_is_the_derivative(name):
    def function(*values: Tensor) -> tuple[Tensor, ...]:
        result = BY_BATCH[name](with_fields(batch, **dict(zip(names, values, strict=True))))
        found: Any = result.values() if isinstance(result, TensorDict) else [result]
        return tuple(y for y in found if y.is_floating_point() and y.requires_grad)

    batch = _batch()
    names = [key for key, value in batch.items() if value.is_floating_point()]
    assert gradcheck(function, tuple(batch[key].clone().requires_grad_() for key in names), fast_mode=True)
