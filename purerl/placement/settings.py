"""Settings of the section `placement`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from purerl.settings import above_zero, at_least, boolean, no_effect, one_of, setting

__all__ = ["Actors", "Placement"]


@frozen(kw_only=True)
class Actors:
    """Processes that Ray starts for engines, and the resources of each.

    One or more GPUs are for this process alone. Processes with a share, such as 0.5, may be on the same GPU.
    """

    count: int = setting("number of processes", default=1, may_change="rounding", **at_least(1, 4096))
    gpus: float | None = setting(
        "GPUs of each process, or its share of one; if not given, 1 if the cluster has any, otherwise 0",
        default=None,
        may_change="rounding",
        need="an integer, or a number between 0 and 1",
        valid=lambda value: 0 <= value < math.inf and (value < 1 or value == int(value)),
    )
    cpus: int = setting(
        "CPU cores of each process, and its threads of torch", default=1, may_change="rounding", **at_least(1, 1024)
    )
    spread: bool = setting(
        "on different hosts, if possible; otherwise on as few as possible", default=False, may_change=True, **boolean()
    )


@frozen(kw_only=True)
class Placement:
    """The processes of a run: their number and hosts, and the time that they wait for each other."""

    kind: str = setting(
        "local: ranks that torchrun, Slurm or `purerl train` starts; ray: actors of Ray, on one host or many",
        default="local",
        may_change="rounding",
        **one_of("local", "ray"),
    )
    ranks: int | None = setting(
        "processes on this host; if not given, 1, or as many as torchrun or Slurm has started",
        default=None,
        may_change="rounding",
        **at_least(1, 1024),
    )
    address: str | None = setting(
        "the Ray cluster to join: HOST:PORT, or auto for the one of this host; if not given, a local Ray is started",
        default=None,
        may_change=True,
    )
    trainers: Actors | None = setting(
        "the processes of all trainers that are not in placement.roles; if not given, one",
        default=None,
        may_change="rounding",
    )
    generators: Actors | None = setting(
        "the processes of each generator, every one with an engine of its own; if not given, one",
        default=None,
        may_change="rounding",
    )
    roles: Mapping[str, Actors] = setting(
        "roles that have processes of their own, such as critic or reference; policy is the name of the run's model",
        factory=dict,
        may_change="rounding",
    )
    timeout: float = setting(
        "how long a rank waits for the others in a collective call, and how long a call of an actor of Ray may take; "
        "then the stacks of all ranks are written, and the run fails",
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

    def __attrs_post_init__(self) -> None:
        if self.kind == "ray":
            if self.ranks is not None:
                raise no_effect("ranks", self.ranks, 'placement.kind = "local"', "set trainers.count")
            return
        for name in ("address", "trainers", "generators", "roles"):
            if value := getattr(self, name):
                raise no_effect(name, value, 'placement.kind = "ray"', f"set kind, or leave {name} out")

    def num_ranks(self, role: str, ranks: int) -> int:
        """The number of ranks of the trainer of `role`: `ranks`, or that of its actors of Ray."""
        return ranks if self.kind == "local" else (self.roles.get(role) or self.trainers or Actors()).count

    @property
    def num_trainers(self) -> int:
        """The number of processes that train the policy together, as far as the settings say it."""
        return self.num_ranks("policy", self.ranks or 1)

    @property
    def count_key(self) -> str:
        """The setting that has `num_trainers`."""
        if self.kind == "local":
            return "placement.ranks"
        return "placement.roles.policy.count" if "policy" in self.roles else "placement.trainers.count"
