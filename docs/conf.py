"""How Sphinx builds the documentation: `nox -s docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import purerl  # noqa: E402 - after the path has been set
from docs import generate  # noqa: E402
from docs.generate.reference import as_rst  # noqa: E402
from purerl import types  # noqa: E402

project = "purerl"
version = release = purerl.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"purerl {version}"
html_static_path = ["_static"]
html_css_files = ["purerl.css"]
html_show_copyright = False

default_role = "py:obj"  # `name` in a docstring: a link, where there is something of that name
highlight_language = "text"  # equations
autodoc_default_options = {"members": True, "ignore-module-all": True, "no-value": True}
autodoc_member_order = "bysource"
autodoc_type_aliases = {name: name for name in types.__all__}  # [rows, time] says more than Tensor
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 100


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _skip(app: Any, what: str, name: str, thing: Any, *_: Any) -> bool | None:
    """Fields of a NamedTuple are in its signature, and explained in its docstring."""
    return True if type(thing).__name__ == "_tuplegetter" else None


def setup(app: Any) -> None:
    """Make what is made from the package, before Sphinx looks for pages."""
    generate.write(HERE)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-skip-member", _skip)
