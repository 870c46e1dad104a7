"""Private files and folders: other users can neither open nor plant them, and links are not followed."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from purerl.errors import RunError
from purerl.system.private_files import kept_folder, open_private, private_folder, user_folder

STRANGER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
PROGRAM = """
import sys, time
from pathlib import Path
from purerl.system.private_files import private_folder
with private_folder("purerl-a-", Path(sys.argv[1])) as folder:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


def as_stranger(plant: Callable[[], object]) -> None:
    """Call `plant` in a process of another user."""
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            plant()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a forked process must not return
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def let_it_be_old(path: Path) -> None:
    os.utime(path, (1.0, 1.0))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files like /tmp, which strangers can reach."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only home directory of this user."""
    (folder := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda user: (_ for _ in ()).throw(KeyError(user)))
    return folder


# --- the folder of a user ----------------------------------------------------------------------------------------


def test_folder_of_a_user_is_private_and_in_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        assert user_folder() == home / ".cache" / "purerl"
    finally:
        os.umask(before)
    assert mode(home / ".cache") == mode(home / ".cache" / "purerl") == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other" / "cache"))
    assert user_folder() == home / "other" / "cache" / "purerl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_folder() == home / ".cache" / "purerl"


@pytest.mark.parametrize("unusable", ["", "/nonexistent", "/proc/nobody", "/dev/null", "no/home"])
def test_without_a_home_directory_it_is_in_the_runtime_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch, unusable: str
) -> None:
    (runtime := home / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", unusable)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert user_folder() == runtime / "purerl"


def test_without_any_other_it_is_in_the_directory_for_temporary_files(
    home: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    assert user_folder() == shared / f"purerl-{os.getuid()}"
    assert mode(user_folder()) == 0o700
    shared.chmod(0o777)
    with pytest.raises(RunError, match="no directory for private files"):
        user_folder()


@as_root
def test_home_directory_of_another_user_is_not_used(home: Path, shared: Path) -> None:
    os.chown(home, STRANGER, STRANGER)
    assert user_folder() == shared / f"purerl-{os.getuid()}"
    assert list(home.iterdir()) == []


@as_root
def test_folder_that_a_stranger_has_made_is_refused(home: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    planted = shared / f"purerl-{os.getuid()}"
    as_stranger(lambda: planted.mkdir(mode=0o700))
    with pytest.raises(RunError, match=rf"purerl-0' is not private\n  got:  it belongs to user {STRANGER}\n"):
        user_folder()
    planted.rmdir()
    (mine := shared / "mine").mkdir(mode=0o700)
    as_stranger(lambda: planted.symlink_to(mine))
    with pytest.raises(RunError, match="got:  a link, or no directory"):
        user_folder()


def link(path: Path) -> None:
    (target := path.with_name("target")).mkdir(mode=0o700)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("plant", "got"),
    [
        (link, "a link, or no directory"),
        (lambda path: path.symlink_to("nowhere"), "a link, or no directory"),
        (lambda path: path.write_text("x"), "a link, or no directory"),
        (os.mkfifo, "a link, or no directory"),
        (lambda path: (path.mkdir(), path.chmod(0o750)), "permissions 750"),
        (lambda path: (path.mkdir(), path.chmod(0o1777)), "permissions 1777"),
    ],
)
def test_folder_that_is_not_private_is_refused(home: Path, plant: Callable[[Path], object], got: str) -> None:
    (path := home / ".cache" / "purerl").parent.mkdir()
    plant(path)
    with pytest.raises(RunError, match=rf"got:  {got}\n(.*\n)+  do:   remove it, or set XDG_CACHE_HOME"):
        user_folder()
    with pytest.raises(RunError, match=rf"got:  {got}"):
        open_private(path / "file")


# --- files -------------------------------------------------------------------------------------------------------


def test_file_is_private_and_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with open_private(path) as file:
        file.write("text")
    with open_private(path) as file:
        assert file.read() == "text"
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)


def hard_link(path: Path) -> None:
    (target := path.with_name("target")).touch(mode=0o600)
    path.hardlink_to(target)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("plant", "got"),
    [
        (lambda path: (path.with_name("target").touch(), path.symlink_to("target")), "a link, or no file"),
        (lambda path: path.symlink_to("target"), "a link, or no file"),
        (lambda path: path.symlink_to(path.name), "a link, or no file"),
        (lambda path: path.mkdir(), "a link, or no file"),
        (socket_at, "a link, or no file"),
        (lambda path: os.mkfifo(path, 0o600), "no file"),
        (hard_link, "a file with several names"),
        (lambda path: (path.touch(), path.chmod(0o644)), "permissions 644"),
    ],
)
def test_file_that_is_not_private_is_refused(tmp_path: Path, plant: Callable[[Path], object], got: str) -> None:
    plant(tmp_path / "file")
    target = tmp_path / "target"
    before = target.exists()
    with pytest.raises(RunError, match=rf"got:  {got}"):
        open_private(tmp_path / "file")
    assert target.exists() == before


