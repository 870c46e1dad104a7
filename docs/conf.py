"""How Sphinx builds the documentation: `nox -s docs`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import purerl  # noqa: E402 - the path has to be set first
from docs import generate  # noqa: E402
from docs.generate.annotations import import_annotations  # noqa: E402
from docs.generate.llms import llms_txt  # noqa: E402
from docs.generate.modules import as_rst  # noqa: E402
from purerl import types  # noqa: E402

project = "purerl"
version = release = purerl.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings, as on GitHub
mathjax_path = "https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-chtml.js"
mathjax3_config = {"chtml": {"displayAlign": "left", "displayIndent": "1.5em"}}
exclude_patterns = ["_build", "reference/*/table.md"]  # frameworks.md and modifiers.md include them

html_theme = "furo"
html_title = f"purerl {version}"
html_static_path = ["_static"]
html_extra_path = ["llms.txt"]
html_css_files = ["purerl.css"]
html_show_copyright = False

default_role = "py:obj"  # `name` in a docstring is a link, if there is an object of that name
highlight_language = "text"  # literal blocks of docstrings are tables
autodoc_default_options = {"members": True, "ignore-module-all": True, "no-value": True}
autodoc_member_order = "bysource"
autodoc_type_aliases = {name: name for name in types.__all__}  # the names state the shapes
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 100


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    # Autodoc also processes the docstrings of imported functions and classes, which it then leaves out.
    if what not in ("class", "function") or thing.__module__.startswith("purerl"):
        lines[:] = as_rst(lines)


def _skip(app: Any, what: str, name: str, thing: Any, *_: Any) -> bool | None:
    """Leave out the fields of a NamedTuple. They are in its signature and its docstring."""
    return True if type(thing).__name__ == "_tuplegetter" else None


def _shorten_navigation(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave branches that a page is not in out of its navigation: with all, they were four fifths of the time.

    Pages of source code are in no branch, so those of a folder have the same navigation.
    """
    complete: Any = context.get("toctree")
    folder = page.rpartition("/")[0]

    def toctree(**options: Any) -> str:
        if doctree is not None:
            return complete(**options | {"collapse": True})
        if folder not in _NAVIGATION:
            _NAVIGATION[folder] = complete(**options | {"collapse": True})
        return _NAVIGATION[folder]

    if complete is not None:
        context["toctree"] = toctree


def _adopt(app: Any, doctree: Any) -> None:
    """Let each node know its own page. Nodes of `eval-rst` know a temporary one with all of Sphinx, which is stored."""
    for node in doctree.findall():
        node.document = doctree


_NAVIGATION: dict[str, str] = {}
"""HTML, by the folder of a page that is in no branch."""


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx reads the pages."""
    import_annotations()
    generate.write(HERE / "reference")
    (HERE / "llms.txt").write_text(llms_txt(HERE), encoding="utf-8")
    # Pages stay in use until the end, and torch has a million objects: collections took half of the time, for nothing.
    gc.collect()
    gc.freeze()
    gc.disable()
    app.connect("build-finished", lambda *_: (gc.unfreeze(), gc.enable()))
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-skip-member", _skip)
    app.connect("doctree-read", _adopt)
    app.connect("html-page-context", _shorten_navigation, priority=400)  # before the theme, which calls `toctree`
