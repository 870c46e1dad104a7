"""The reference: a page for each module of purerl that is not an algorithm's, and one for the settings of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import purerl
from docs.generate.formulas import is_formula, typeset
from docs.generate.markdown import settings
from purerl.config import schema
from purerl.plugins import find, names
from purerl.protocols import Model

__all__ = ["as_rst", "pages"]

_ROOMS = {
    "purerl.algos": "Algorithms: the algebra, estimators, parts",
    "purerl.kernels": "Kernels",
    "purerl.testing": "Testing: laws and conformance suites",
    "purerl.backends": "Engines",
    "purerl.config": "Configuration",
    "purerl.loop": "The loop",
    "purerl.data": "Data",
    "purerl.rewards": "Rewards",
    "purerl.tracking": "Trackers, and the console",
    "purerl.report": "The report",
}


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page of settings, of every module's, and of the index, which has them by rooms."""
    modules = [name for name in _modules() if import_module(name).__doc__]
    yield "settings", _settings()
    yield from ((name, _module(name)) for name in modules)
    yield "index", _index(modules)


def _modules() -> Iterator[str]:
    algorithms = {f"purerl.algos.{name}" for name in names("algorithm")}
    found = (info.name for info in walk_packages(purerl.__path__, "purerl."))
    yield "purerl"
    yield from (name for name in found if name not in algorithms and not name.endswith("__main__"))


def _module(name: str) -> str:
    """What the module defines; what it only passes on is explained where it is defined, and so is a link."""
    documented = f"```{{eval-rst}}\n.. automodule:: {name}\n```"
    module = import_module(name)
    homes = {one: getattr(getattr(module, one), "__module__", name) for one in getattr(module, "__all__", ())}
    links = [f"{{py:obj}}`{one} <{home}.{one}>`" for one, home in homes.items() if home != name]
    passed_on = [f"Here to be imported: {', '.join(links)}."] if links else []
    return "\n\n".join([f"# {name}", documented, *passed_on]) + "\n"


def _index(modules: list[str]) -> str:
    rest = [name for name in modules if not name.startswith(tuple(_ROOMS))]
    rooms = {title: [name for name in modules if name.startswith(room)] for room, title in _ROOMS.items()}
    trees = [_toctree(title, members) for title, members in {**rooms, "The rest": rest}.items()]
    return "\n\n".join(["# Reference", *trees]) + "\n"


def _toctree(title: str, modules: list[str]) -> str:
    entries = [f"{name.removeprefix('purerl.')} <{name}>" for name in modules]
    return "\n".join([f"## {title}", "", "```{toctree}", ":maxdepth: 1", "", *entries, "```"])


# --- settings ----------------------------------------------------------------------------------------------------


def _settings() -> str:
    """`RunConfig` and its sections, and the engines'; each algorithm has a page of its own."""
    sections: dict[str, Any] = {
        "A run": schema.RunConfig,
        "`data`": schema.Data,
        "`rollout`": schema.Rollout,
        "`rollout.overlong`": schema.Overlong,
        "`rewards`": schema.Reward,
        "`reward_workers`": schema.RewardWorkers,
        "`evaluate`": schema.Evaluate,
        "`checkpoint`": schema.Checkpoint,
        "`stop_when`": schema.StopWhen,
        "`model`, `teacher`": Model,
        **{f"`{group}.kind={kind}`": find(group, kind).Config for group in _PLUGINS for kind in names(group)},
    }
    tables = [f"## {title}\n\n{settings(config)}" for title, config in sections.items()]
    return "\n\n".join([f"# Settings of a run\n\n{_ABOUT}", *tables]) + "\n"


_PLUGINS = ("trainer", "generator", "tracker")
_ABOUT = """\
A recipe sets them, and `purerl train RECIPE --set KEY=VALUE` changes them. A dot separates a section from its fields:
`--set rollout.samples_per_prompt=8`. The settings of an algorithm are on [its own page](../algorithms/index.md)."""


# --- docstrings --------------------------------------------------------------------------------------------------

_COLUMNS = re.compile(r"\S {3,}\S")
_ITEM = re.compile(r"(\d+\.|-) ")
_LITERAL = re.compile(r"\w.*::")
_PAPER = re.compile(r"\b\d{4}\.\d{5}\b")
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
    return _PAPER.sub(r"`\g<0> <https://arxiv.org/abs/\g<0>>`__", escaped).splitlines()


def _directive(head: str, content: str) -> list[str]:
    return [head, "", *(f"    {line}" for line in content.splitlines())]
