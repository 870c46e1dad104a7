"""An algorithm with modifiers for a framework, given by names, tables or Configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import has

from purerl.algos.algebra import Algorithm
from purerl.composition import Composition, build_algorithm, to_composition
from purerl.config.modifiers import split_modifiers
from purerl.config.presets import defaults_of, expand
from purerl.config.structure import from_dict
from purerl.config.tables import with_kind
from purerl.errors import ConfigError
from purerl.explain.algorithm import AlgorithmSection
from purerl.plugins import kind_of

__all__ = ["compose", "require_effect"]

_Defaults = Mapping[str, Mapping[str, Any]]


def compose(algorithm: Any, modifiers: Sequence[Any] = (), defaults: _Defaults = MappingProxyType({})) -> Composition:
    """Return the composition of `algorithm`, and of `modifiers` after those that it already has.

    An algorithm is a name, a preset such as ``grpo@trl``, a table like the section ``[algorithm]`` of a configuration,
    its Config, or a composition. A modifier is a name, a table with its `kind`, or its Config. Settings that the name
    or the table of a modifier does not give are the defaults of the preset, or of a framework without a preset:
    `defaults`, by kind of modifier.

    Raises: ConfigError for unknown names and settings, and for arguments of other types.

    >>> str(compose({"kind": "grpo", "clip_high": 0.28}, ["dual_clip", {"kind": "kl_loss", "coef": 0.01}]))
    'grpo + dual_clip + kl_loss'
    """
    if not (isinstance(algorithm, str | Mapping) or has(type(algorithm))):
        need = "a name, a preset, a table with the settings of [algorithm], a Config or a composition"
        raise ConfigError("algorithm", got=repr(algorithm), need=need)
    if isinstance(modifiers, str | Mapping) or not isinstance(modifiers, Sequence):
        do = f"[{modifiers!r}]" if isinstance(modifiers, str | Mapping) else None
        raise ConfigError("modifiers", got=repr(modifiers), need="a list of modifiers", do=do)
    table = with_kind(algorithm)
    is_table = isinstance(table, Mapping)
    if is_table and "@" in str(table.get("kind")):
        defaults = defaults_of(table["kind"])
    composition = _read(table, defaults) if is_table else to_composition(algorithm)
    added = [_modifier(each, defaults) if isinstance(each, str | Mapping) else each for each in modifiers]
    return Composition(composition.base, (*composition.modifiers, *added))


def require_effect(algorithm: Any, modifiers: Sequence[Any], *, on: str, part: Callable[[Algorithm], Any]) -> None:
    """Check that each setting in the table `algorithm`, and each of `modifiers`, changes `part` of the algorithm.

    For functions that compute only a part of an algorithm. Names, presets, Configs and settings at their defaults are
    taken as they are.

    Raises: ConfigError for a setting without which `part` is the same. `on` says what the part is.
    """
    whole = compose(algorithm, modifiers)
    for name, shorter in _without_each(algorithm, modifiers):
        if shorter != whole and _part_of(shorter, part) == part(build_algorithm(whole)):
            raise ConfigError(name, got=f"no effect on {on}", need="settings with an effect", do="leave it out")


def _without_each(algorithm: Any, modifiers: Sequence[Any]) -> Iterator[tuple[str, Composition]]:
    """The name of each setting and modifier, and the composition without it."""
    settings = dict(algorithm) if isinstance(algorithm, Mapping) else {}
    for key in settings.keys() - {"kind"}:
        yield key, compose({name: value for name, value in settings.items() if name != key}, modifiers)
    for index, kind in enumerate(map(kind_of, compose("grpo", modifiers).modifiers)):
        yield f"modifier {kind!r}", compose(algorithm, [*modifiers[:index], *modifiers[index + 1 :]])


def _part_of(composition: Composition, part: Callable[[Algorithm], Any]) -> Any:
    """`part` of the algorithm; None if there is none, as without a modifier that another one needs."""
    try:
        return part(build_algorithm(composition))
    except ConfigError:
        return None


def _read(table: Mapping[str, Any], defaults: _Defaults) -> Composition:
    if defaults and isinstance(table.get("kind"), str):
        rest, modifiers = split_modifiers(expand(table), defaults)
        table = {**rest, "modifiers": modifiers}
    return from_dict(AlgorithmSection, {"algorithm": table}).algorithm


def _modifier(modifier: str | Mapping[str, Any], defaults: _Defaults) -> Any:
    """The Config of one modifier. The algorithm beside it has no effect on how it is read."""
    [config] = _read({"kind": "grpo", "modifiers": [modifier]}, defaults).modifiers
    return config
