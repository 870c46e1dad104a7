"""The public functions of `purerl.algos` that take tensors, and arguments for each of them.

An argument is built from the annotation of its parameter, and from its name where values of one kind are needed: a
log-probability is negative. A parameter with a name that is not in these tables fails the tests that use them.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

import purerl.algos
from purerl.algos.algebra import Counts
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.actions import action_index
from purerl.algos.parts.divergences import k1
from purerl.algos.parts.pair_losses import sigmoid
from purerl.algos.parts.weights import binary_tv

__all__ = [
    "BATCH_FUNCTIONS",
    "FUNCTIONS",
    "MASKS",
    "PUBLIC",
    "arguments",
    "floats_of",
    "is_differentiated",
    "parameters_of",
    "results_of",
]

FLOATS = {"TokenFloat", "RowFloat", "Scalar", "TopKFloat", "Tensor"}
"""The annotations of tensors of floats."""

MASKS = {"TokenBool", "RowBool"}
"""The annotations of masks."""

_BATCHES = {"TensorDict", "Parameters", "Weighted"}

_TENSORS = FLOATS | MASKS | {"TokenInt", "RowInt", "Count"}

ROWS, TIME = 5, 4


def parameters_of(function: Callable) -> dict[str, set[str]]:
    """The types of each parameter, as they are written."""
    found = inspect.signature(function).parameters.values()
    return {p.name: set() if "Callable" in p.annotation else set(re.findall(r"\w+", p.annotation)) for p in found}


def _functions() -> dict[str, Callable]:
    found = {}
    for info in pkgutil.walk_packages(purerl.algos.__path__, "purerl.algos."):
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name)
            if inspect.isfunction(function) and function.__module__ == info.name:
                found[f"{info.name.removeprefix('purerl.algos.')}.{name}"] = function
    return found


def _with(types: set[str]) -> dict[str, Callable]:
    return {name: f for name, f in PUBLIC.items() if any(found & types for found in parameters_of(f).values())}


PUBLIC = _functions()
"""All public functions, by module and name."""

BATCH_FUNCTIONS = _with(_BATCHES)
"""The functions of batches, of gradients and of metrics. All others build an algorithm, or read one."""

FUNCTIONS = {name: f for name, f in _with(_TENSORS).items() if name not in BATCH_FUNCTIONS}
"""The functions of tensors."""

HYPERPARAMETERS: dict[str, float] = {
    "alpha": 0.7, "beta": 0.3, "buffer": 2.0, "clip_high": 0.3, "clip_low": 0.2, "cov_high": 2.0, "cov_low": -0.5,
    "decay": 0.9, "decay_negative": 2.0, "decay_positive": 3.0, "delta": 0.1, "desirable_weight": 1.0,
    "discount": 0.9, "distillation_coef": 0.7, "divergence_high": 0.2, "divergence_low": 0.1, "eps": 1e-3, "eta": 0.7,
    "factor": 0.5, "fraction": 0.3, "gate_negative": 1.5, "gate_positive": 1.2, "high": 1.0, "high_coef": 0.8,
    "horizon": 100.0, "kl_reward_coef": 0.1, "lambda_": 0.8, "length": 7.0, "log_clip_high": 0.4, "log_clip_low": 0.3,
    "low": -0.5, "low_coef": 0.6, "margin": 0.2, "max_coef": 1.0, "max_length": 3.0, "max_ratio": 1.4,
    "max_scale": 1.2, "min_factor": 0.4, "min_ratio": 0.7, "moment_bound": 0.04, "power": 2.0, "power_negative": 3.0,
    "power_positive": 2.0, "ratio_cap": 2.0, "rho_clip": 1.1, "smoothing": 0.1, "step_size": 0.125, "target": 0.2,
    "target_margin": 0.5, "tau": 0.05, "top_fraction": 0.3, "trace_clip": 1.05, "undesirable_weight": 2.0,
    "value_clip": 0.5, "weight_cap": 3.0, "weight_coef": 0.5, "x": 0.4,
}  # fmt: skip
"""A value of each setting that is a float."""

_OTHERS: dict[str, Any] = {
    "batch": TensorDict({"reward": torch.ones(5, 4)}, batch_size=[5]), "ddof": 1, "divergence": binary_tv,
    "dtype": torch.float64, "estimate": k1, "estimator": group_centered_advantage, "index": None, "k": 2,
    "loss": partial(sigmoid, beta=0.3), "row_tokens": None, "weights": (),
}  # fmt: skip


class _Values:
    """Tensors of one call, from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.action = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]]).bool()
        self.mask = self.action & torch.tensor([1, 1, 1, 0]).bool()

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between .1 and .9."""
        return 0.1 + 0.8 * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def floats(self, name: str, *shape: int) -> Tensor:
        if "topk" in name:
            return self.normal(*shape).log_softmax(-1)[..., 1:]
        if name.endswith("logp"):
            return self.uniform(*shape).log()
        if name in ("p", "rate", "noise", "weight", "sum_pi_squared"):
            return self.uniform(*shape)
        if name in ("ratio", "alpha", "beta", "length", "row_norms", "count", "square", "squares", "coefficient"):
            return 2 * self.uniform(*shape)
        if name == "norm":
            return 4 + self.uniform(*shape)
        return self.normal(*shape)

    def tensor(self, name: str, types: set[str]) -> Tensor:
        [kind] = types & _TENSORS
        if kind in FLOATS:
            shapes = {"Scalar": (), "RowFloat": (ROWS,), "TopKFloat": (ROWS, TIME, 4), "TokenFloat": (ROWS, TIME)}
            others = {"components": (ROWS, 3), "table": (6,), "alpha": (6,), "beta": (6,)}
            return self.floats(name, *(others.get(name, (ROWS, TIME)) if kind == "Tensor" else shapes[kind]))
        return {
            "TokenBool": self.action if name == "action" else self.mask,
            "RowBool": torch.tensor([True, False, True, True, False]) ^ (name == "counted"),
            "RowInt": torch.tensor([5, 1, 5, 0, 1] if name == "key" else [70, -3, 70, 8, -3]),
            "TokenInt": action_index(self.action) if name == "index" else torch.tensor([[0, 1, 1, 2]] * ROWS),
            "Count": torch.tensor(2),
        }[kind]


def arguments(name: str, *, seed: int = 0) -> dict[str, Any]:
    """Arguments of the function `name`: 5 rows of 4 tokens in float64, in three groups, and one row without tokens."""
    values, found = _Values(seed), {}
    for parameter, types in parameters_of(PUBLIC[name]).items():
        if "float" in types and "tuple" not in types:
            found[parameter] = HYPERPARAMETERS[parameter]
        elif types & _TENSORS and "None" not in types:
            found[parameter] = values.tensor(parameter, types)
        elif types == {"Counts"}:
            found[parameter] = Counts(torch.tensor(11), torch.tensor(4))
        else:
            found[parameter] = _OTHERS[parameter]
    return found


def results_of(name: str, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """The results of the function, as a tuple of tensors."""
    result = PUBLIC[name](**given)
    found = result if isinstance(result, tuple) else (result,)
    return tuple(torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64) for value in found)


def floats_of(given: dict[str, Any]) -> list[str]:
    """The names of the arguments that are tensors of floats."""
    return [name for name, value in given.items() if isinstance(value, Tensor) and value.is_floating_point()]


def is_differentiated(function: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> bool:
    """Whether the gradient is the derivative of the value. A value without a gradient is not differentiated."""
    x = x.clone().requires_grad_()
    try:
        return any(y.requires_grad for y in function(x)) and gradcheck(function, (x,))
    except GradcheckError:
        return False
