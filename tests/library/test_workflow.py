"""The workflows of GitHub, .ci/run, noxfile.py and CONTRIBUTING.md name the same sessions."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests import closures

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / ".ci/run").read_text(encoding="utf-8")
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")
DEFINED = set(re.findall(r"^@nox\.session.*\ndef (\w+)\(", NOXFILE, re.MULTILINE))


def _job(workflow: str, name: str) -> dict:
    return yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text(encoding="utf-8"))["jobs"][name]


def _sessions_of_ci() -> set[str]:
    """The sessions that .ci/run calls, and those that it calls if the files of a session have changed."""
    called = re.findall(r"(?:bin/nox -s|-m tests\.closures) ([a-z ]+)", SCRIPT)
    return {name for names in called for name in names.split()}


def test_every_session_of_ci_is_in_a_job() -> None:
    jobs = [
        shlex.split(entry["nox"].partition("--")[0])[1:]
        for entry in _job("checks.yml", "checks")["strategy"]["matrix"]["include"]
    ]
    assert {name for job in jobs for name in job} == _sessions_of_ci()
    assert [] in jobs, "the sessions of nox without arguments"


@pytest.mark.parametrize(("workflow", "job"), [("checks.yml", "checks"), ("nightly.yml", "nightly")])
def test_a_job_installs_as_ci_does(workflow: str, job: str) -> None:
    *_, install, run = [step["run"] for step in _job(workflow, job)["steps"] if "run" in step]
    assert any(line.startswith(install) for line in SCRIPT.splitlines())
    assert run == (".venv-dev/bin/nox -s nightly" if job == "nightly" else ".venv-dev/bin/nox ${{ matrix.nox }}")


def test_every_session_exists_and_is_described() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    described = set(re.findall(r"nox -s (\w+)`", table))
    assert _sessions_of_ci() | closures.SESSIONS.keys() <= DEFINED
    assert described == DEFINED


def test_every_session_with_other_libraries_records_that_it_has_passed() -> None:
    """Or .ci/run would always run it, or never."""
    assert (
        len(re.findall(r"^@nox\.session\(venv_backend", NOXFILE, re.MULTILINE)) == len(closures.SESSIONS) + 2
    )  # build and notebooks, which are not in CI
    assert _sessions_of_ci() >= closures.SESSIONS.keys()


# --- closures ----------------------------------------------------------------------------------------------------


def test_a_closure_has_what_tests_import_also_in_functions_and_by_name() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in closures.closure("tests/engines")}
    assert files >= {
        "tests/engines/test_runs.py",
        "tests/engines/sglang.txt",  # what the environment of the session has
        "tests/conftest.py",
        "purerl/backends/vllm/generator.py",  # found by its name
        "purerl/backends/transfer/engine/purerl_receiver.py",
        "purerl/loop/train.py",
        "purerl/config/presets/verl.toml",
        "cli/purerl_cli/main.py",
        "noxfile.py",
    }
    assert "tests/algos/test_pass_k.py" not in files
    assert "purerl/adapters/textarena.py" not in files


def test_what_has_passed_is_no_file_of_a_session() -> None:
    assert not any(closures.PASSED in closures.closure(*folders) for folders in closures.SESSIONS.values())


def test_a_digest_depends_on_code_but_not_on_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closures, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = []\noptional-dependencies = {}\n")
    path = tmp_path / "a.py"

    def of(text: str) -> str:
        closures._content.cache_clear()
        path.write_text(text)
        return closures.digest([path])

    assert of("x = 1") == of('"""A text."""\nx = 1  # one\n') != of("x = 2")
    assert (
        of("def f():\n    return 1") == of('def f():\n    """A text."""\n    return 1') != of("def f():\n    return 2")
    )
    closures._content.cache_clear()


def test_a_session_runs_until_it_has_passed_and_again_if_its_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closures, "PASSED", tmp_path / "passed.json")
    monkeypatch.setattr(closures, "closure", lambda *folders: [*folders])
    monkeypatch.setattr(closures, "digest", lambda files: f"digest of {files[0]}")
    assert list(closures.must_run(["ray", "vllm", "docs"])) == ["ray", "vllm", "docs"]
    closures.record("ray")
    assert list(closures.must_run(["ray", "vllm", "docs"])) == ["vllm", "docs"]
    monkeypatch.setattr(closures, "digest", lambda files: "another")
    assert list(closures.must_run(["ray"])) == ["ray"]


_RECORD = """
import sys
from pathlib import Path
from tests import closures

name, closures.PASSED = sys.argv[1], Path(sys.argv[2])
closures.SESSIONS = {f"{name}{k}": () for k in range(200)}
closures.closure, closures.digest = lambda: set(), lambda files: "digest"
print("ready", flush=True)
sys.stdin.read()
for session in closures.SESSIONS:
    closures.record(session)
"""


def test_sessions_that_end_at_the_same_time_are_all_recorded(tmp_path: Path) -> None:
    path, pipes = tmp_path / "passed.json", dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    commands = [[sys.executable, "-c", _RECORD, name, str(path)] for name in ("a", "b")]
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes)) for command in commands]
        assert [process.stdout.readline() for process in processes if process.stdout] == [b"ready\n"] * 2
        for process in processes:
            assert process.stdin
            process.stdin.close()
        assert [process.wait(60.0) for process in processes] == [0, 0]
    assert len(json.loads(path.read_text())) == 400


def test_a_session_that_imports_more_than_its_closure_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = type("Session", (), {"exitstatus": 0})()
    monkeypatch.setenv(closures.VARIABLE, "ray")
    monkeypatch.setattr(closures, "closure", lambda *folders: closures._own_files())
    closures.pytest_sessionfinish(session)
    assert session.exitstatus == 0
    monkeypatch.setattr(closures, "closure", lambda *folders: closures._own_files() - {Path(__file__)})
    closures.pytest_sessionfinish(session)
    assert session.exitstatus == 1
    assert "ray imports tests/library/test_workflow.py" in capsys.readouterr().err


def test_closures_need_no_package() -> None:
    """.ci/run uses them before anything is installed."""
    command = [
        "python3",
        "-I",
        "-c",
        f"import sys; sys.path.append({str(ROOT)!r}); import tests.closures; print('yes')",
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "yes\n"
