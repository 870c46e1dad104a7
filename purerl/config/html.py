"""A configuration as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from purerl.config.listing import Setting, explain

__all__ = ["as_html"]

_HEAD = ("setting", "value", "unit", "meaning")


def as_html(config: Any) -> str:
    """A table of the settings of `config` that differ from their defaults, and a folded one of all settings.

    Everything is escaped. The result has no scripts and no styles.
    """
    settings = explain(config, recipe="set")
    changed = [setting for setting in settings if setting.source != "default"]
    summary = f"<summary>all {len(settings)} settings, with defaults</summary>"
    title = f"<b>{escape(type(config).__name__)}</b> {escape(getattr(config, 'name', ''))}"
    return f"{title}{_table(changed)}<details>{summary}{_table(settings)}</details>"


def _table(settings: Iterable[Setting]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    rows = "".join(
        f"<tr><td><code>{escape(setting.key)}</code></td><td><code>{escape(setting.value)}</code></td>"
        f"<td>{escape(setting.unit)}</td><td>{escape(setting.meaning)}</td></tr>"
        for setting in settings
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
