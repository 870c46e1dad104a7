"""Runs on two ranks that divide the model, and are killed while they write checkpoints in the background."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from attrs import evolve

from purerl.backends.hf.mesh import Mesh
from purerl.config.schema import RunConfig
from purerl.errors import CheckpointError
from purerl.loop.train import train
from purerl.settings import Model
from purerl.store.checkpoint import saved_steps
from purerl.store.settings import Checkpoint
from tests.loop.runs import records, without_times
from tests.loop.small import small_real
from tests.placement.worlds import Action, Kill, assert_close, run_world
from tests.store.damage import flip

pytestmark = pytest.mark.parallel

STEPS = 5
EVENTS = 20  # at the end of a run, which are not reached any more if there are a few less


def _config(**mesh: int) -> RunConfig:
    config = small_real(STEPS, model=Model("{run}/prepared/model", dtype="float64"))
    checkpoint = Checkpoint(every=1, keep=2, background=True)
    return evolve(config, checkpoint=checkpoint, trainer=evolve(config.trainer, mesh=Mesh(**mesh)))


SHARDED = _config(shard=2)


class Expected(NamedTuple):
    """A run without an interruption, and the number of events of each rank."""

    directory: Path
    events: tuple[int, ...]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    directory = tmp_path_factory.mktemp("expected") / "run"
    ended = run_world(SHARDED, directory)
    assert [rank.status for rank in ended] == [0, 0], ended
    return Expected(directory, tuple(rank.events for rank in ended))


def _assert_same_bits(directory: Path, expected: Path) -> None:
    assert without_times(records(directory)) == without_times(records(expected))
    weights = [path / "final/model.safetensors" for path in (directory, expected)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_each_rank_writes_its_part(expected: Expected) -> None:
    for step in (STEPS - 1, STEPS):
        names = {path.name for path in (expected.directory / f"checkpoints/{step:06d}/policy").iterdir()}
        assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}


@pytest.mark.parametrize("rank", [0, 1])
def test_run_killed_at_random_events_resumes_bit_for_bit(rank: int, tmp_path: Path, expected: Expected) -> None:
    rng, kills = random.Random(rank), 0
    while kills < 2:  # a run that is resumed late may have too few events left
        ended = run_world(SHARDED, tmp_path / "run", action=Kill(rank, rng.randint(1, expected.events[rank] - EVENTS)))
        kills += ended[rank].status == -9
        assert ended[1 - rank].status in (0, 1), ended
        if [each.status for each in ended] == [0, 0]:
            break
    assert kills
    run_world(SHARDED, tmp_path / "run")
    _assert_same_bits(tmp_path / "run", expected.directory)


@pytest.mark.parametrize("rank", [0, 1])
def test_run_killed_while_it_writes_is_continued_by_other_meshes(rank: int, tmp_path: Path, expected: Expected) -> None:
    """The rank dies when it opens its file of the third checkpoint, while the fourth step is computed."""
    ended = run_world(SHARDED, tmp_path / "one", action=Kill(rank, f"000003/policy/__{rank}_0.distcp"))
    assert (ended[rank].status, ended[1 - rank].status) == (-9, 1), ended
    assert saved_steps(tmp_path / "one/checkpoints") == {1, 2}
    if rank == 0:
        train(_config(), directory=tmp_path / "one")
    else:
        replicated = run_world(_config(replicate=2), tmp_path / "one")
        assert [each.status for each in replicated] == [0, 0], replicated
    assert_close(tmp_path / "one", expected.directory)


def test_damaged_and_missing_files_of_a_rank_are_noticed(tmp_path: Path) -> None:
    run_world(SHARDED, tmp_path / "run", action=Kill(1, "000005/policy/__1_0.distcp"))
    assert saved_steps(tmp_path / "run/checkpoints") == {3, 4}
    flip(tmp_path / "run/checkpoints/000004/policy/__1_0.distcp")
    [ended, _] = run_world(SHARDED, tmp_path / "run", action=Kill(1, "000004/policy/__1_0.distcp"))
    assert ended.console.startswith("addition: resumed from step 3\n")
    assert (tmp_path / "run/checkpoints/000004.unused").is_dir()
    (tmp_path / "run/checkpoints/000003/policy/__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="000003: policy/__0_0.distcp is missing"):
        train(_config(), directory=tmp_path / "run")


def test_rank_that_cannot_write_ends_the_run_and_keeps_earlier_checkpoints(tmp_path: Path, expected: Expected) -> None:
    """Files of rank 1 may have 64 KiB, which is less than its part of the model, when the third one may be written."""
    directory = tmp_path / "run"
    ended = run_world(SHARDED, directory, action=Action(1, 4, "small files"))
    assert [each.status for each in ended] == [1, 1], ended
    [failed] = set(re.findall("checkpoint '[^']*/checkpoints/0*([34])' cannot be written", ended[0].console))
    assert "File too large" in ended[0].console
    assert f"from '{directory}/checkpoints/{int(failed) - 1:06d}', which is kept" in ended[0].console
    kept = {path.name for path in (directory / "checkpoints").iterdir()}
    assert kept == {f"{int(failed) - before:06d}" for before in (1, 2)}
    run_world(SHARDED, directory)
    _assert_same_bits(directory, expected.directory)
