"""The processes that a launcher has started: torchrun, `purerl train`, or srun.

The environment of a process says which rank it is. torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. `purerl train` sets the same, but a folder in place of the last two. srun sets
SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and SLURM_STEP_NODELIST; rank 0 then opens the port MASTER_PORT, or one that
depends on the number of the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from purerl.errors import ConfigError
from purerl.placement.settings import Placement
from purerl.system.access_tokens import is_loopback

__all__ = ["FOLDER_VARIABLE", "World", "check_world", "find_world", "first_host"]

FOLDER_VARIABLE = "PURERL_RANKS_FOLDER"
"""The variable with the folder in which the ranks that `purerl train` has started meet."""

_FIRST_PORT, _NUM_PORTS = 15000, 15000


@frozen
class World:
    """The number of this process among all, and where they meet.

    rank, size    its number among all processes
    local_rank    its number on this host
    address, port where the store of the processes is
    launcher      what has started them, for messages
    local_size    the number of processes on this host; None if the launcher does not say it
    folder        where they meet instead, if `purerl train` has started them
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    launcher: str
    local_size: int | None = None
    folder: Path | None = None

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes are on this host, as far as the launcher says it."""
        return self.local_size == self.size or self.folder is not None or is_loopback(self.address)

    @property
    def place(self) -> str:
        """The place at which the processes meet, for messages."""
        return f"{self.address}:{self.port}" if self.folder is None else str(self.folder)


def find_world(environment: Mapping[str, str]) -> World | None:
    """The processes that `environment` describes; None if there is only this one.

    Raises: ConfigError if variables are missing, or are not numbers that fit together.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        world = _torchrun(environment)
    elif "SLURM_PROCID" in environment and _is_step(environment):
        world = _slurm(environment)
    else:
        return None
    if not 0 <= world.rank < world.size:
        got = f"rank {world.rank} of {world.size} processes"
        raise ConfigError(f"the environment of {world.launcher}", got=got, need="a rank below the number of processes")
    return world if world.size > 1 else None


def check_world(settings: Placement, world: World | None) -> None:
    """Refuse `placement.ranks` if a launcher has started another number of processes on this host, or fewer in total.

    Raises: ConfigError.
    """
    if world is not None and settings.kind == "ray":
        need = "one process, the driver: Ray starts the others"
        do = f"start it without {world.launcher}"
        raise ConfigError("placement.kind", got=f"'ray', in one of {world.size} processes", need=need, do=do)
    if world is None or settings.ranks is None:
        return
    number = world.local_size or min(settings.ranks, world.size)
    where = "on this host" if world.local_size else "in total"
    if settings.ranks == number:
        return
    raise ConfigError(
        "placement.ranks",
        got=f"{settings.ranks}, but {world.launcher} has started {number} processes {where}",
        need="the same number, or nothing: the processes that exist are used",
        do=f"leave placement.ranks out, or let {world.launcher} start {settings.ranks}",
    )


def _torchrun(environment: Mapping[str, str]) -> World:
    rank, size = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
    local_rank = _number(environment, "LOCAL_RANK", default=rank)
    if FOLDER_VARIABLE in environment:
        return World(rank, size, local_rank, "", 0, "purerl train", size, Path(environment[FOLDER_VARIABLE]))
    has_agent = "TORCHELASTIC_RUN_ID" in environment
    local_size = environment.get("LOCAL_WORLD_SIZE")
    return World(
        rank,
        size,
        local_rank,
        _text(environment, "MASTER_ADDR"),
        _number(environment, "MASTER_PORT"),
        "torchrun" if has_agent else "the environment (WORLD_SIZE)",
        None if local_size is None else _number(environment, "LOCAL_WORLD_SIZE"),
    )


def _is_step(environment: Mapping[str, str]) -> bool:
    """Whether srun has started this process. The script of sbatch has a SLURM_PROCID too, and runs once."""
    return "SLURM_STEP_NODELIST" in environment or "SLURM_STEP_NUM_TASKS" in environment


def _slurm(environment: Mapping[str, str]) -> World:
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    job, step = (_number(environment, name, default=0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = _FIRST_PORT + (job * 7 + step) % _NUM_PORTS
    nodes = environment.get("SLURM_STEP_NODELIST", "127.0.0.1")
    return World(
        _number(environment, "SLURM_PROCID"),
        _number(environment, size),
        _number(environment, "SLURM_LOCALID", default=0),
        environment.get("MASTER_ADDR", first_host(nodes)),
        _number(environment, "MASTER_PORT", default=port),
        "srun",
        _tasks_on(environment),
    )


def _tasks_on(environment: Mapping[str, str]) -> int | None:
    """The number of tasks on this host, of a list such as ``2(x3),1``."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE")
    if text is None or not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text):
        return None
    pairs = (re.findall(r"\d+", part) for part in text.split(","))
    counts = [int(numbers[0]) for numbers in pairs for _ in range(int(numbers[1]) if len(numbers) > 1 else 1)]
    node = _number(environment, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else None


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's notation.

    >>> first_host("gpu[003-007,9],login1"), first_host("a1,a2"), first_host("r[1-2]n[04-05]-ib")
    ('gpu003', 'a1', 'r1n04-ib')
    """
    match = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", match[0]) if match else nodes


def _text(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        do = "start the processes with torchrun, or set it as torchrun does"
        raise ConfigError(f"the variable {name} is missing", need="the address of rank 0", do=do)
    return environment[name]


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        do = "start the processes with torchrun or srun, which set it"
        raise ConfigError(f"the variable {name}", got=repr(environment.get(name)), need="a number", do=do)
    return int(text)
