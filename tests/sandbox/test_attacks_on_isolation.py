"""Programs that try to reach the host, its files and processes."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from purerl.sandbox import Pool, SandboxSettings, run, run_python
from purerl.sandbox.supervisor import landlock

from .attacks import LIMITS, PRELUDE, marked, marker, open_pool, processes_with, report, report_of

SECRET = "purerl-secret-of-the-host"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        with open_pool("auto") as opened:
            yield opened


@pytest.fixture(scope="module", params=["all", "without_landlock"])
def any_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """With and without the layer that has the same purpose as others, so that those are tested too."""
    with Pool(SandboxSettings(layers=request.param, max_concurrent_runs=1), limits=LIMITS) as opened:
        yield opened


# --- files, environment, /proc -----------------------------------------------------------------------------------


def test_files_of_the_host_cannot_be_read(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    shared = Path("/dev/shm", marker())
    shared.write_text(SECRET)
    try:
        paths = [tmp_path / "secret", shared, Path(__file__), Path.home(), "/etc/shadow", "/etc/hostname", "/etc/ssh",
                 "/var", "/home", "/run", "/sys", "/boot", "/opt", "/mnt", "/srv"]  # fmt: skip
        read = "open(p).read() if not os.path.isdir(p) else os.listdir(p)"
        found = report_of(pool, f"print(json.dumps([attempt(lambda: {read}) for p in {[str(p) for p in paths]!r}]))")
    finally:
        shared.unlink()
    homes = {str(Path.home())} & {"/root"}  # an empty directory, or the way to the interpreter
    assert {path for path, outcome in zip(map(str, paths), found, strict=True) if outcome == "done"} <= homes


def test_the_only_directories_are_those_of_the_system_and_of_python(pool: Pool) -> None:
    top = set(report_of(pool, "print(json.dumps(os.listdir('/')))"))
    known = {
        ".private",
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "root",
        "sandbox",
        "sbin",
        "tmp",
        "usr",
    }
    prefixes = (sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve()))
    assert report_of(pool, "print(json.dumps(os.listdir('/.private')))") == []
    assert top <= known | {prefix.split("/")[1] for prefix in prefixes} | {"nix", "gnu"}


def _scan(words: list[bytes]) -> str:
    """A program that counts words in its whole memory, where they never are as a part of the program itself."""
    hidden = [bytes(byte ^ 0x55 for byte in word) for word in words]
    return f"""
table, hidden = bytes(byte ^ 0x55 for byte in range(256)), {hidden!r}
def count():
    counts = [0] * len(hidden)
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in open("/proc/self/maps").readlines():
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            try:
                memory.seek(start)
                content = memory.read(end - start).translate(table)
            except (OSError, ValueError, OverflowError):
                continue
            counts = [count + content.count(word) for count, word in zip(counts, hidden)]
    return counts
first = count()
control = hidden[0].translate(table)
print(json.dumps([first, count()[0] > 0, dict(os.environ)]))
"""


def test_nothing_of_the_owner_is_in_the_environment_or_in_memory(pool: Pool) -> None:
    """Neither in the variables, nor anywhere in the memory of the process, which it was forked with."""
    counts, is_searched, variables = report_of(pool, _scan([SECRET.encode(), b"PYTEST_CURRENT_TEST"]))
    assert (counts, is_searched) == ([0, 0], True)
    threads = {f"{library}_NUM_THREADS" for library in ("MKL", "OMP", "OPENBLAS")}
    assert set(variables) == threads | {"HOME", "LANG", "PATH", "PYTHONHASHSEED", "PYTHONINTMAXSTRDIGITS", "TMPDIR"}


def test_processes_of_the_host_and_of_other_runs_cannot_be_seen(any_pool: Pool) -> None:
    source = """
