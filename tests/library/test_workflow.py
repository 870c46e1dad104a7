"""The workflow of GitHub runs the nox sessions of .ci/run, with the same arguments, and both exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
SCRIPT = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
JOB = WORKFLOW["jobs"]["checks"]


def _commands() -> list[str]:
    """The arguments of each call of nox in .ci/run. xargs calls it for each text that printf writes."""
    found = []
    for line in SCRIPT:
        before, nox, after = line.rpartition(".venv-dev/bin/nox")
        sessions = shlex.split(before.partition("|")[0])[2:] if "xargs" in before else [""]
        found += [f"{after} {names}".strip() for names in sessions if nox]
    return found


def test_every_call_of_nox_in_ci_is_a_job() -> None:
    jobs = [entry["nox"].strip() for entry in JOB["strategy"]["matrix"]["include"]]
    assert list(map(shlex.split, jobs)) == list(map(shlex.split, _commands()))


def test_a_job_installs_and_runs_as_ci_does() -> None:
    *_, install, run = [step["run"] for step in JOB["steps"] if "run" in step]
    assert any(line.startswith(install) for line in SCRIPT)
    assert run == ".venv-dev/bin/nox ${{ matrix.nox }}"


def test_every_session_exists() -> None:
    defined = re.findall(
        r"^@nox\.session.*\ndef (\w+)\(", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    named = {name for command in _commands() for name in command.partition(" -- ")[0].removeprefix("-s").split()}
    assert named <= set(defined)
    assert {"lint", "tests", "build", "vllm"} <= set(defined)
