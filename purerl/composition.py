"""An algorithm with modifiers, as a configuration names it, and as an algorithm is defined by another one.

A module whose algorithm is another one with modifiers has a function `composition` beside its `algorithm`::

    def composition(config: Config) -> Composition:
        return Composition(grpo.Config(clip_high=config.clip_high), (reduction.Config(by="token_mean"),))

    def algorithm(config: Config = Config()) -> Algorithm:
        return build_algorithm(composition(config))

`definition` finds it, and `purerl algo show` and the documentation print it. The algorithms of this package and those
of others do the same.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.plugins import GROUPS, find, kind_of
from purerl.settings import in_section, setting, with_key

if TYPE_CHECKING:
    from purerl.algos.algebra import Algorithm

__all__ = ["Composition", "build_algorithm", "definition", "to_composition", "with_modifiers"]


@frozen
class Composition:
    """The Config of an algorithm, and the Configs of its modifiers, in the order in which they are applied.

    Raises: ConfigError if one of `modifiers` is not the Config of a modifier, or if there are two of a kind.

    >>> from purerl.algos import grpo
    >>> from purerl.algos.modifiers import kl_loss
    >>> str(Composition(grpo.Config(), (kl_loss.Config(coef=0.1),)))
    'grpo + kl_loss'
    """

    base: Any = setting("the algorithm")
    modifiers: tuple[Any, ...] = setting(
        "what changes the algorithm, in this order; `purerl algo modifiers` lists them", default=(), converter=tuple
    )

    def __attrs_post_init__(self) -> None:
        for kind, count in Counter(map(kind_of, self.modifiers)).items():
            with in_section("modifiers", Composition):
                find("modifier", kind)
            if count > 1:
                raise ConfigError("modifiers", got=f"{count} of the kind {kind!r}", need="each kind at most once")

    def __str__(self) -> str:
        return " + ".join(map(kind_of, (self.base, *self.modifiers)))


def to_composition(algorithm: Any) -> Composition:
    """The Config of an algorithm as a composition without modifiers; a composition is returned."""
    return algorithm if isinstance(algorithm, Composition) else Composition(algorithm)


def definition(config: Any) -> Composition | None:
    """The composition that the algorithm with the Config `config` is defined as; None if it is not one.

    >>> from purerl.algos import dapo, grpo
    >>> str(definition(dapo.Config())), definition(grpo.Config())
    ('grpo + reduction + group_filter', None)
    """
    plugin = find("algorithm", kind_of(config))
    return plugin.composition(config) if hasattr(plugin, "composition") else None


def build_algorithm(composition: Composition) -> Algorithm:
    """The algorithm that `composition` describes.

    Raises: ConfigError as `with_modifiers`, and if the module of the algorithm does not return one, or raises.

    >>> from purerl.algos import grpo
    >>> from purerl.algos.modifiers import kl_loss
    >>> composition = Composition(grpo.Config(), (kl_loss.Config(coef=0.1),))
    >>> [term.name for term in build_algorithm(composition).objectives[0].terms]
    ['policy', 'ref_kl']
    """
    kind = kind_of(composition.base)
    return with_modifiers(_made("algorithm", kind, composition.base), *composition.modifiers)


_FIELDS = {
    "Algorithm": ("reads", "advantage", "objectives", "select", "before"),
    "Objective": ("role", "terms", "outputs"),
}


def _made(group: str, kind: str, *arguments: Any) -> Algorithm:
    """The Algorithm that the function of a plugin returns. Raises: ConfigError if it raises, or returns none."""
    function, what = getattr(find(group, kind), GROUPS[group].builder), f"{group} {kind!r}"
    try:
        algorithm = function(*arguments)
    except ConfigError:
        raise
    except Exception as error:
        got, do = f"{type(error).__name__}: {error}", "fix the module; --debug prints the traceback"
        raise ConfigError(f"{what} cannot be built", got=got, need="a module that returns one", do=do) from error
    need = f"an Algorithm from {function.__name__}()"
    if not _has_fields(algorithm, "Algorithm"):
        raise ConfigError(f"invalid {what}", got=f"{algorithm!r:.100}", need=need)
    objectives = (*_parts(algorithm.objectives), *_parts(algorithm.before))
    for part in objectives:
        if not _has_fields(part, "Objective"):
            raise ConfigError(f"invalid {what}", got=f"the objective {part!r:.100}", need="a tuple of Objectives")
    return algorithm


def _has_fields(value: Any, name: str) -> bool:
    """Whether `value` is the NamedTuple called `name`, which is defined in a higher layer."""
    return isinstance(value, tuple) and {*_FIELDS[name]} <= {*getattr(value, "_fields", ())}


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) and not hasattr(value, "_fields") else (value,)


def with_modifiers(algorithm: Algorithm, *modifiers: Any) -> Algorithm:
    """`algorithm`, changed by each of `modifiers`, which are Configs, in their order.

    Raises: ConfigError for a modifier that changes no part of the algorithm. It starts with the kind of the modifier.
    """
    for modifier in modifiers:
        kind = kind_of(modifier)
        try:
            algorithm = _made("modifier", kind, modifier, algorithm)
        except ConfigError as error:
            is_refusal = str(error).startswith("has no effect")
            raise ConfigError(f"{kind} {error}") if is_refusal else with_key(kind, error, type(modifier)) from error
    return algorithm
