"""A page for each algorithm, and the index of them, told from the modules themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from docs.generate.composition import parts
from docs.generate.curves import curves, figure
from docs.generate.index import index
from docs.generate.markdown import linked, settings, table
from docs.generate.metrics import meaning, metrics
from purerl.algos.algebra import Algorithm, roles
from purerl.batch import FIELDS, STRUCTURE
from purerl.config.catalog import Entry, catalog, equations
from purerl.config.check import WITHIN, check, outputs_of, reads_of
from purerl.errors import ConfigError
from purerl.plugins import find
from purerl.recipes import resolve
from purerl.testing import LAWS, exemptions, variants

__all__ = ["page", "pages"]


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the index and of the page of every algorithm."""
    entries = catalog()
    yield "index", index(entries)
    yield from ((entry.name, page(entry)) for entry in entries)


def page(entry: Entry) -> str:
    """What there is to say about one algorithm."""
    module = find("algorithm", entry.name)
    algorithm = module.algorithm(module.Config())
    sections = {
        "Its loss": _drawing(module, algorithm),
        "What it is made of": _composition(module, algorithm),
        "What it needs": _needs(module, algorithm),
        "Settings": _settings(module),
        "Running it": _running(entry.name),
        "Metrics": _metrics(algorithm),
        "Laws": _laws(module),
        "All of its code": _source(module),
    }
    written = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join([_introduction(module), *written]) + "\n"


def _introduction(module: Any) -> str:
    """The docstring is Markdown already: its first line becomes the title, and arXiv's numbers become links."""
    first, _, rest = inspect.getdoc(module).partition("\n")
    title, _, source = first.partition(": ")
    lines = [line if line.startswith("    ") else linked(line) for line in rest.strip("\n").splitlines()]
    return "\n\n".join([f"# {title}", linked(source[:1].upper() + source[1:]), "\n".join(lines)])


# --- sections ----------------------------------------------------------------------------------------------------


def _drawing(module: Any, algorithm: Algorithm) -> str:
    found = curves(algorithm, module.Config())
    if found is None:
        return ""
    value = "" if found.loss is not None else " Its value is no function of the ratio alone; its gradient is."
    return (
        "That of one token, against its ratio, where sampler and policy agreed when the update began: worked out by "
        f"the objective itself.{value}\n\n{figure(found)}"
    )


def _composition(module: Any, algorithm: Algorithm) -> str:
    rows = list(parts(algorithm))
    for name, other in variants(module).items():
        more = [row for row in parts(other) if row not in rows]
        rows += [(f"{kind}, with `{name}`", text) for kind, text in more]
    units = {one.unit for one in (*algorithm.before, *algorithm.objectives)}
    cut = "must not cut a group" if "group" in units else "may be cut between any two rows"
    made = table(["part", "equation"], ([kind, f"`{text}`"] for kind, text in rows))
    return f"{made}\n\nThe equations: {', '.join(_equations(algorithm))}. A micro-batch {cut}."


def _equations(algorithm: Algorithm) -> Iterator[str]:
    """Links to the public functions that it is made of, and to those that its private ones are named after."""
    objectives = (*algorithm.before, *algorithm.objectives)
    losses = [part for one in objectives for term in one.terms for part in (term.loss, term.reduce)]
    every = equations(algorithm.select, algorithm.advantage.apply, *(one.prepare for one in objectives), *losses)
    found = {address.replace("._", "."): address.rpartition(".")[0] for address in every}
    named = {address.rpartition(".")[2]: import_module(module) for address, module in found.items()}
    for name, module in named.items():
        if hasattr(module, name):
            yield f"{{py:obj}}`{name} <{getattr(module, name).__module__}.{name}>`"


def _needs(module: Any, algorithm: Algorithm) -> str:
    needed = list(_needed(algorithm))
    for variant, other in variants(module).items():
        needed += [(name, f"{what}; with `{variant}`") for name, what in _needed(other) if (name, what) not in needed]
    return table(["model or field", "what of it"], needed)


def _needed(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """Models with what they supply, and fields with what they mean and who writes them."""
    for role in roles(algorithm, FIELDS):
        yield (f"a {role.replace('_', ' ')}", ", ".join(f"`{name}`" for name in outputs_of(algorithm, role)))
    for field in (FIELDS[name] for name in sorted(reads_of(algorithm) - set(STRUCTURE))):
        if not field.source and field.writer not in WITHIN:
            yield (f"`{field.name}`", f"{field.meaning} (written by: {field.writer})")


def _settings(module: Any) -> str:
    found = settings(module.Config)
    where = f"`--set algorithm.NAME=VALUE`, or a field of `{module.__name__}.Config`."
    return f"{where}\n\n{found}" if found else "None."


def _running(name: str) -> str:
    command = f"```sh\npurerl train addition --set algorithm.kind={name}\n```"
    try:
        check(resolve("addition", [f"algorithm.kind={name}"]))
    except ConfigError as error:
        return f"It takes a recipe of its own. The default one is refused:\n\n{command}\n\n```text\nerror: {error}\n```"
    return command


def _metrics(algorithm: Algorithm) -> str:
    return table(["metric", "unit", "meaning"], ([f"`{name}`", *meaning(name)] for name in metrics(algorithm)))


def _laws(module: Any) -> str:
    exempt = exemptions(module)
    count = f"{len(LAWS) - len(exempt)} of the {len(LAWS)}" if exempt else f"all {len(LAWS)}"
    held = f"It is held to {count} [laws](../laws.md), each of its optional terms switched on in turn."
    return "\n".join([held, "", *(f"- exempt from `{law}`: {why}." for law, why in exempt.items())]).strip()


def _source(module: Any) -> str:
    """From the Config on: what is above it is the docstring, and imports."""
    lines = inspect.getsource(module).splitlines()
    _, first = inspect.getsourcelines(module.Config)
    return "\n".join(["```python", *lines[first - 1 :], "```"])