@as_root
def test_file_of_a_stranger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o600)
    os.chown(tmp_path / "file", STRANGER, STRANGER)
    with pytest.raises(RunError, match=f"got:  it belongs to user {STRANGER}"):
        open_private(tmp_path / "file")


# --- temporary folders -------------------------------------------------------------------------------------------


def test_folder_is_private_and_is_removed(shared: Path) -> None:
    with private_folder("purerl-a-") as folder:
        assert (folder.parent, mode(folder)) == (shared, 0o700)
        (folder / "file").touch()
    assert list(shared.iterdir()) == []
    with pytest.raises(KeyError), private_folder("purerl-a-"):
        raise KeyError
    assert list(shared.iterdir()) == []


def test_folder_of_a_process_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    old = Path(process.stdout.readline().strip())
    let_it_be_old(old)
    with private_folder("purerl-a-", tmp_path):
        assert (old / "inner" / "file").exists(), "its process lives"
    process.kill()
    process.wait()
    process.stdout.close()
    with private_folder("purerl-b-", tmp_path), private_folder("purerl-", tmp_path):
        assert old.exists(), "it has another prefix"
    with private_folder("purerl-a-", tmp_path):
        assert not old.exists()
    assert list(tmp_path.iterdir()) == []


def test_folder_for_logs_stays_until_the_next_process_makes_one(shared: Path) -> None:
    program = "from purerl.system.private_files import kept_folder; print(kept_folder('purerl-a-'))"

    def run() -> Path:
        environment = {**os.environ, "TMPDIR": str(shared)}
        output = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        return Path(output.stdout.decode().strip())

    first, own = run(), kept_folder("purerl-a-")
    assert mode(first) == 0o700
    for path in (first, own):
        let_it_be_old(path)
    second = run()
    assert sorted(shared.iterdir()) == sorted([own, second])


def made(path: Path, host: str = socket.gethostname(), lock: str = ".purerl-lock") -> Path:
    """A folder of a process that has ended."""
    path.mkdir()
    (path / lock).write_text(host)
    let_it_be_old(path)
    return path


def test_only_folders_that_were_made_here_are_removed(tmp_path: Path) -> None:
    used, target = made(tmp_path / "target"), tmp_path / "target"
    kept = [
        made(tmp_path / "purerl-a-otherhos", host="another host"),
        made(tmp_path / "purerl-a-no_lock_", lock="lock"),  # such as a run directory
        made(tmp_path / "purerl-a-longer-name"),
        made(tmp_path / "purerl-a-short"),
        used,
    ]
    (file := tmp_path / "purerl-a-isa_file").touch()
    (link := tmp_path / "purerl-a-isa_link").symlink_to(target)
    (new := tmp_path / "purerl-a-abcdnewx").mkdir()
    (new / ".purerl-lock").write_text(socket.gethostname())
    (tmp_path / "purerl-a-is_empty").mkdir()
    let_it_be_old(tmp_path / "purerl-a-is_empty")
    made(tmp_path / "purerl-a-unlocked")
    with private_folder("purerl-a-", tmp_path) as folder:
        assert sorted(tmp_path.iterdir()) == sorted([*kept, file, link, new, folder])
    assert (target / ".purerl-lock").exists()


def test_what_a_link_in_a_folder_points_to_stays(tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir()
    (target / "file").touch()
    old = made(tmp_path / "purerl-a-unlocked")
    (old / "link").symlink_to(target)
    (old / "inner").mkdir()
    (old / "inner" / "link").symlink_to(target)
    let_it_be_old(old)
    with private_folder("purerl-a-", tmp_path) as folder:
        (folder / "link").symlink_to(target)
    assert [path.name for path in (*tmp_path.iterdir(), *target.iterdir())] == ["target", "file"]


def test_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (target := tmp_path / "target").write_text(socket.gethostname())
    (old := tmp_path / "purerl-a-unlocked").mkdir()
    (old / ".purerl-lock").symlink_to(target)
    let_it_be_old(old)
    with private_folder("purerl-a-", tmp_path):
        assert old.exists()


@as_root
def test_folders_of_strangers_stay_and_do_no_harm(shared: Path) -> None:
    (mine := shared / "mine").mkdir(mode=0o700)
    (mine / "file").touch()

    def plant() -> None:
        made(shared / "purerl-a-stranger")
        (shared / "purerl-a-strange2").symlink_to(mine)
        os.mkfifo(shared / "purerl-a-strange3")

    as_stranger(plant)
    with private_folder("purerl-a-") as folder:
        names = ["purerl-a-stranger", "purerl-a-strange2", "purerl-a-strange3", "mine", folder.name]
        assert sorted(path.name for path in shared.iterdir()) == sorted(names)
        with pytest.raises(AssertionError):
            as_stranger(lambda: list(folder.iterdir()))
    assert (mine / "file").exists()


def test_where_everybody_may_rename_files_it_is_in_the_folder_of_the_user(home: Path, shared: Path) -> None:
    shared.chmod(0o777)
    with private_folder("purerl-a-") as folder:
        assert folder.parent == home / ".cache" / "purerl"
    shared.chmod(0o2770)
    with private_folder("purerl-a-") as folder:
        assert folder.parent == shared
