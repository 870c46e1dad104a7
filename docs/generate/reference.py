"""The reference: a page of all settings of a run, and a page for each module except algorithms and modifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, get_args

import attrs

import purerl
from docs.generate.formulas import is_formula, typeset
from docs.generate.markdown import PAPER, settings
from purerl.config.schema import RunConfig
from purerl.plugins import find, names

__all__ = ["as_rst", "pages"]

_PACKAGES = {
    "purerl.algos": "Algorithms: the algebra, estimators, parts",
    "purerl.kernels": "Kernels",
    "purerl.testing": "Testing: laws and conformance suites",
    "purerl.backends": "Engines",
    "purerl.config": "Configuration",
    "purerl.loop": "The training loop",
    "purerl.data": "Data",
    "purerl.rewards": "Rewards",
    "purerl.envs": "Environments and tools",
    "purerl.rollouts": "Rollouts",
    "purerl.adapters": "Adapters of other libraries",
    "purerl.evaluation": "Evaluation",
    "purerl.store": "Files of a run",
    "purerl.monitoring.trackers": "Console and trackers",
    "purerl.report": "Report",
}


_NO_TOCTREE = "---\norphan: true\n---"
"""The head of a page that no toctree contains. Without it, Sphinx warns."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page of settings, of the page of each module, and of the index."""
    modules = [name for name in _modules() if import_module(name).__doc__]
    yield "settings", _settings()
    yield from ((name, _module(name)) for name in modules)
    yield "index", _index(modules)


def _modules() -> Iterator[str]:
    with_own_page = {find(group, name).__name__ for group in ("algorithm", "modifier") for name in names(group)}
    modules = (info.name for info in walk_packages(purerl.__path__, "purerl."))
    yield "purerl"
    yield from (name for name in modules if name not in with_own_page and not name.endswith("__main__"))


def _module(name: str) -> str:
    """The page of a module. Names that the module only re-exports are links to the modules that define them."""
    module = import_module(name)
    origins = {
        export: getattr(getattr(module, export), "__module__", name) for export in getattr(module, "__all__", ())
    }
    links = [f"{{py:obj}}`{export} <{origin}.{export}>`" for export, origin in origins.items() if origin != name]
    re_exports = [f"Also importable from here: {', '.join(links)}."] if links else []
    return "\n\n".join([_NO_TOCTREE, f"# {name}", f"```{{eval-rst}}\n.. automodule:: {name}\n```", *re_exports]) + "\n"


def _index(modules: list[str]) -> str:
    packages = {title: [name for name in modules if _is_in(name, package)] for package, title in _PACKAGES.items()}
    other_modules = [name for name in modules if not any(_is_in(name, package) for package in _PACKAGES)]
    lists = [_list(title, members) for title, members in {**packages, "Other modules": other_modules}.items()]
    return "\n\n".join(["# Reference", *lists]) + "\n"


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _list(title: str, modules: list[str]) -> str:
    """Links to the pages of `modules`. A toctree would show all of them beside each page of the documentation."""
    entries = [f"- [{name.removeprefix('purerl.')}]({name}.md): {_summary(name)}" for name in modules]
    return "\n".join([f"## {title}", "", *entries])


def _summary(module: str) -> str:
    """The first sentence of the docstring of `module`."""
    text = " ".join((import_module(module).__doc__ or "").split())
    return re.split(r"(?<=[.:]) ", text)[0].rstrip(":.")


# --- settings ----------------------------------------------------------------------------------------------------

_PLUGINS = ("trainer", "generator", "tracker", "reward")
_INTRODUCTION = """\
A recipe sets these settings. `purerl train RECIPE --set KEY=VALUE` changes them. A dot separates a section from its
fields: `--set rollout.samples_per_prompt=8`. The settings of an algorithm are on
[its own page](../algorithms/index.md), and those of its modifiers on [theirs](../modifiers.md).

The settings of a trainer, a generator, a tracker or a reward depend on its `kind`. `trackers`, `rewards` and `gates`
are lists: each entry has a `kind` and the settings of that kind. A reward can also be a function."""


