"""A page for each module except algorithms and modifiers, and the index of these pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules, walk_packages

import purerl
from docs.generate.formulas import is_formula, typeset
from docs.generate.markdown import PAPER
from purerl.plugins import find, names

__all__ = ["as_rst", "pages"]

_NO_TOCTREE = "---\norphan: true\n---"
"""The head of a page that no toctree contains. Without it, Sphinx warns."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page of each module, and of the index."""
    modules = [name for name in _modules() if import_module(name).__doc__]
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
    """A section for each package, and one for the modules that are in none."""
    packages = [info.name for info in iter_modules(purerl.__path__, "purerl.") if info.ispkg]
    members = {package: [name for name in modules if f"{name}.".startswith(f"{package}.")] for package in packages}
    inside = {name for names_inside in members.values() for name in names_inside}
    sections = [
        f"## {package.removeprefix('purerl.')}\n\n{_summary(package)}.\n\n{_list(found)}"
        for package, found in members.items()
    ]
    others = _list([name for name in modules if name not in inside])
    return "\n\n".join(["# Modules", *sections, f"## Modules outside of packages\n\n{others}"]) + "\n"


def _list(modules: list[str]) -> str:
    """Links to the pages of `modules`. A toctree would show all of them beside each page of the documentation."""
    return "\n".join(f"- [{name.removeprefix('purerl.')}]({name}.md): {_summary(name)}" for name in modules)


def _summary(module: str) -> str:
    """The first sentence of the docstring of `module`."""
    text = " ".join((import_module(module).__doc__ or "").split())
    return re.split(r"(?<=[.:]) ", text)[0].rstrip(":.")


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
