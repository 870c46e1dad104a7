"""Every float setting of every public function of `purerl.algos` may be a number or a 0-d tensor, in any mixture."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from purerl.algos.estimators.components import component_normalized_advantage, weighted_sum
from purerl.algos.parts.distillation import topk_jsd
from purerl.algos.parts.pair_losses import exo_pair
from tests.algos.helpers import f64
from tests.algos.public_functions import FUNCTIONS, arguments, is_differentiated, results_of

SETTINGS = {
    name: [key for key, value in arguments(name).items() if isinstance(value, float)]
    for name in FUNCTIONS
    if name not in ("parts.elementwise.log", "parts.elementwise.log1p")  # their argument is the setting of another
}

BOUND = "the value changes where the bound passes a token, and is constant between"
STEPS = {
    "diagnostics.clip_fraction": (("clip_low", "clip_high"), BOUND),
    "parts.corrections.banded_ratio": (("min_ratio", "max_ratio"), BOUND),
    "parts.surrogates.clip_high_indicator": (("clip_high",), BOUND),
    "parts.surrogates.clip_indicator": (("clip_low", "clip_high"), BOUND),
    "parts.surrogates.clip_low_indicator": (("clip_low",), BOUND),
    "parts.weights.asymmetric_weight": (("clip_low", "clip_high"), BOUND),
    "parts.weights.complement_weight": (("clip_low", "clip_high"), BOUND),
    "parts.weights.divergence_banded_weight": (("divergence_low", "divergence_high"), BOUND),
    "parts.weights.divergence_masked_weight": (("divergence_low", "divergence_high"), BOUND),
    "parts.weights.double_sided_weight": (("clip_low", "clip_high"), BOUND),
    "parts.weights.unbounded_positive_weight": (("clip_low", "ratio_cap"), BOUND),
}
"""Settings without a gradient, and the reason."""


def _subsets(keys: list[str]) -> list[tuple[str, ...]]:
    """Each key alone, all but each, and all."""
    alone, others = [(key,) for key in keys], [tuple(k for k in keys if k != key) for key in keys]
    return list(dict.fromkeys(subset for subset in chain(alone, others, [tuple(keys)]) if subset))


@pytest.mark.parametrize("name", [name for name, keys in SETTINGS.items() if keys])
def test_numbers_and_tensors_may_be_mixed_also_under_vmap(name):
    given, keys = arguments(name), SETTINGS[name]
    expected = results_of(name, given)
    for subset in _subsets(keys):
        tensors = [f64(given[key]) for key in subset]

        def function(*values: Tensor, subset: tuple[str, ...] = subset) -> tuple[Tensor, ...]:
            return results_of(name, given | dict(zip(subset, (v.squeeze() for v in values), strict=True)))

        torch.testing.assert_close(function(*tensors), expected, rtol=1e-12, atol=1e-12, equal_nan=True)
        mapped = [result[1] for result in vmap(function)(*(tensor.expand(2, 1) for tensor in tensors))]
        torch.testing.assert_close(tuple(mapped), expected, rtol=1e-12, atol=1e-12, equal_nan=True)


CASES = [(name, key) for name, keys in SETTINGS.items() for key in keys]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_gradient_by_one_setting_is_the_derivative_also_under_vmap(name, key):
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(y for y in results_of(name, given | {key: x.squeeze()}) if y.is_floating_point())

    given = arguments(name)
    if not function(f64(given[key])):
        return  # a mask
    has_gradient = key not in STEPS.get(name, ((),))[0]
    assert is_differentiated(function, f64(given[key])) == has_gradient
    if has_gradient:
        assert is_differentiated(lambda x: vmap(function)(x.expand(2, 1)), f64(given[key]))


def test_list_has_only_settings_that_exist():
    assert {(name, key) for name, (keys, _) in STEPS.items() for key in keys} <= set(CASES)


def test_weights_of_components_may_be_tensors():
    components, group, counted = f64([1, 4], [0, 9], [2, 3]), torch.tensor([7, 7, 7]), torch.ones(3) > 0

    def sums(weight: Tensor) -> tuple[Tensor, ...]:
        normalized = component_normalized_advantage(components, group, counted, weights=(weight.squeeze(), 2.0))
        return weighted_sum(components, weights=(0.5, weight.squeeze())), normalized

    assert sums(f64(3))[0].tolist() == [12.5, 27.0, 10.0]
    assert is_differentiated(sums, f64(3))
    assert vmap(sums)(f64([3], [1]))[0].tolist() == [[12.5, 27.0, 10.0], [4.5, 9.0, 4.0]]


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_settings_at_their_bounds_are_alike_as_numbers_and_as_tensors(beta: float) -> None:
    draw = torch.Generator().manual_seed(0)
    policy, teacher = torch.randn(2, 3, 4, 8, generator=draw, dtype=torch.float64).log_softmax(-1)[..., :5]
    setting = torch.tensor(beta, dtype=torch.float64)
    torch.testing.assert_close(topk_jsd(policy, teacher, beta=beta), topk_jsd(policy, teacher, beta=setting))
    assert topk_jsd(policy, teacher, beta=beta).abs().max() == 0
    chosen, rejected = policy[0, :, 0], teacher[0, :, 0]
    actual, expected = (exo_pair(chosen, rejected, beta=0.1, smoothing=s) for s in (beta, setting))
    torch.testing.assert_close(actual, expected)