def _settings() -> str:
    """A table for `RunConfig`, for each of its sections, and for each kind of the plugins and its sections."""
    titles: dict[type, list[str]] = {RunConfig: ["A run"]}
    for key, section in _sections(RunConfig):
        titles.setdefault(section, []).append(f"`{key}`")
    plugins = {(group, kind): find(group, kind).Config for group in _PLUGINS for kind in names(group)}
    titles |= {config: [f"{group.title()} `{kind}`"] for (group, kind), config in plugins.items()}
    for (group, kind), config in plugins.items():
        for key, section in _sections(config):
            titles.setdefault(section, []).append(f"`{key}` of the {group} `{kind}`")
    tables = {", ".join(keys): section for section, keys in titles.items()}
    sections = [f"## {title}\n\n{settings(section)}" for title, section in tables.items()]
    return "\n\n".join([f"# Settings of a run\n\n{_INTRODUCTION}", *sections]) + "\n"


def _sections(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, class) of each section of the attrs class `config`. `<name>` stands for any key of a mapping."""
    for field in attrs.fields(attrs.resolve_types(config)):
        if "plugin" in field.metadata:  # its settings depend on its kind
            continue
        paths: dict[Any, str] = {}
        for path, section in _classes(field.type):
            paths.setdefault(section, path)
        for section, path in paths.items():
            key = f"{prefix}{field.name}{path}"
            if section is not RunConfig:  # initial_run has the settings of a run
                yield key, section
                yield from _sections(section, f"{key}.")


def _classes(kind: Any) -> Iterator[tuple[str, Any]]:
    """The attrs classes in the type `kind`, each with the path to it: "" for the value itself or an item of a list."""
    if attrs.has(kind):
        yield "", kind
        return
    is_mapping = getattr(kind, "__origin__", None) in (dict, Mapping)
    for choice in get_args(kind):
        yield from ((".<name>" + path if is_mapping else path, section) for path, section in _classes(choice))


# --- docstrings --------------------------------------------------------------------------------------------------

_COLUMNS = re.compile(r"\S {3,}\S")
_ITEM = re.compile(r"(\d+\.|-) ")
_LITERAL = re.compile(r"\w.*::")
_MARKUP = re.compile(r"`[^`]*`|(?<!\*)\*\w[^*`]*\*(?!\*)|[*|]|_(?!\w)")


def as_rst(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText: formulas are typeset, and other indented blocks and columns are literal.

    A paragraph that ends with "::" makes the block below it literal.

    >>> print(*as_rst(["The trace:", "", "    A_t = d_t + A_{t+1}"]), sep="\\n")
    The trace:
    <BLANKLINE>
    .. math::
    <BLANKLINE>
        \\begin{aligned}
        A_{t} &= d_{t} + A_{t + 1}
        \\end{aligned}
    <BLANKLINE>
    """
    rst: list[str] = []
    for block in re.split(r"\n\n+", "\n".join(lines).strip("\n")):
        above = next((line for line in reversed(rst) if line[:1].strip()), "")  # the last line without indentation
        rst += [*_block(block, above), ""]
    return rst


def _block(block: str, above: str) -> list[str]:
    indented = all(line.startswith(" ") for line in block.splitlines())
    if indented and _LITERAL.fullmatch(above):
        return block.splitlines()
    if indented and not _ITEM.match(above):  # a block below a list item belongs to the item
        return _directive(".. math::", typeset(block)) if is_formula(block) else ["::", "", *block.splitlines()]
    if block.startswith(">>>"):
        return block.splitlines()
    if _COLUMNS.search(block):
        return _directive("::", block)
    escaped = _MARKUP.sub(lambda match: match[0] if len(match[0]) > 1 else f"\\{match[0]}", block)
    return PAPER.sub(r"`\g<0> <https://arxiv.org/abs/\g<0>>`__", escaped).splitlines()


def _directive(head: str, content: str) -> list[str]:
    return [head, "", *(f"    {line}" for line in content.splitlines())]
