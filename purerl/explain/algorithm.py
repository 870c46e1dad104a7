"""A description of one algorithm with its modifiers: its parts, settings, requirements and papers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.composition import Composition, build_algorithm, to_composition
from purerl.config.listing import explain
from purerl.config.overrides import apply, build
from purerl.config.presets import presets
from purerl.explain.description import definitions, formula_of, needs_of, parts
from purerl.plugins import find, kind_of
from purerl.settings import setting

__all__ = ["AlgorithmSection", "Anatomy", "algorithm_named", "anatomy", "composition_changed", "composition_named"]

_PAPER = re.compile(r"\d{4}\.\d{5}")


@frozen
class Anatomy:
    """An algorithm as text.

    text       the documentation of the algorithm, and of each modifier its first sentence
    formulas   the algorithm and its modifiers as a sum, and the definition of each algorithm that is such a sum
    parts      (purpose, call) of each function, in the order of a training step
    needs      (model or field, what is used)
    settings   (setting, value, meaning)
    citations  addresses of the papers
    """

    name: str
    text: str
    formulas: list[str]
    parts: list[tuple[str, str]]
    needs: list[tuple[str, str]]
    settings: list[tuple[str, str, str]]
    citations: list[str]


@frozen
class AlgorithmSection:
    """The section of a configuration that names an algorithm."""

    algorithm: Composition = setting("the algorithm", plugin="algorithm", converter=to_composition)


def composition_named(name: str, settings: Iterable[str] = ()) -> Composition:
    """The algorithm or preset `name` with `settings`, strings NAME=VALUE, as in the configuration of a run."""
    return build(AlgorithmSection, [f"algorithm.kind={name}", *(f"algorithm.{text}" for text in settings)]).algorithm


def composition_changed(composition: Composition, settings: Iterable[str]) -> Composition:
    """`composition` with `settings`, strings NAME=VALUE, changed; NAME may begin with ``algorithm.``, as in a run."""
    keys = [f"algorithm.{text.removeprefix('algorithm.')}" for text in settings]
    return apply(AlgorithmSection(composition), keys).algorithm


def algorithm_named(name: str, settings: Iterable[str] = ()) -> Algorithm:
    """The algorithm `name`, or the preset, with `settings`, strings NAME=VALUE. Raises ConfigError as `build`."""
    return build_algorithm(composition_named(name, settings))


def anatomy(name: str, settings: Iterable[str] = ()) -> Anatomy:
    """The anatomy of the algorithm `name`, or of a preset, with `settings`, strings NAME=VALUE.

    Raises: ConfigError for an unknown name or setting, and for a modifier without effect.

    >>> anatomy("grpo@verl").parts[-1][0]
    'loss of the policy'
    """
    composition = composition_named(name, settings)
    algorithm = build_algorithm(composition)
    modules = [find("algorithm", kind_of(composition.base))]
    modules += [find("modifier", kind_of(modifier)) for modifier in composition.modifiers]
    texts = [inspect.getdoc(module) or "" for module in modules]
    papers = dict.fromkeys(paper for text in texts for paper in _PAPER.findall(text))
    prefix = f"{name} = " if name in presets() else ""
    own = [prefix + formula_of(composition)] if composition.modifiers else []
    return Anatomy(
        name=name,
        text="\n\n".join([*_preset(name, composition), texts[0].strip(), *map(_modifier, modules[1:], texts[1:])]),
        formulas=[*own, *(f"{kind} = {formula}" for kind, formula in definitions(composition.base))],
        parts=list(parts(algorithm)),
        needs=[(need.name, need.use) for need in needs_of(algorithm)],
        settings=_settings(composition),
        citations=[f"https://arxiv.org/abs/{paper}" for paper in papers],
    )


def _preset(name: str, composition: Composition) -> list[str]:
    """The preset `name`, and what differs from its library, also with the modifiers of `composition`."""
    preset = presets().get(name)
    if preset is None:
        return []
    head = f"{preset.name}: {preset.library} {preset.version}, {preset.checked}. {preset.summary}"
    kinds = [kind_of(modifier) for modifier in composition.modifiers]
    added = [f"{kind}: {text}" for kind in kinds for text in preset.modifiers.get(kind, ())]
    return ["\n".join([head, *(f"- {difference}" for difference in (*preset.differences, *added))])]


def _modifier(module: Any, text: str) -> str:
    return f"Modifier {module.__name__.rpartition('.')[2]}: {text.partition(chr(10))[0]}"


def _settings(composition: Composition) -> list[tuple[str, str, str]]:
    configs = {"": composition.base, **{f"{kind_of(modifier)}.": modifier for modifier in composition.modifiers}}
    return [
        (f"{above}{setting.key}", setting.value, setting.meaning)
        for above, config in configs.items()
        for setting in explain(config, recipe="")
    ]