pids = [name for name in os.listdir("/proc") if name.isdigit()]
own = [attempt(lambda: open(f"/proc/1/{name}", "rb").read()) for name in ("environ", "maps", "mem", "smaps")]
links = [attempt(lambda: os.readlink(f"/proc/1/{name}")) for name in ("exe", "root", "cwd", "fd/0")]
shown = [name for name in os.listdir("/proc") if not name.isdigit()]
print(json.dumps([pids, own, links, sorted(shown), os.getpid(), os.getppid()]))
"""
    pids, files, links, shown, pid, parent = report_of(any_pool, source)
    assert (pids, pid, parent) == (["1", "2"], 2, 1)
    assert set(files) <= {"EACCES", "EPERM"}
    assert set(links) <= {"EACCES", "EPERM"}
    assert shown == ["self", "thread-self"]


def test_memory_of_earlier_runs_cannot_be_found() -> None:
    """The source, stdin and files of a run are never in a process from which another run is forked."""
    words = [f"purerl-{kind}-{marker()}" for kind in ("source", "stdin", "file")]
    with Pool(SandboxSettings(max_concurrent_runs=1), limits=LIMITS) as pool:
        for _ in range(2):
            pool.run_python(f"'{words[0]}'", stdin=words[1], files={"a": words[2]})
        counts, is_searched, _ = report_of(pool, _scan([word.encode() for word in words]))
    assert (counts, is_searched) == ([0, 0, 0], True)


def test_nothing_can_be_written_outside(any_pool: Pool) -> None:
    source = """
folders = ["/", "/usr", "/usr/bin", "/etc", "/dev", "/proc", "/proc/self", "/root", sys.prefix, sys.base_prefix,
           os.path.dirname(json.__file__)]
created = [attempt(lambda: open(folder + "/x", "w")) for folder in folders]
files = ["/etc/passwd", "/usr/bin/env", json.__file__, os.path.realpath(sys.executable), "/etc/ld.so.cache"]
opened = [attempt(lambda: open(file, "r+b")) for file in files if os.path.exists(file)]
proc = [attempt(lambda: open(f"/proc/{name}", "r+b")) for name in
        ("self/oom_score_adj", "self/comm", "self/uid_map", "self/clear_refs", "1/oom_score_adj", "self/attr/current")]
changed = [attempt(f) for f in (lambda: os.chmod("/usr", 0o777), lambda: os.rename("/etc/passwd", "/etc/x"),
           lambda: os.unlink("/usr/bin/env"), lambda: os.symlink("a", "/x"), lambda: os.mkdir("/x"),
           lambda: os.link("/usr/bin/env", "/tmp/env"), lambda: os.mknod("/tmp/null", 0o20666, os.makedev(1, 3)),
           lambda: os.utime(json.__file__))]
print(json.dumps([created, opened, proc, changed]))
"""
    refusals = {"EROFS", "EACCES", "EPERM", "ENOENT", "EXDEV", "EINVAL"}
    for outcomes in report_of(any_pool, source):
        assert set(outcomes) <= refusals


def test_private_directories_are_gone_after_the_run_and_not_shared(pool: Pool) -> None:
    """A program can see Python's own directory, also if that is in a private one: a clone in /tmp, for example."""
    name = marker()
    source = f"""
for folder in ("/tmp", "/dev/shm", "."):
    open(f"{{folder}}/{name}", "w").write("x")
print(json.dumps([sorted(os.listdir(folder)) for folder in ("/tmp", "/dev/shm", ".")]))
"""
    first, second, third = report_of(pool, source)
    of_python = {Path(path).parts[2] for path in (sys.prefix, sys.base_prefix) if Path(path).is_relative_to("/tmp")}
    assert (set(first) - of_python, second, third) == ({name}, [name], sorted([name, "program.py"]))
    assert report_of(pool, f"print(json.dumps(os.path.exists('/tmp/{name}')))") is False
    assert not Path("/tmp", name).exists()
    assert not Path("/dev/shm", name).exists()


@pytest.mark.parametrize("layers", ["all", "without_landlock"])
def test_directories_that_can_be_read_are_a_setting(layers: str, tmp_path: Path) -> None:
    """They cannot be written, although their permissions allow it to everybody."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_text("text")
    for path in (folder, folder / "a"):
        path.chmod(0o777)
    settings = SandboxSettings(read_only=(str(folder),), layers=layers)  # type: ignore[arg-type]
    result = run(["/bin/sh", "-c", f"cat {folder}/a; echo x > {folder}/a; echo x > {folder}/b"], settings=settings)
    assert (result.stdout, result.status) == (b"text", "error")
    assert (folder / "a").read_text() == "text"
    assert not (folder / "b").exists()


# --- other processes, privileges ---------------------------------------------------------------------------------


def test_signals_reach_only_processes_of_the_run(pool: Pool) -> None:
    source = f"""
