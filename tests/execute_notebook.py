"""Execute notebooks, each in a kernel of its own: `nox -s notebooks`, which has the packages for it.

    python -m tests.execute_notebook examples/notebooks/mismatch.ipynb

It fails if a cell raises an exception, or if a notebook takes more than two minutes of CPU time. Nothing is written.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

MAX_SECONDS = 120.0  # of CPU time


def execute(path: Path) -> float:
    """Execute the cells of a notebook, and print what they print. Returns the CPU seconds of the kernel."""
    import nbformat
    from nbclient import NotebookClient

    before = _seconds()
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            print(text)  # noqa: T201 -- the result
    return _seconds() - before


def _seconds() -> float:
    """The CPU time of the children of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(paths: Sequence[str]) -> None:
    """Execute each notebook. Exits with a message if one takes too long."""
    for path in paths:
        seconds = execute(Path(path))
        print(f"{path}: {seconds:.0f} s of CPU time")  # noqa: T201 -- the result
        if seconds > MAX_SECONDS:
            sys.exit(f"{path} takes {seconds:.0f} s of CPU time, and may take {MAX_SECONDS:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
