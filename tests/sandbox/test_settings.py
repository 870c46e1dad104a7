"""Settings of sandboxes: what is refused, and how they become limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import fields_dict

from purerl.config.structure import from_dict
from purerl.errors import ConfigError, SandboxError
from purerl.sandbox import Limits, Pool, SandboxSettings, Session, run_python
from purerl.sandbox.processes import find_interpreter

REMOTE = "http://127.0.0.1:1"


def test_limits_in_seconds_and_bytes() -> None:
    bounds = Limits(timeout=2, max_memory="1.5 GiB", max_disk=3, max_file_size="2MB").bounds()  # type: ignore[arg-type]
    assert (bounds.seconds, bounds.cpu_seconds, bounds.memory) == (2, 2, 1536 * 2**20)
    assert (bounds.disk, bounds.file_size) == (3 * 2**20, 2**20)
    assert Limits(timeout=2, cpu_time=5).bounds().cpu_seconds == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": "some"}, "one of: all, without_landlock, none"),
        ({"accounting": "guessing"}, "one of: auto, cgroups, sampling"),
        ({"read_only": ("data",)}, "absolute paths"),
        ({"preload": ("",)}, "at least one character"),
        ({"max_concurrent_runs": 0}, "at least 1"),
        ({"remote": "localhost:8080"}, "a URL that starts with http"),
        ({"remote": REMOTE, "layers": "without_landlock"}, "layers has no effect"),
        ({"remote": REMOTE, "accounting": "cgroups"}, "accounting has no effect"),
        ({"remote": REMOTE, "python": "/usr/bin/python3"}, "python has no effect"),
        ({"remote": REMOTE, "preload": ("json",)}, "preload has no effect"),
        ({"remote": REMOTE, "read_only": ("/data",)}, "read_only has no effect"),
        ({"remote": REMOTE, "limits": Limits(max_disk=5)}, "limits.max_disk has no effect"),
        ({"layers": "none", "read_only": ("/data",)}, "read_only has no effect"),
    ],
)
def test_settings_that_are_wrong_or_have_no_effect_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SandboxSettings(**values)


@pytest.mark.parametrize("name", fields_dict(Limits))
def test_every_limit_is_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: -1})


def test_settings_can_be_a_table() -> None:
    table = {"layers": "all", "limits": {"timeout": 3.0, "max_memory": "1GiB"}, "preload": ["json"]}
    settings = from_dict(SandboxSettings, table)
    assert settings == SandboxSettings(limits=Limits(timeout=3, max_memory=1024), preload=("json",))


def test_python_that_cannot_be_started_is_refused() -> None:
    with pytest.raises(ConfigError, match="(?s)python.*no-such-python"):
        run_python("", settings=SandboxSettings(python="/no-such-python"))
    with pytest.raises(ConfigError, match="python"):
        find_interpreter("/bin/true")


def test_python_of_another_environment_runs_the_programs() -> None:
    """The interpreter of the system has other packages and other directories."""
    try:
        find_interpreter("/usr/bin/python3")
    except ConfigError:
        pytest.skip("/usr/bin/python3 is too old, or missing")
    with Pool(SandboxSettings(python="/usr/bin/python3", max_concurrent_runs=1)) as pool:
        result = pool.run_python("import sys; print(sys.prefix)")
    assert result.stdout == b"/usr\n"


def test_module_that_cannot_be_preloaded_is_an_error() -> None:
    with pytest.raises(SandboxError, match="(?s)preload.*ModuleNotFoundError: No module named 'no_such_module'.*do:"):
        Pool(preload=("no_such_module",))


def test_module_that_starts_threads_is_refused(tmp_path: Path) -> None:
    """Only the thread that forks would exist in a program, with the locks of the others held for ever."""
    (tmp_path / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    )
    code = f"""
import os, sys
from purerl.sandbox.supervisor.main import _import
sys.path.append({str(tmp_path)!r})
try:
    _import(["json", "threads"])
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert output == b"importing threads starts threads\n"


def test_pool_and_session_are_on_this_computer() -> None:
    for kind in (Pool, Session):
        with pytest.raises(ConfigError, match="(?s)remote.*a sandbox on this computer"):
            kind(SandboxSettings(remote=REMOTE))


def test_what_programs_may_read_must_exist() -> None:
    with pytest.raises(SandboxError, match=r"(?s)read_only.*No such file.*'/no/such/words'.*do:   name directories"):
        run_python("", settings=SandboxSettings(read_only=("/no/such/words",)))