sent = [attempt(os.kill, pid, number) for pid in (1, {os.getpid()}, {os.getppid()}) for number in
        (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
everyone = attempt(os.kill, -1, signal.SIGKILL)  # all but itself and process 1
print(json.dumps([sent, everyone, attempt(os.killpg, {os.getpgid(0)}, 9), attempt(os.pidfd_open, {os.getpid()})]))
"""
    sent, *others = report_of(pool, source)
    assert {*sent[5:], *others} == {"ESRCH"}


def test_process_1_ignores_all_signals_from_inside(pool: Pool) -> None:
    """By landlock, and without it, because it is process 1."""
    source = f"{PRELUDE}for number in signal.valid_signals(): attempt(os.kill, 1, number)\n"
    assert pool.run_python(source + "print(1)").stdout == b"1\n"
    assert run_python(source + "print(1)", settings=SandboxSettings(layers="without_landlock")).stdout == b"1\n"
    with pool.session() as session:
        assert [session.run(code).stdout for code in (source + "2", "3")] == [b"2\n", b"3\n"]


_CALLS = {
    "ptrace": (101, 117, "0, 0, 0, 0"),
    "ptrace of process 1": (101, 117, "16, 1, 0, 0"),
    "process_vm_readv": (310, 270, "1, 0, 0, 0, 0, 0"),
    "kcmp": (312, 272, "1, 2, 0, 0, 0"),
    "pidfd_getfd": (438, 438, "0, 0, 0"),
    "mount": (165, 40, "b'none', b'/tmp', b'tmpfs', 0, 0"),
    "umount": (166, 39, "b'/proc', 2"),
    "pivot_root": (155, 41, "b'/tmp', b'/tmp'"),
    "chroot": (161, 51, "b'/tmp'"),
    "open_tree": (428, 428, "-100, b'/', 1"),
    "fsopen": (430, 430, "b'tmpfs', 0"),
    "mount_setattr": (442, 442, "-100, b'/', 0, 0, 0"),
    "unshare of a user namespace": (272, 97, "0x10000000"),
    "unshare of mounts": (272, 97, "0x20000"),
    "setns": (308, 268, "0, 0"),
    "clone into a user namespace": (56, 220, "0x10000000 | 17, 0, 0, 0, 0"),
    "keyctl": (250, 219, "0, -3, 1"),
    "add_key": (248, 217, "b'user', b'a', b'b', 1, -3"),
    "request_key": (249, 218, "b'user', b'a', 0, -3"),
    "bpf": (321, 280, "0, 0, 0"),
    "perf_event_open": (298, 241, "0, 0, -1, -1, 0"),
    "userfaultfd": (323, 282, "0"),
    "init_module": (175, 105, "0, 0, b''"),
    "kexec_load": (246, 104, "0, 0, 0, 0"),
    "reboot": (169, 142, "0xfee1dead, 672274793, 0x1234567, 0"),
    "swapon": (167, 224, "b'/tmp/a', 0"),
    "syslog": (103, 116, "3, 0, 0"),
    "settimeofday": (164, 170, "0, 0"),
    "sethostname": (170, 161, "b'a', 1"),
    "open_by_handle_at": (304, 265, "-100, 0, 0"),
    "name_to_handle_at": (303, 264, "-100, b'/', 0, 0, 0"),
    "personality": (135, 92, "0x0400000"),
    "splice": (275, 76, "0, 0, 1, 0, 1, 0"),
    "sync": (162, 81, ""),
    "inotify_init": (294, 26, "0"),
    "mq_open": (240, 180, "b'a', 66, 0o600, 0"),
}
_UNKNOWN_CALLS = {
    "clone3": (435, 435, "0, 0"),
    "io_uring_setup": (425, 425, "8, 0"),
    "landlock_create_ruleset": (444, 444, "0, 0, 1"),
    "seccomp": (317, 277, "0, 0, 0"),
    "a call of the future": (4000, 4000, ""),
}


def test_calls_that_change_the_system_are_refused(pool: Pool) -> None:
    column = 0 if os.uname().machine == "x86_64" else 1
    for table, refusal in ((_CALLS, "EPERM"), (_UNKNOWN_CALLS, "ENOSYS")):
        calls = ", ".join(f"attempt(call, {entry[column]}, {entry[2]})" for entry in table.values())
        outcomes = dict(zip(table, report_of(pool, f"print(json.dumps([{calls}]))"), strict=True))
        assert outcomes == dict.fromkeys(table, refusal)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls of 32 bits")
def test_calls_of_another_architecture_kill_or_fail(pool: Pool) -> None:
    assert report_of(pool, "print(json.dumps(attempt(call, 0x40000000 + 39)))") == "ENOSYS"
    code = "b8140000 00cd80c3"  # mov eax, 20 (getpid of 32-bit calls); int 0x80; ret
    source = f"""
import mmap
area = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
area.write(bytes.fromhex("{code.replace(" ", "")}"))
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
ctypes.CFUNCTYPE(ctypes.c_int)(address)()
"""
    result = pool.run_python(PRELUDE + source)
    assert (result.status, result.exit_code) == ("killed", -31), "SIGSYS"


def test_no_privileges_can_be_gained(pool: Pool) -> None:
    source = """
state = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps([
    [attempt(os.setuid, 0), attempt(os.setgid, 0), attempt(os.setresuid, 0, 0, 0), attempt(os.setgroups, [0])],
    [state[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    [state["NoNewPrivs"], state["Seccomp"], state["Uid"].split(), os.getgroups()],
]))
"""
    changes, capabilities, (no_new, seccomp, users, groups) = report_of(pool, source)
    assert set(changes) <= {"EPERM", "EINVAL"}
    assert {int(value, 16) for value in capabilities} == {0}
    assert (no_new, seccomp, set(users)) == ("1", "2", {"1000"})
    assert os.geteuid() != 0 or groups in ([], [1000])


def test_programs_are_not_root_outside(pool: Pool) -> None:
    word = marker()
    users: set[int] = set()

    def look() -> None:
        while not done.is_set():
            with suppress(OSError):
                users.update(Path("/proc", str(pid)).stat().st_uid for pid in processes_with(word))

    done = threading.Event()
    watcher = threading.Thread(target=look)
    watcher.start()
    while not users:
        pool.run_python(marked("import time; time.sleep(.5)", word))
    done.set()
    watcher.join()
    assert users == {65534 if os.geteuid() == 0 else os.geteuid()}


def test_every_namespace_is_a_new_one(pool: Pool) -> None:
    names = ["user", "mnt", "pid", "net", "ipc", "uts"]
    inside = report_of(pool, f"print(json.dumps([os.readlink(f'/proc/self/ns/{{name}}') for name in {names}]))")
    outside = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in names]
    assert [name for name, one, other in zip(names, inside, outside, strict=True) if one == other] == []


def test_landlock_is_a_layer_of_its_own(pool: Pool) -> None:
    """From version 6 on, it refuses signals to processes outside of it, even if they would be ignored."""
    if landlock.version() < 6:
        pytest.skip("an earlier version")
    source = "print(json.dumps(attempt(os.kill, 1, 0)))"
    assert report_of(pool, source) == "EPERM"
    settings = SandboxSettings(layers="without_landlock")
    assert report(run_python(PRELUDE + source, settings=settings)) == "done"


def test_set_user_id_programs_give_nothing(pool: Pool) -> None:
    candidates = [Path("/usr/bin", name) for name in ("su", "mount", "passwd", "sudo", "newgrp")]
    programs = [str(path) for path in candidates if path.exists() and path.stat().st_mode & stat.S_ISUID]
    if not programs:
        pytest.skip("no such programs here")
    for program in programs:
        result = pool.run(["/bin/sh", "-c", f"cp {program} /tmp/p; chmod u+s /tmp/p; {program} -c id root; id -u"])
        assert result.stdout_text.splitlines()[-1:] == ["1000"]


def test_descriptors_are_only_the_standard_ones(pool: Pool) -> None:
    source = """
names = sorted(os.listdir("/proc/self/fd"), key=int)
junk = [attempt(os.write, descriptor, b"x" * 100) for descriptor in range(4, 1000)]
print(json.dumps([names, sorted(set(junk)), [os.readlink(f"/proc/self/fd/{k}")[:5] for k in range(3)]]))
"""
    names, junk, links = report_of(pool, source)
    assert names == ["0", "1", "2", "3"], "3 is the list itself"
    assert (junk, links) == (["EBADF"], ["pipe:"] * 3)
