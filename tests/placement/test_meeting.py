"""Ranks meet among themselves: with the secret of the run, in a folder on one host, without pickles."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist

from purerl.errors import ConfigError, EngineError, RunError
from purerl.placement import meeting
from purerl.placement.meeting import PRIVATE, SECRET_VARIABLE, Meeting, meet, prepare_folder, read_secret
from purerl.placement.process_group import process_group
from purerl.placement.world import World
from purerl.ranks import current_ranks
from purerl.system.messages import encode
from purerl.system.private_files import private_folder
from purerl.system.run_secret import derive_token, new_secret

SECRET = bytes(range(32))
DEADLINE = 60.0  # seconds


def _store() -> Any:
    return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - torch documents it


def _meet(store: Any, secrets: list[bytes], check: Callable[[Meeting], object], timeout: float = DEADLINE) -> list[Any]:
    """The result of `check` of each rank, or its error; the ranks are threads, which meet in `store`."""
    results: list[Any] = [None] * len(secrets)
    done = threading.Barrier(len(secrets))
    number = next(meeting._STARTS)

    def run(rank: int) -> None:
        with ExitStack() as stack:
            try:
                results[rank] = check(meet(store, rank, len(secrets), secrets[rank], timeout, stack))
            except Exception as error:  # noqa: BLE001 - it is a result
                results[rank] = error
            done.wait()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(secrets))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meeting, "_STARTS", iter([number] * len(secrets)))  # each rank is a process of its own
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def test_ranks_of_one_host_meet_in_a_folder_and_share_a_new_secret() -> None:
    def secret_and_folder(own: Meeting) -> tuple[bytes, int]:
        [folder] = {path for path in Path(own.store.path).parents if path.name.startswith("purerl-ranks-")}
        own.open_store("a").set("key", b"value")
        assert own.open_store("a").get("key") == b"value"
        return own.secret, stat.S_IMODE(folder.stat().st_mode)

    first, second = _meet(_store(), [SECRET] * 2, secret_and_folder), _meet(_store(), [SECRET] * 2, secret_and_folder)
    assert first[0] == first[1]
    assert first[0][1] == 0o700
    assert len({first[0][0], second[0][0], SECRET}) == 3, "messages of another start are not those of this one"


@pytest.mark.parametrize("is_visible", [True, False])
def test_ranks_of_several_hosts_sign_what_they_write(monkeypatch: pytest.MonkeyPatch, *, is_visible: bool) -> None:
    """Also those of one host that do not see the folder of rank 0."""
    if is_visible:
        monkeypatch.setattr(meeting, "this_host", lambda: threading.current_thread().name)
    else:
        monkeypatch.setattr(meeting, "_is_own", lambda folder: False)
    shared = _store()

    def exchange(own: Meeting) -> bytes:
        store = own.open_store("a")
        store.set("key", b"value")
        return store.get("key")

    assert _meet(shared, [SECRET] * 2, exchange) == [b"value"] * 2
    signed = [key for key in shared.list_keys() if "messages" in key]
    assert len(signed) == 1
    assert shared.get(signed[0]).endswith(b"value")
    assert len(shared.get(signed[0])) > len(b"value")


def test_a_rank_without_the_secret_is_refused() -> None:
    results = _meet(_store(), [SECRET, new_secret()], lambda own: own)
    assert [type(result) for result in results] == [EngineError] * 2
    assert all("a message that no process of this run has sent" in str(result) for result in results)


class _Payload:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return partial(Path.touch, self._marker), ()


@pytest.mark.parametrize("kind", ["pickle", "message"])
def test_what_a_stranger_leaves_in_the_store_of_torchrun_is_refused(kind: str, tmp_path: Path) -> None:
    """He is faster than rank 1. Neither a pickle nor a message of purerl is read."""
    marker, shared = tmp_path / "marker", _store()
    forged = pickle.dumps(_Payload(marker)) if kind == "pickle" else encode([bytes(32), "a host"])
    shared.set(f"purerl/{next(meeting._STARTS) + 1}/start/1", forged)
    with ExitStack() as stack, pytest.raises(EngineError, match="a message that no process of this run has sent"):
        meet(shared, 0, 2, SECRET, 1.0, stack)
    assert not marker.exists()


# --- the secret of a run directory ---------------------------------------------------------------------------------


def test_rank_0_writes_a_secret_that_only_its_user_can_read(tmp_path: Path) -> None:
    found: list[bytes] = []
    other = threading.Thread(target=lambda: found.append(read_secret(tmp_path, is_first=False, timeout=DEADLINE)))
    other.start()
    secret = read_secret(tmp_path, is_first=True, timeout=DEADLINE)
    other.join()
    assert found == [secret]
    assert read_secret(tmp_path, is_first=True, timeout=0.0) == secret, "a run that is resumed has the same one"
    assert stat.S_IMODE((tmp_path / PRIVATE).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / PRIVATE / "secret").stat().st_mode) == 0o600


def test_a_secret_that_others_can_read_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    read_secret(tmp_path, is_first=True, timeout=0.0)
    path = tmp_path / PRIVATE / "secret"
    path.chmod(0o644)
    with pytest.raises(RunError, match="permissions 644"):
        read_secret(tmp_path, is_first=True, timeout=0.0)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(RunError, match="a link"):
        read_secret(tmp_path, is_first=True, timeout=0.0)


def test_a_secret_of_the_environment_is_used_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next run in this process has it too."""
    monkeypatch.setattr(meeting, "_given", [])
    monkeypatch.setenv(SECRET_VARIABLE, SECRET.hex())
    assert read_secret(tmp_path / "run", is_first=False, timeout=0.0) == SECRET
    assert SECRET_VARIABLE not in os.environ
    assert read_secret(tmp_path / "next", is_first=False, timeout=0.0) == SECRET
    assert SECRET_VARIABLE not in os.environ
    assert not (tmp_path / "run").exists()
    for text in ("", "password", SECRET.hex()[:-2], "xy" * 32):
        monkeypatch.setenv(SECRET_VARIABLE, text)
        with pytest.raises(ConfigError, match="need: 64 random hexadecimal digits") as raised:
            read_secret(tmp_path, is_first=False, timeout=0.0)
        assert text not in str(raised.value).partition("need:")[0] or not text


