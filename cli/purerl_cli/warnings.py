"""The warnings of a run as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from purerl.system.terminal import escape

if TYPE_CHECKING:
    from purerl.monitoring.warnings.monitor import Episode

__all__ = ["show_episodes"]


def show_episodes(run: str, step: int, episodes: Sequence[Episode]) -> bool:
    """Print the warnings of `run`, whose last step is `step`. Return whether none of them is still present."""
    console = Console(highlight=False)
    count = {0: "no warnings", 1: "1 warning"}.get(len(episodes), f"{len(episodes)} warnings")
    console.print(Text(f"{escape(run)}: step {step:,}, {count}"), soft_wrap=True)
    for warning, end in episodes:
        steps = f"since step {warning.step:,}" if end is None else f"steps {warning.step:,} to {end:,}"
        style = "red bold" if end is None else "yellow"
        console.print(Text.assemble("\n", (escape(warning.name), style), f"  {steps}"), soft_wrap=True)
        for label, text in (("", warning.text), ("cause", warning.cause), ("try", warning.do)):
            console.print(Text(escape(f"  {label:<7}{text}")), soft_wrap=True)
    return all(episode.end is not None for episode in episodes)
