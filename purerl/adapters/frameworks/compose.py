"""An algorithm with modifiers for a framework, given by names, tables or Configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purerl.anatomy import AlgorithmSection
from purerl.composition import Composition, to_composition
from purerl.config.structure import from_dict

__all__ = ["compose"]


def compose(algorithm: Any, modifiers: Sequence[Any] = ()) -> Composition:
    """Return the composition of `algorithm`, and of `modifiers` after those that it already has.

    An algorithm is a name, a preset such as ``grpo@trl``, a table like the section ``[algorithm]`` of a configuration,
    its Config, or a composition. A modifier is a name, a table with its `kind`, or its Config.

    Raises: ConfigError for unknown names and settings.

    >>> str(compose({"kind": "grpo", "clip_high": 0.28}, ["dual_clip", {"kind": "kl_loss", "coef": 0.01}]))
    'grpo + dual_clip + kl_loss'
    """
    composition = _read(algorithm) if isinstance(algorithm, str | Mapping) else to_composition(algorithm)
    added = [_modifier(modifier) if isinstance(modifier, str | Mapping) else modifier for modifier in modifiers]
    return Composition(composition.base, (*composition.modifiers, *added))


def _read(algorithm: str | Mapping[str, Any]) -> Composition:
    return from_dict(AlgorithmSection, {"algorithm": algorithm}).algorithm


def _modifier(modifier: str | Mapping[str, Any]) -> Any:
    """The Config of one modifier. The algorithm beside it has no effect on how it is read."""
    [config] = _read({"kind": "grpo", "modifiers": [modifier]}).modifiers
    return config
