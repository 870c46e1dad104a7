"""Shell completion of recipes and settings."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules

import typer

import purerl

__all__ = ["recipe_names", "setting_keys"]


def recipe_names(incomplete: str) -> list[str]:
    """The recipes of purerl, and the TOML files in the working directory. No recipe is imported."""
    recipes = [module.name for module in iter_modules([str(Path(purerl.__file__).parent / "recipes")])]
    files = [str(path) for path in Path().glob("*.toml")]
    return [name for name in (*recipes, *files) if name.startswith(incomplete)]


def setting_keys(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The settings of the recipe on the command line, with values and meanings; empty if the recipe is unknown."""
    from purerl.errors import PurerlError
    from purerl.recipes import explain_recipe

    # While an option has no value yet, the arguments before it are not parsed.
    recipe = context.args[0] if context.args else context.params["recipe"]
    try:
        settings = explain_recipe(recipe, ())
    except PurerlError:
        return []
    return [(f"{s.key}={s.value}", s.meaning) for s in settings if s.key.startswith(incomplete)]
