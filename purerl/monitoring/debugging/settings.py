"""Settings of the section `debug`, and their check."""

from __future__ import annotations

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import above_zero, boolean, no_effect, setting

__all__ = ["Debug", "check_debug"]


@frozen(kw_only=True)
class Debug:
    """Debugging outputs of a run in its directory: profiles, memory snapshots, stacks."""

    profile_steps: tuple[int, ...] = setting(
        "the steps that torch.profiler records, each in a file of the directory profile, for Perfetto or Chrome",
        default=(),
        may_change=True,
    )
    profile_memory: bool = setting(
        "also record every allocation of memory in these steps", default=False, may_change=True, **boolean()
    )
    memory_snapshot: bool = setting(
        "write the allocations on the GPU in these steps, for pytorch.org/memory_viz",
        default=False,
        may_change=True,
        **boolean(),
    )
    gradient_steps: tuple[int, ...] = setting(
        "the steps whose gradients are measured: norms of rows, noise scale, cosines of the terms of a loss. Each of "
        "them costs a forward and a backward pass of every row on its own, and of the step",
        default=(),
        may_change=True,
    )
    stack_dump_after: float | None = setting(
        "if a step takes longer, the stacks of all threads are written to stacks.txt, and again after the same time; "
        "the run continues",
        unit="s",
        default=None,
        may_change=True,
        **above_zero(),
    )

    def __attrs_post_init__(self) -> None:
        for name in ("profile_steps", "gradient_steps"):
            if not all(type(step) is int and step > 0 for step in getattr(self, name)):
                raise ConfigError(name, got=list(getattr(self, name)), need="numbers of steps, from 1")
        for name in ("profile_memory", "memory_snapshot"):
            if getattr(self, name) and not self.profile_steps:
                raise no_effect(name, value=True, need="steps to record", do="set profile_steps, for example to [3]")


def check_debug(settings: Debug, max_steps: int | None) -> None:
    """Raise ConfigError for steps after the end of the run, and for a memory snapshot without a GPU."""
    for name in ("profile_steps", "gradient_steps"):
        late = [step for step in getattr(settings, name) if max_steps is not None and step > max_steps]
        if late:
            raise no_effect(f"debug.{name}", late, f"steps of the run, which has {max_steps}")
    if settings.memory_snapshot:
        from purerl.system.devices.accelerator import memory_history

        if memory_history() is None:
            need = "an accelerator whose allocations torch records"
            do = "leave it out; debug.profile_memory records allocations on every device"
            raise no_effect("debug.memory_snapshot", value=True, need=need, do=do)
