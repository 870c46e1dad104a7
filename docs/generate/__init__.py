"""What of the documentation is made from the package itself, each time that it is built.

algorithms, index               a page for each algorithm, and all of them side by side
reference                       a page for each module, and one for the settings of a run
composition, curves, metrics    what the pages of algorithms show
markdown                        tables and links
"""

from __future__ import annotations

from pathlib import Path

from docs.generate import algorithms, reference

__all__ = ["write"]


def write(folder: Path) -> None:
    """Write all of it into `folder`, as Markdown; a page that is there and is no longer made is removed."""
    for name, room in {"algorithms": algorithms, "reference": reference}.items():
        made = {folder / name / f"{page}.md": text for page, text in room.pages()}
        (folder / name).mkdir(exist_ok=True)
        for path in set((folder / name).glob("*.md")) - set(made):
            path.unlink()
        for path, text in made.items():
            # What is as it was is left alone, so that only what changed is built again.
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
