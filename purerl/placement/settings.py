"""Settings of the section `placement`."""

from __future__ import annotations

from attrs import frozen

from purerl.settings import above_zero, at_least, boolean, setting

__all__ = ["Placement"]


@frozen(kw_only=True)
class Placement:
    """How many processes train together, and how long they wait for each other."""

    ranks: int | None = setting(
        "processes on this host; if not given, 1, or as many as torchrun or Slurm has started",
        default=None,
        may_change="rounding",
        **at_least(1, 1024),
    )
    timeout: float = setting(
        "how long a rank waits for the others in a collective call; then the stacks of all ranks are written, and the "
        "run fails",
        unit="s",
        default=1800.0,
        may_change=True,
        **above_zero(),
    )
    heartbeat_timeout: float = setting(
        "how long a rank may give no sign of life before the others end",
        unit="s",
        default=60.0,
        may_change=True,
        **above_zero(),
    )
    check_memory: bool = setting(
        "refuse a run that needs more memory than there is, by its plan, before a model is loaded",
        default=True,
        may_change=True,
        **boolean(),
    )
