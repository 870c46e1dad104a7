"""Record the values of the guards: ``python -m tests.guards [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.guards import RECORDED, algorithms, default_metrics, machine, modifiers, recipes, recorded
from tests.guards.import_graph import growth, import_graph, summary


def _imports() -> dict[str, Any]:
    now = summary(import_graph())
    before = recorded().get("imports") if RECORDED.exists() else None
    if before and (grown := growth(now, before)):
        sys.exit("\n".join(["imports may not get more circles or upward arrows:", *grown]))
    return now


GUARDS: Mapping[str, Callable[[], Any]] = {
    "metrics": lambda: {"machine": machine(), "results": default_metrics()},
    "recipes": recipes,
    "algorithms": algorithms,
    "modifiers": modifiers,
    "imports": _imports,
}


def main() -> None:
    """Record the values that are named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GUARDS))
    chosen = parser.parse_args().names or [*GUARDS]
    if unknown := {*chosen} - {*GUARDS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    values = (recorded() if RECORDED.exists() else {}) | {name: GUARDS[name]() for name in chosen}
    ordered = {name: values[name] for name in GUARDS if name in values}
    RECORDED.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"recorded: {', '.join(chosen)}\n")


if __name__ == "__main__":
    main()