def test_a_rank_that_finds_no_secret_says_where_it_has_looked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no secret\n  need: the secret that rank 0 writes, within placement.timeout"):
        read_secret(tmp_path, is_first=False, timeout=0.0)


# --- stores of torch -------------------------------------------------------------------------------------------------


def test_the_store_in_a_folder_is_never_destroyed(tmp_path: Path) -> None:
    """Its destructor writes into the file, and waits for a folder that another rank removes meanwhile."""
    prepare_folder(tmp_path)
    own = meeting.meet_in_folder(tmp_path, DEADLINE)
    own.store.set("key", "value")
    before = (tmp_path / "torch").read_bytes()
    del own
    gc.collect()
    assert (tmp_path / "torch").read_bytes() == before


def test_all_runs_of_a_process_use_one_store_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is faster than rank 0 could otherwise meet it in the store of the run before."""
    monkeypatch.setattr(meeting, "_stores", {})
    hosts, host = (World(0, 2, 0, socket.gethostname(), 0, "srun", size) for size in (1, 2))
    assert meeting.network_store(host, DEADLINE) is not meeting.network_store(host, DEADLINE)
    assert meeting.network_store(hosts, DEADLINE) is meeting.network_store(hosts, DEADLINE)


# --- process groups --------------------------------------------------------------------------------------------------


def _objects(folder: Path, rank: int, marker: Path, results: Any) -> None:
    """Gather objects with torch's own function: as the ranks do, and as a stranger would who got into the group."""
    world = World(rank, 2, rank, "", 0, "a test", 2, folder)
    with process_group(world, bytes, DEADLINE):
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, {"rank": rank})
        token = derive_token("a")
        sent = ("a" * 2**20, (rank, Path("x")), [1.5] * 20)
        received = current_ranks().gather(sent)
        error = ""
        if rank == 1:
            dist.distributed_c10d._pickler = pickle.Pickler  # pyright: ignore[reportAttributeAccessIssue]
        try:
            dist.all_gather_object([None, None], _Payload(marker) if rank == 1 else None)
        except EngineError as raised:
            error = str(raised)
        results.put((rank, gathered, received, token, error))
        dist.barrier()


def test_objects_of_libraries_are_signed_and_values_of_ranks_are_data(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with private_folder("purerl-ranks-", tmp_path) as folder:
        prepare_folder(folder)
        arguments = [(folder, rank, tmp_path / "marker", results) for rank in range(2)]
        ranks = [context.Process(target=_objects, args=each) for each in arguments]
        for rank in ranks:
            rank.start()
        first, second = sorted(results.get(timeout=timedelta(minutes=2).total_seconds()) for _ in ranks)
        for rank in ranks:
            rank.join()
    assert first[1] == second[1] == [{"rank": 0}, {"rank": 1}]
    assert first[2] == second[2] == [("a" * 2**20, (rank, Path("x")), [1.5] * 20) for rank in range(2)]
    assert first[3] == second[3], "both have the secret of this start"
    assert "a collective call of objects" in first[4]
    assert "without the code of this run" in first[4]
    assert not (tmp_path / "marker").exists()
