"""Test every algorithm of the package, with each optional term enabled in turn, with every law.

``PURERL_PROFILE=thorough`` generates many more batches. A note of the error has the code that makes the failing batch.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType, SimpleNamespace

import jaxtyping
import pytest
import torch
from hypothesis_checks import check_law, marks_of
from shape_checks import shape_checks_disabled
from tensordict import TensorDict

import purerl.algos
from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.surrogates import token_ratio
from purerl.errors import ConfigError
from purerl.testing import LAWS, Law, check_exemptions, check_module, exemptions, variants


def _modules() -> list[ModuleType]:
    names = [f"purerl.algos.{info.name}" for info in pkgutil.iter_modules(purerl.algos.__path__)]
    modules = [importlib.import_module(name) for name in names]
    return [module for module in modules if hasattr(module, "Config") and hasattr(module, "algorithm")]


MODULES = {module.__name__.removeprefix("purerl.algos."): module for module in _modules()}
MATRIX = [
    pytest.param(law, algorithm, id=f"{name}-{variant}-{law.__name__}", marks=marks_of(law))
    for name, module in MODULES.items()
    for variant, algorithm in variants(module).items()
    for law in LAWS
    if law.__name__ not in exemptions(module)
]


@pytest.mark.parametrize(("law", "algorithm"), MATRIX)
def test_algorithm_satisfies_law(law: Law, algorithm: Algorithm):
    check_law(law, algorithm)


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_exemptions_are_needed(module: ModuleType):
    with shape_checks_disabled():  # the laws check the shapes of the same algorithms
        check_exemptions(module)


@pytest.mark.parametrize(
    ("exemption", "error", "message"),
    [
        (
            {"group_label_invariance": "a reason"},
            AssertionError,
            "exempt from group_label_invariance, but satisfies it",
        ),
        ({"group_label_invariance": ""}, AssertionError, "exempt from group_label_invariance without a reason"),
        ({"group_label_invarance": "a reason"}, ConfigError, "did you mean 'group_label_invariance'"),
    ],
)
def test_invalid_exemption_is_refused(exemption, error, message):
    module = SimpleNamespace(__name__="m", Config=grpo.Config, algorithm=grpo.algorithm, EXEMPTIONS=exemption)
    with pytest.raises(error, match=message):
        check_exemptions(module, batches=3)


def test_check_module_adds_the_batch_and_the_algorithm_to_the_error():
    broken = SimpleNamespace(
        __name__="broken", Config=grpo.Config, algorithm=lambda config: grpo.algorithm(config)._replace(reads=())
    )
    with pytest.raises(AssertionError, match=r"^reads_are_declared: KeyError: .*reward") as caught:
        check_module(broken)
    batch, algorithm = caught.value.__notes__
    assert batch.startswith("batch = example_batch(('old_logp', 'logp', 'entropy'), ((")
    assert algorithm == "algorithm = variants(broken)['default']"


def test_shapes_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        token_ratio(torch.zeros(2, 3), torch.zeros(3, 2))


def _first_ratio(batch: TensorDict) -> torch.Tensor:
    """A loss that torch can compute, although the arguments of `token_ratio` have different shapes."""
    return -batch["advantage"] * token_ratio(batch["logp"], batch["old_logp"][:, :1])


@pytest.mark.parametrize("name", ["no_hidden_state", "vmap_equals_loop", "padding_invariance", "metrics_merge"])
def test_laws_check_shapes(name: str):
    [law] = (law for law in LAWS if law.__name__ == name)
    [policy] = grpo.algorithm().objectives
    term = policy.terms[0]._replace(loss=_first_ratio)
    with pytest.raises(AssertionError, match=rf"^{name}: TypeCheckError: .*token_ratio"):
        check_law(law, grpo.algorithm()._replace(objectives=(policy._replace(terms=(term,)),)))
