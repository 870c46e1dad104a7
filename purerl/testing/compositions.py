"""Random compositions: an algorithm with a list of modifiers that no file names."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import attrs

from purerl.composition import Composition, build_algorithm
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of, names

__all__ = ["exemptions_of", "exemptions_of_modifier", "random_composition"]

_MAX_MODIFIERS = 4
_ATTEMPTS = 20


def random_composition(name: str, seed: int) -> Composition:
    """The algorithm `name` with one to four modifiers in a random order, with random settings.

    Modifiers that the algorithm refuses are not drawn. The same name and seed always give the same composition.

    >>> composition = random_composition("grpo", seed=0)
    >>> 1 <= len(composition.modifiers) <= 4
    True
    """
    rng = random.Random(f"{name} {seed}")
    composition, wanted = Composition(find("algorithm", name).Config()), rng.randint(1, _MAX_MODIFIERS)
    for kind in rng.sample(names("modifier"), len(names("modifier"))):
        candidate = attrs.evolve(composition, modifiers=(*composition.modifiers, _random_config(kind, rng)))
        if len(candidate.modifiers) <= wanted and _is_valid(candidate):
            composition = candidate
    return composition


def exemptions_of(composition: Composition) -> Mapping[str, str]:
    """The laws that the algorithm or one of its modifiers need not satisfy, each with a reason.

    The exemptions of a modifier may depend on its settings: then its module has a function exemptions(config).
    """
    exempt = dict(getattr(find("algorithm", kind_of(composition.base)), "EXEMPTIONS", {}))
    for modifier in composition.modifiers:
        exempt |= exemptions_of_modifier(modifier)
    return exempt


def exemptions_of_modifier(modifier: Any) -> Mapping[str, str]:
    """The laws that an algorithm with this modifier, a Config, need not satisfy, each with a reason."""
    plugin = find("modifier", kind_of(modifier))
    return plugin.exemptions(modifier) if hasattr(plugin, "exemptions") else getattr(plugin, "EXEMPTIONS", {})


def _is_valid(composition: Composition) -> bool:
    try:
        build_algorithm(composition)
    except ConfigError:
        return False
    return True


def _random_config(kind: str, rng: random.Random) -> Any:
    """The Config of a modifier with a random value of each setting, or with its defaults if few of these are valid."""
    cls = find("modifier", kind).Config
    for _ in range(_ATTEMPTS):
        try:
            return cls(**{field.name: rng.choice(_values(field)) for field in attrs.fields(cls)})
        except ConfigError:
            continue
    return cls()


def _values(field: attrs.Attribute) -> list[Any]:
    """Values to draw from. The default is drawn as often as all others together, because many exclude each other."""
    default = field.default
    if "options" in field.metadata:
        others = [value for value in field.metadata["options"] if value != default]
    elif isinstance(default, bool):
        others = [not default]
    elif isinstance(default, int):
        others = [default + 1]
    elif isinstance(default, float):
        others = [default / 4, 3 * default, default + 0.1, default + 0.9]
    else:
        others = []
    return [*others, *[default] * max(1, len(others))]
