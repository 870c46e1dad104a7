"""Shell completion of recipes and settings."""

from __future__ import annotations

from pathlib import Path

import typer

from purerl.system.garbage import without_collections

__all__ = ["recipe_names", "setting_keys"]


def recipe_names(incomplete: str) -> list[str]:
    """The recipes of purerl, and the TOML files in the working directory. No recipe is imported."""
    from purerl.recipes import names

    files = [str(path) for path in Path().glob("*.toml")]
    return [name for name in (*names(), *files) if name.startswith(incomplete)]


@without_collections()
def setting_keys(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The settings of the recipe on the command line, with values and meanings; empty if the recipe is unknown.

    After ``KEY=``, the values of a setting with few of them. Modifiers that the recipe does not have are settings of
    its algorithm too.
    """
    from purerl.errors import PurerlError
    from purerl.recipes import explain_recipe

    # While an option has no value yet, the arguments before it are not parsed.
    recipe = context.args[0] if context.args else context.params["recipe"]
    try:
        settings = explain_recipe(recipe, ())
    except PurerlError:
        return []
    key, equals, value = incomplete.partition("=")
    if equals:
        # Texts without quotes: what is completed must begin with what was typed.
        choices = [choice.strip('"') for setting in settings if setting.key == key for choice in setting.choices]
        return [(f"{key}={choice}", "") for choice in choices if choice.startswith(value)]
    found = {setting.key: (setting.value, setting.meaning) for setting in settings}
    if "algorithm.".startswith(key) or key.startswith("algorithm."):
        found = _modifiers() | found
    return [(f"{name}={value}", meaning) for name, (value, meaning) in found.items() if name.startswith(key)]


def _modifiers() -> dict[str, tuple[str, str]]:
    """The default value and the meaning of each modifier, by its key."""
    from purerl.config.listing import toml
    from purerl.explain.catalog import modifiers

    return {
        f"algorithm.{entry.name}": (toml(entry.settings[0][1]) if entry.settings else "true", entry.title)
        for entry in modifiers()
    }
