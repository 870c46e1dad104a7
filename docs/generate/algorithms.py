"""A page for each algorithm, generated from its module, and the index of algorithms."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from docs.generate.curves import curves, figure
from docs.generate.index import index
from docs.generate.markdown import block, linked, settings, source, table
from docs.generate.metrics import metrics
from docs.generate.modifiers import accepted
from purerl.algos.algebra import Algorithm
from purerl.composition import definition
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.explain.catalog import Entry, catalog, equations, short_name
from purerl.explain.description import definitions, needs_of, parts
from purerl.monitoring.metric_meanings import meanings
from purerl.plugins import find, kind_of, names
from purerl.recipes import resolve
from purerl.testing import LAWS, exemptions, variants

__all__ = ["page", "pages"]

_CODE = re.compile(r"`(\w+)`")


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the index and of the page of each algorithm."""
    entries = catalog()
    yield "index", index(entries)
    yield from ((entry.name, page(entry)) for entry in entries)


def page(entry: Entry) -> str:
    """The page of one algorithm."""
    module = find("algorithm", entry.name)
    algorithm = module.algorithm(module.Config())
    sections = {
        "Loss": _curves(module, algorithm),
        "Composition": _composition(module, algorithm),
        "Requirements": _requirements(module, algorithm),
        "Settings": _settings(module),
        "Modifiers": _modifiers(entry.name),
        "Usage": _usage(entry.name),
        "Metrics": _metrics(algorithm),
        "Laws": _laws(module),
        "Source code": source(module),
    }
    texts = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join([_introduction(module), *texts]) + "\n"


def _introduction(module: Any) -> str:
    """The docstring of the module as Markdown. Its first line becomes the title."""
    first, *blocks = re.split(r"\n\n+", inspect.getdoc(module) or "")
    title, _, rest = first.partition(": ")
    return "\n\n".join([f"# {title}", linked(rest[:1].upper() + rest[1:]), *map(_with_links, map(block, blocks))])


def _with_links(text: str) -> str:
    """`text` with a link for each name of an algorithm, in "as in `grpo`"."""
    known = names("algorithm")
    return _CODE.sub(lambda found: f"[{found[0]}]({found[1]}.md)" if found[1] in known else found[0], text)


# --- sections ----------------------------------------------------------------------------------------------------


def _curves(module: Any, algorithm: Algorithm) -> str:
    drawn = curves(algorithm, module.Config())
    if drawn is None:
        return ""
    only_gradient = " Only the gradient is a function of the ratio; the value is not." if drawn.loss is None else ""
    return (
        "The loss of one token as a function of its importance ratio, computed by the objective. The rollout policy is "
        f"the same as the policy at the start of the update.{only_gradient}\n\n{figure(drawn)}"
    )


def _composition(module: Any, algorithm: Algorithm) -> str:
    rows = list(parts(algorithm))
    for setting, variant in variants(module).items():
        rows += [(f"{kind}, with `{setting}`", text) for kind, text in parts(variant) if (kind, text) not in rows]
    units = {objective.unit for objective in (*algorithm.before, *algorithm.objectives)}
    bounds = "keeps the rows of a group together" if "group" in units else "may consist of any rows"
    table_of_parts = table(["part", "equation"], ([kind, f"`{text}`"] for kind, text in rows))
    links = f"The equations: {', '.join(_equations(algorithm))}. A micro-batch {bounds}."
    return "\n\n".join(filter(None, [_definitions(module), table_of_parts, links]))


def _definitions(module: Any) -> str:
    """The parts of an algorithm that is another one with modifiers, and links to their pages."""
    composition = definition(module.Config())
    if composition is None:
        return ""
    lines = [f"- `{name} = {formula}`" for name, formula in definitions(module.Config())]
    base, modifiers = kind_of(composition.base), map(kind_of, composition.modifiers)
    links = ", ".join(f"[{name}](../modifiers/{name}.md)" for name in modifiers)
    return "\n".join([f"It is [{base}]({base}.md) with the modifiers {links}:", "", *lines])


def _equations(algorithm: Algorithm) -> Iterator[str]:
    """Links to the public functions of the algorithm. A function of a batch stands for the one of tensors."""
    objectives = (*algorithm.before, *algorithm.objectives)
    losses = [part for objective in objectives for term in objective.terms for part in (term.loss, term.reduce)]
    prepared = (objective.prepare for objective in objectives)
    addresses = equations(algorithm.select, algorithm.advantage.apply, *prepared, *losses)
    modules = {short_name(address): import_module(address.rpartition(".")[0]) for address in addresses}
    for name, module in modules.items():
        if hasattr(module, name):
            yield f"{{py:obj}}`{name} <{getattr(module, name).__module__}.{name}>`"


def _requirements(module: Any, algorithm: Algorithm) -> str:
    rows = list(_inputs(algorithm))
    for setting, variant in variants(module).items():
        rows += [(name, f"{use}; with `{setting}`") for name, use in _inputs(variant) if (name, use) not in rows]
    return table(["model or field", "what is used"], rows)


def _inputs(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """(name, use) of each model and field that the algorithm needs, with names as code."""
    for name, use, is_model in needs_of(algorithm):
        yield (name, ", ".join(f"`{output}`" for output in use.split(", "))) if is_model else (f"`{name}`", use)


def _settings(module: Any) -> str:
    rows = settings(module.Config)
    usage = f"Set them with `--set algorithm.NAME=VALUE`, or as fields of `{module.__name__}.Config`."
    return f"{usage}\n\n{rows}" if rows else "None."


def _modifiers(name: str) -> str:
    links = ", ".join(f"[{modifier}](../modifiers/{modifier}.md)" for modifier in accepted(name))
    return (
        f"These [modifiers](../../how-to/modifiers.md) change it, with their default settings: {links}."
        if links
        else ""
    )


def _usage(name: str) -> str:
    command = f"```sh\npurerl train addition --set algorithm.kind={name}\n```"
    try:
        check(resolve("addition", [f"algorithm.kind={name}"]))
    except ConfigError as error:
        refusal = f"{command}\n\n```text\nerror: {error}\n```"
        return f"This algorithm needs a recipe that supplies its inputs. The recipe `addition` is refused:\n\n{refusal}"
    return command


def _metrics(algorithm: Algorithm) -> str:
    names = metrics(algorithm)
    explained = meanings(names)
    return table(["metric", "unit", "meaning"], ([f"`{name}`", *explained[name]] for name in names))


def _laws(module: Any) -> str:
    exempt, optional = exemptions(module), [name for name in variants(module) if name != "default"]
    count = f"{len(LAWS) - len(exempt)} of the {len(LAWS)}" if exempt else f"all {len(LAWS)}"
    terms = "with each optional term switched on in turn, and " if optional else ""
    summary = f"The algorithm is tested with {count} [laws](../laws.md), also {terms}with random modifiers."
    return "\n".join([summary, "", *(f"- exempt from `{law}`: {reason}." for law, reason in exempt.items())]).strip()
