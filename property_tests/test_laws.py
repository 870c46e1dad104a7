"""Every algorithm of the package, with every optional term switched on, times every law.

``PURERL_PROFILE=thorough`` draws many more batches. One that fails is printed as a layout and a seed, which
`purerl.testing.example_batch` makes into the same batch again.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType, SimpleNamespace

import jaxtyping
import pytest
import torch
from drawing import hold

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
    pytest.param(law, algorithm, id=f"{name}-{variant}-{law.__name__}")
    for name, module in MODULES.items()
    for variant, algorithm in variants(module).items()
    for law in LAWS
    if law.__name__ not in exemptions(module)
]


@pytest.mark.parametrize(("law", "algorithm"), MATRIX)
def test_law_holds(law: Law, algorithm: Algorithm):
    hold(law, algorithm)


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_exemptions_are_needed(module: ModuleType):
    check_exemptions(module)


@pytest.mark.parametrize(
    ("exemption", "error", "says"),
    [
        (
            {"group_label_invariance": "they are not"},
            AssertionError,
            "exempt from group_label_invariance, and satisfies it",
        ),
        ({"group_label_invariance": ""}, AssertionError, "exempt from group_label_invariance without a reason"),
        ({"labels_are_nmes": "they are not"}, ConfigError, "did you mean 'group_label_invariance'"),
    ],
)
def test_an_exemption_is_refused(exemption, error, says):
    module = SimpleNamespace(__name__="m", Config=grpo.Config, algorithm=grpo.algorithm, EXEMPTIONS=exemption)
    with pytest.raises(error, match=says):
        check_exemptions(module, batches=3)


def test_a_module_that_breaks_a_law_is_told_how():
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
