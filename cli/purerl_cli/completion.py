"""What the shell offers where a recipe or a setting is typed."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules

import typer

import purerl

__all__ = ["recipe_names", "setting_keys"]


def recipe_names(incomplete: str) -> list[str]:
    """Our recipes, and the TOML files here; nothing is imported for it."""
    ours = [module.name for module in iter_modules([str(Path(purerl.__file__).parent / "recipes")])]
    files = [str(path) for path in Path().glob("*.toml")]
    return [name for name in (*ours, *files) if name.startswith(incomplete)]


def setting_keys(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The settings of the recipe that stands on the line, with their values; none where there is no such recipe."""
    from purerl.errors import PurerlError
    from purerl.recipes import explained

    # After an option that lacks its value, what stood before it is still among the words that were not understood.
    recipe = context.args[0] if context.args else context.params["recipe"]
    try:
        settings = explained(recipe, ())
    except PurerlError:
        return []
    return [(f"{one.key}={one.value}", one.meaning) for one in settings if one.key.startswith(incomplete)]
