"""Settings of the section `checkpoint`."""

from __future__ import annotations

from attrs import frozen

from purerl.settings import at_least, setting

__all__ = ["Checkpoint"]


@frozen(kw_only=True)
class Checkpoint:
    """When checkpoints are written; there is always one at the end."""

    every: int = setting("steps between checkpoints", default=20, **at_least(1))
    keep: int = setting("number of newest checkpoints that stay on disk", default=2, **at_least(1))
