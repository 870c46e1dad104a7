"""Shell completion of recipes and settings."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["recipe_names", "setting_keys"]


def recipe_names(incomplete: str) -> list[str]:
    """The recipes of purerl, and the TOML files in the working directory. No recipe is imported."""
    from purerl.recipes import names

    files = [str(path) for path in Path().glob("*.toml")]
    return [name for name in (*names(), *files) if name.startswith(incomplete)]


def setting_keys(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The settings of the recipe on the command line, with values and meanings; empty if the recipe is unknown.

    Modifiers that the recipe does not have are settings of its algorithm too.
    """
    from purerl.config.listing import toml
    from purerl.errors import PurerlError
    from purerl.explain.catalog import modifiers
    from purerl.recipes import explain_recipe

    # While an option has no value yet, the arguments before it are not parsed.
    recipe = context.args[0] if context.args else context.params["recipe"]
    try:
        settings = explain_recipe(recipe, ())
    except PurerlError:
        return []
    found = {setting.key: (setting.value, setting.meaning) for setting in settings}
    for entry in modifiers():
        default = toml(entry.settings[0][1]) if entry.settings else "true"
        found.setdefault(f"algorithm.{entry.name}", (default, entry.title))
    return [(f"{key}={value}", meaning) for key, (value, meaning) in found.items() if key.startswith(incomplete)]
