"""The name of the preset that an algorithm equals: a configuration has its settings, and not its name."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from purerl.composition import Composition
from purerl.config.presets import presets
from purerl.config.structure import from_dict
from purerl.plugins import kind_of
from purerl.settings import setting

__all__ = ["name_with_preset", "preset_of"]


@frozen
class _Section:
    algorithm: Any = setting("the algorithm", plugin="algorithm")


def preset_of(algorithm: Composition) -> str | None:
    """The name of the preset that `algorithm` equals, with the modifiers that are added to it; None if there is none.

    Of several equal presets, it has all names. An algorithm with its default settings alone is no preset.

    >>> from purerl.algos import grpo
    >>> preset_of(from_dict(_Section, {"algorithm": {"kind": "grpo@trl", "entropy_bonus": 0.01}}).algorithm)
    'grpo@trl = bnpo@trl + entropy_bonus'
    >>> preset_of(Composition(grpo.Config())) is None
    True
    """
    kind, added = kind_of(algorithm.base), algorithm.modifiers
    if not added and algorithm.base == type(algorithm.base)():
        return None
    equal: dict[str, tuple[Any, ...]] = {}
    for name, preset in presets().items():
        if preset.algorithm["kind"] == kind:
            other = from_dict(_Section, {"algorithm": {"kind": name}}).algorithm
            if other.base == algorithm.base and all(each in added for each in other.modifiers):
                equal[name] = tuple(each for each in added if each not in other.modifiers)
    fewest = min(map(len, equal.values()), default=0)
    names = [name for name, rest in equal.items() if len(rest) == fewest]
    return " + ".join([" = ".join(names), *map(kind_of, equal[names[0]])]) if names else None


def name_with_preset(algorithm: Composition) -> str:
    """`algorithm` as a composition, after the name of its preset, if it has one."""
    preset = preset_of(algorithm)
    return f"{preset} ({algorithm})" if preset else str(algorithm)
