"""The graph of imports of purerl: its circles, and its arrows to higher layers.

Every import counts, also in functions and under TYPE_CHECKING. ``from a import b`` is an import of the module ``a.b``
if there is one, and of ``a`` if not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tests.library.import_rules import LAYERS, package_of

__all__ = ["Graph", "circles", "growth", "import_graph", "problems", "summary", "upward"]

ROOT = Path(__file__).parents[2] / "purerl"

Graph = Mapping[str, Collection[str]]
Summary = dict[str, list[list[str]]]


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """The modules below `root`, the directory of the package purerl, and those that each of them imports."""
    files = {_module_of(path.relative_to(root)): path for path in sorted(root.rglob("*.py"))}
    return {
        module: {name for name in _imported(path, module, files) if name in files} - {module}
        for module, path in files.items()
    }


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("purerl", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _imported(path: Path, module: str, files: Collection[str]) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: -node.level + 1 or None] if node.level else []
            source = ".".join([*parents, node.module or ""]).strip(".")
            for alias in node.names:
                name = f"{source}.{alias.name}"
                yield name if name in files else source


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements inside of `node`. Expressions, which contain no imports, are left out: they are most of a tree."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()) if not isinstance(node, ast.expr) else ():
            yield child
            yield from _statements(child)


def circles(graph: Graph) -> list[list[str]]:
    """The sets of at least two nodes that reach each other, sorted."""
    reached = {node: _reachable(graph, node) for node in graph}
    found = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in graph}
    return sorted([*circle] for circle in found if len(circle) > 1)


def _reachable(graph: Graph, start: str) -> set[str]:
    """The nodes on paths from `start`, which is among them."""
    found, remaining = {start}, [start]
    while remaining:
        new = set(graph[remaining.pop()]) - found
        found |= new
        remaining += new
    return found


def _of_packages(graph: Graph) -> dict[str, set[str]]:
    packages = {module: package_of(module.split(".")) for module in graph}
    arrows: dict[str, set[str]] = {package: set() for package in packages.values()}
    for module, imported in graph.items():
        arrows[packages[module]] |= {packages[name] for name in imported} - {packages[module]}
    return arrows


def upward(graph: Graph) -> list[list[str]]:
    """The pairs [package, imported package] in which the imported one is not in a lower layer; see `import_rules`."""
    layers = {package: index for index, layer in enumerate(LAYERS) for package in layer}
    return sorted(
        [package, other]
        for package, imported in _of_packages(graph).items()
        for other in imported
        if layers[other] > layers[package] or (layers[other] == layers[package] > 0)
    )


def summary(graph: Graph) -> Summary:
    """Everything that may only become less: circles of modules and of packages, and imports of higher layers."""
    of_packages = {
        package: imported if package not in LAYERS[0] else imported - {*LAYERS[0]}
        for package, imported in _of_packages(graph).items()
    }
    return {"circles": circles(graph), "package_circles": circles(of_packages), "upward": upward(graph)}


def problems(now: Summary, before: Summary) -> list[str]:
    """The circles that are not part of one of `before`, and the upward imports that it does not have."""
    return [
        f"{kind}: {' <-> '.join(group)}"
        for kind, groups in now.items()
        for group in groups
        if not any({*group} <= {*known} for known in before[kind])
    ]


def growth(now: Summary, before: Summary) -> list[str]:
    """The kinds of which `now` has more groups than `before`, or more members in groups."""
    return [
        f"{kind}: {len(groups)} with {sum(map(len, groups))} members, recorded are {len(before[kind])} with "
        f"{sum(map(len, before[kind]))}"
        for kind, groups in now.items()
        if len(groups) > len(before[kind]) or sum(map(len, groups)) > sum(map(len, before[kind]))
    ]
