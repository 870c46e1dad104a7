"""Pages of the documentation that are generated from the package, each time the documentation is built.

algorithms, index               a page for each algorithm, and the index that compares them
modifiers                       a page for each modifier, and the table that docs/how-to/modifiers.md includes
frameworks                      the table of algorithms in other frameworks, which docs/how-to/frameworks.md includes
presets                         the page that compares presets with our algorithms
modules, settings               a page for each module, and the page of all settings
mathematics                     the table of answers that rewards for mathematics accept
migration, fields               the pages "From TRL" and "From verl", and their tables of all fields
llms                            llms.txt, the list of the pages for language models, which conf.py writes
annotations                     names that only type checkers import, for the signatures on the pages
curves, metrics                 sections of the algorithm pages
expressions, formulas           LaTeX of the formulas in docstrings
markdown                        tables and links
"""

from __future__ import annotations

from pathlib import Path

from docs.generate import algorithms, frameworks, mathematics, migration, modifiers, modules, presets, settings

__all__ = ["write"]

_PAGES = (algorithms, frameworks, mathematics, migration, modifiers, modules, presets, settings)


def write(directory: Path) -> None:
    """Write all generated pages into subdirectories of `directory`, as Markdown.

    Pages that are no longer generated are deleted. Files whose content is the same are not written again, so that
    Sphinx rebuilds only the pages that have changed.
    """
    for module in _PAGES:
        name = module.__name__.rpartition(".")[2]
        pages = {directory / name / f"{page}.md": text for page, text in module.pages()}
        (directory / name).mkdir(exist_ok=True)
        for path in set((directory / name).glob("*.md")) - set(pages):
            path.unlink()
        for path, text in pages.items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
