"""The table of modifiers on the page "Modifiers", and a page for each modifier, generated from its module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import attrs

from docs.generate.markdown import block, default, linked, settings, source, table
from purerl.algos.algebra import Algorithm, reads_of
from purerl.composition import with_modifiers
from purerl.errors import ConfigError
from purerl.explain.catalog import sources
from purerl.explain.description import parts
from purerl.plugins import find, names
from purerl.testing import exemptions_of_modifier

__all__ = ["accepted", "overview", "page", "pages"]

_FIRST = ("grpo", "ppo", "rloo", "dpo")
"""The algorithms that a page shows the effect on: the first one that accepts the modifier."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the table, which docs/how-to/modifiers.md includes, and of the page of each modifier."""
    yield "table", overview()
    yield from ((name, page(name)) for name in names("modifier"))


def accepted(algorithm: str) -> list[str]:
    """The modifiers that change `algorithm`, both with their default settings.

    A modifier with the name of a setting of the algorithm is left out, because ``algorithm.NAME`` is this setting.
    """
    own = attrs.fields_dict(find("algorithm", algorithm).Config)
    return [name for name in names("modifier") if name not in own and isinstance(_modified(name, algorithm), Algorithm)]


@cache
def _modified(modifier: str, algorithm: str) -> Algorithm | ConfigError:
    """The algorithm with the modifier, or its refusal."""
    module = find("algorithm", algorithm)
    try:
        return with_modifiers(module.algorithm(module.Config()), find("modifier", modifier).Config())
    except ConfigError as error:
        return error


# --- the table -----------------------------------------------------------------------------------------------------


def overview() -> str:
    """A row for each modifier, and the list of their pages for the sidebar."""
    head = ["modifier", "what it does", "main field", "other settings", "source"]
    pages_of_modifiers = [f"{name} <../reference/modifiers/{name}>" for name in names("modifier")]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *pages_of_modifiers, "```"])
    return f"{table(head, map(_row, names('modifier')))}\n\n{toctree}\n"


def _row(name: str) -> list[str]:
    module = find("modifier", name)
    first, *others = [*map(_setting, attrs.fields(module.Config)), ""]
    title = re.split(r"(?<=\.)\s", inspect.getdoc(module) or "", maxsplit=1)[0]
    link = f"[{name}](../reference/modifiers/{name}.md)"
    return [link, linked(title), first, "<br>".join(filter(None, others)), linked(sources(module))]


def _setting(field: attrs.Attribute) -> str:
    unit = f" ({field.metadata['unit']})" if field.metadata.get("unit") else ""
    return f"`{field.name}`, {default(field.default)}: {field.metadata.get('help', '')}{unit}"


# --- the page of a modifier ----------------------------------------------------------------------------------------


def page(name: str) -> str:
    """The page of one modifier."""
    module = find("modifier", name)
    sections = {
        "Settings": _settings(name, module),
        "Composition": _composition(name),
        "Algorithms": _algorithms(name),
        "Laws": _laws(module),
        "Source code": source(module),
    }
    texts = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    blocks = map(block, re.split(r"\n\n+", inspect.getdoc(module) or ""))
    return "\n\n".join([f"# {name}", *blocks, *texts]) + "\n"


def _settings(name: str, module: Any) -> str:
    fields = attrs.fields(module.Config)
    if not fields:
        return f"None. `--set algorithm.{name}=true` adds the modifier."
    main = f"`--set algorithm.{name}=VALUE` adds the modifier with this value of `{fields[0].name}`."
    others = f"`--set algorithm.{name}.NAME=VALUE` sets any field of `{module.__name__}.Config`."
    return f"{main} {others}\n\n{settings(module.Config)}"


def _composition(name: str) -> str:
    """The parts of an algorithm that the modifier adds or changes."""
    for base in dict.fromkeys((*_FIRST, *names("algorithm"))):
        modified = _modified(name, base)
        if isinstance(modified, Algorithm):
            before = [*parts(find("algorithm", base).algorithm())]
            rows = [(kind, f"`{text}`") for kind, text in parts(modified) if (kind, text) not in before]
            reads = ", ".join(f"`{field}`" for field in reads_of(modified) if field not in reads_of(_plain(base)))
            more = f"\n\nIt reads these fields in addition: {reads}." if reads else ""
            text = f"What it changes in [{base}](../algorithms/{base}.md):\n\n{table(['part', 'equation'], rows)}{more}"
            return text if rows else ""
    return ""


def _plain(name: str) -> Algorithm:
    module = find("algorithm", name)
    return module.algorithm(module.Config())


def _algorithms(name: str) -> str:
    """Which algorithms refuse the modifier, and why."""
    refusals: dict[str, list[str]] = {}
    for algorithm in names("algorithm"):
        if isinstance(error := _modified(name, algorithm), ConfigError):
            refusals.setdefault(_reason(error), []).append(f"[{algorithm}](../algorithms/{algorithm}.md)")
    total, refused = len(names("algorithm")), sum(map(len, refusals.values()))
    if not refused:
        return f"All {total} algorithms accept it."
    rows = ((", ".join(algorithms), reason) for reason, algorithms in refusals.items())
    summary = f"{total - refused} of the {total} algorithms accept it with its default settings. The others refuse it:"
    return f"{summary}\n\n{table(['algorithms', 'reason'], rows)}"


def _laws(module: Any) -> str:
    """The laws that need not hold with the default settings of the modifier."""
    exempt = exemptions_of_modifier(module.Config())
    lines = [f"- `{law}`: {reason}." for law, reason in exempt.items()]
    return "\n".join(["These [laws](../laws.md) need not hold:", "", *lines]) if lines else ""


def _reason(error: ConfigError) -> str:
    """What `error` got and what it needs."""
    found = dict(re.findall(r"^  (got|need): +(.+)", str(error), re.MULTILINE))
    need = f"needs {found['need']}" if "need" in found else ""
    return "; ".join(filter(None, [found.get("got"), need]))
