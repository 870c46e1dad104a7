"""The other processes, as the environment of a process names them."""

from __future__ import annotations

import pytest

from purerl.errors import ConfigError
from purerl.placement.join import join_ranks
from purerl.placement.settings import Placement
from purerl.placement.world import World, check_world, find_world
from tests.placement.worlds import slurm

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
}


def test_torchrun_is_joined() -> None:
    assert find_world(TORCHRUN) == World(3, 4, 1, "host", 29500, "torchrun", 2)


def test_srun_is_joined() -> None:
    assert find_world(slurm(1, 2, 29501)) == World(1, 2, 1, "localhost", 29501, "srun", 2)
    nodes = {"SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "2"}
    world = find_world(slurm(4, 5, 29501) | nodes)
    assert world is not None
    assert (world.address, world.local_size) == ("gpu07", 1)


def test_the_port_of_a_job_depends_on_its_number() -> None:
    ports = set()
    for job in ("100", "101"):
        environment = slurm(0, 2, 0) | {"SLURM_JOB_ID": job}
        del environment["MASTER_PORT"]
        world = find_world(environment)
        assert world is not None
        ports.add(world.port)
    assert len(ports) == 2


def test_torchrun_under_srun_counts() -> None:
    world = find_world(slurm(0, 2, 1) | TORCHRUN)
    assert world is not None
    assert world.launcher == "torchrun"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},  # the script of sbatch, without srun
        slurm(0, 1, 29501),
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_one_process_is_no_world(environment: dict[str, str]) -> None:
    assert find_world(environment) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "4"}, "the environment of torchrun\n  got:  rank 4 of 4 processes"),
        ({"WORLD_SIZE": "two"}, "the variable WORLD_SIZE\n  got:  'two'\n  need: a number"),
    ],
)
def test_environment_that_does_not_fit_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_world(TORCHRUN | changes)
    assert str(error.value).startswith(message)


def test_setting_that_contradicts_the_world_is_refused() -> None:
    world = find_world(TORCHRUN)
    check_world(Placement(), world)
    check_world(Placement(ranks=2), world)
    with pytest.raises(ConfigError) as error:
        check_world(Placement(ranks=8), world)
    assert str(error.value) == (
        "placement.ranks\n"
        "  got:  8, but torchrun has started 2 processes on this host\n"
        "  need: the same number, or nothing: the processes that exist are used\n"
        "  do:   leave placement.ranks out, or let torchrun start 8"
    )
    unknown = find_world({name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"})
    check_world(Placement(ranks=2), unknown)
    with pytest.raises(ConfigError, match="got:  8, but .* has started 4 processes in total"):
        check_world(Placement(ranks=8), unknown)


def test_several_ranks_in_one_process_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError) as error, join_ranks(Placement(ranks=2), tmp_path):
        pass
    assert str(error.value).endswith("do:   start the script with torchrun --nproc-per-node 2")
