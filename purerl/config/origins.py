"""The origin of each value of a configuration, and values that give way to what the user has set.

The origin of a value is the command line (``--set``), a file, a preset such as ``grpo@trl``, the recipe, or the default
of its class. A user is responsible for the command line, and for a file that is used alone.

A value of another origin that has lost its effect because of the command line gives way: it returns to its default,
which changes nothing in the run, and a note says so. If it had no effect before, or if the user has set it, it is an
error. The message of every other error says whose value it is about, unless it is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from attrs import frozen

from purerl.config.keys import is_plugin
from purerl.config.listing import NO_PRESET
from purerl.config.overrides import parse, read_value
from purerl.config.presets import expand, presets
from purerl.config.tables import flat, write
from purerl.errors import ConfigError
from purerl.settings import NoEffectError

__all__ = ["Origins", "give_way", "named_by", "preset_values"]

T = TypeVar("T")
Key = tuple[str, ...]


@frozen
class Origins:
    """The values of a configuration that the command line did not set, and who did.

    named   the keys that the command line sets
    values  values by dotted key: those of `owner`, and those of presets
    owner   who has set them, in words: "the recipe chat"
    preset  the values that a preset sets, by dotted key, and its name
    """

    named: Collection[Key]
    values: Mapping[str, Any]
    owner: str
    preset: tuple[Mapping[str, Any], str] = NO_PRESET

    def is_named(self, key: str) -> bool:
        """Whether the command line sets `key`, something in it, or a section that contains it."""
        parts = tuple(parse(f"{key}=")[0])
        return any(parts[: len(each)] == each or each[: len(parts)] == parts for each in self.named)

    def has(self, key: str) -> bool:
        """Whether `key` is a value, or a section with a value, that the command line did not set."""
        return not self.is_named(key) and any(f"{known}.".startswith(f"{key}.") for known in self._all)

    def describe(self, key: str) -> str:
        """The value at `key` and its origin, in words."""
        values, name = self.preset
        owner = f"the preset {name}" if key in values else self.owner
        return f"{key} = {write(self._all[key])} of {owner}" if key in self._all else f"{key} of {owner}"

    @property
    def _all(self) -> Mapping[str, Any]:
        return {**self.values, **self.preset[0]}


def named_by(cls: type, settings: Iterable[str]) -> set[Key]:
    """The keys of `settings` of `cls`, strings ``key=value``; for a table the keys of what is in it.

    >>> from purerl.sampling import Sampling
    >>> sorted(named_by(Sampling, ["top_k=1", "regex={a = 1, b = {c = 2}}"]))
    [('regex', 'a'), ('regex', 'b', 'c'), ('top_k',)]
    """
    found = set[Key]()
    for setting in settings:
        key, text = parse(setting)
        value = read_value(text)
        kind = ("kind",) if isinstance(value, str) and is_plugin(cls, key) else ()
        found |= {*_keys_below((*key, *kind), value)}
    return found


def _keys_below(key: Key, value: Any) -> Iterator[Key]:
    if not isinstance(value, Mapping) or not value:
        yield key
        return
    for name, part in value.items():
        yield from _keys_below((*key, name), part)


def preset_values(kind: Any) -> tuple[Mapping[str, Any], str]:
    """The values that the preset `kind` sets for the algorithm, by dotted key, and its name; empty if it is none."""
    if kind not in presets():
        return NO_PRESET
    table = {key: value for key, value in expand({"kind": kind}).items() if key != "kind"}
    return flat({"algorithm": table}), kind


def give_way(
    make: Callable[[Sequence[str]], T], origins: Origins, without_settings: Callable[[], object]
) -> tuple[T, list[str]]:
    """The result of `make`, and a note for each value that gave way.

    make              makes and checks a configuration with further settings, ``key=``, which return values to defaults
    without_settings  makes and checks the configuration that `origins` are of, without the command line

    Raises: ConfigError of `make`. If it is about a value of another origin, the message says so.
    """
    notes: dict[str, str] = {}
    useless = cache(lambda: _keys_without_effect(without_settings))
    while True:
        try:
            return make([f"{key}=" for key in notes]), [*notes.values()]
        except ConfigError as error:
            candidates = (each for each in error.parts or (error,) if isinstance(each, NoEffectError))
            yielding = [each for each in candidates if each.key not in notes and origins.has(each.key)]
            yielding = [each for each in yielding if each.key not in useless()]
            if not yielding:
                raise _with_origin(error, origins) from error
            notes |= {each.key: _note(each, origins) for each in yielding}


def _keys_without_effect(make: Callable[[], object]) -> set[str]:
    try:
        make()
    except ConfigError as error:
        return {each.key for each in error.parts or (error,) if isinstance(each, NoEffectError)}
    return set()


def _note(error: NoEffectError, origins: Origins) -> str:
    need = next((line.split(":", 1)[1].strip() for line in str(error).splitlines() if line.startswith("  need:")), "")
    reason = f"; it needs {need}" if need else ""
    return f"left out, because it has no effect with your settings: {origins.describe(error.key)}{reason}"


def _with_origin(error: ConfigError, origins: Origins) -> ConfigError:
    """`error` with a line that says whose value it is about, if it is about one that the command line did not set."""
    key = str(error).partition("\n")[0].partition(" ")[0].rstrip(":")
    if error.parts or not origins.has(key):
        return error
    return ConfigError(f"{error}\n  from: {origins.describe(key)}")
