"""Configurations with modifiers, and the errors of settings that change them."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.composition import Composition
from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.recipes.addition import addition


def recipe_with(*modifiers: Any, base: Any = None) -> RunConfig:
    """The default recipe with GRPO, or another algorithm, and these modifiers."""
    return evolve(addition(), algorithm=Composition(base or grpo.Config(), modifiers))


def error_of(*settings: str, start: RunConfig | None = None) -> str:
    """The message of the error of `settings`, applied to `start`."""
    with pytest.raises(ConfigError) as error:
        check(apply(start or addition(), [*settings]))
    return str(error.value)
