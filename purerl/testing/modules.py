"""The laws, for a module: its `Config` as it is, with everything switched on that is off, and its exemptions."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import attrs

from purerl.algos.algebra import Algorithm
from purerl.testing.laws import LAWS, check_algorithm, counterexample

__all__ = ["check_exemptions", "check_module", "exemptions", "variants"]


def variants(module: ModuleType) -> dict[str, Algorithm]:
    """The algorithms of `module` by what is set: by default, and with each coefficient at 0.1 that is 0 by default."""
    off = [field.name for field in attrs.fields(module.Config) if type(field.default) is float and field.default == 0]
    configs = {"default": module.Config(), **{f"{name}=0.1": module.Config(**{name: 0.1}) for name in off}}
    return {name: module.algorithm(config) for name, config in configs.items()}


def exemptions(module: ModuleType) -> Mapping[str, str]:
    """The laws that `module` says it cannot satisfy, with its reasons."""
    return getattr(module, "EXEMPTIONS", {})


def check_exemptions(module: ModuleType, *, seed: int = 0, batches: int = 50) -> None:
    """Raise AssertionError for an exemption that no variant of `module` needs on any of so many batches."""
    laws = {law.__name__: law for law in LAWS}
    for name in exemptions(module):
        tried = (counterexample(laws[name], one, seed=seed, batches=batches) for one in variants(module).values())
        assert any(broken is not None for broken in tried), f"{module.__name__} is exempt from {name}, and satisfies it"


def check_module(module: ModuleType, *, seed: int = 0, batches: int = 20) -> None:
    """`check_algorithm` for every variant of `module`, less its exemptions, and `check_exemptions`."""
    for name, algorithm in variants(module).items():
        try:
            check_algorithm(algorithm, seed=seed, batches=batches, exempt=exemptions(module))
        except AssertionError as error:
            error.add_note(f"algorithm = {module.__name__}, {name}")
            raise
    check_exemptions(module, seed=seed)
