"""The skill pages and AGENTS.md: they are short, and their commands run, with a small model."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tests.data.made import user, write
from tests.forks import PROGRAMS
from tests.recipes.made import write_model

from .test_migrate import MODEL, files_of
from .test_quickstart import ROOT

FOLDER = ROOT / "docs" / "how-to" / "skills"
SKILLS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
AGENTS = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
ROWS = [{"prompt": [user(f"{k}+1?")], "answer": f"{k + 1}"} for k in range(8)]
SMALL = (
    "batch_size=2 rollout.samples_per_prompt=2 rollout.max_tokens=4 trainer.mixed_precision=off "
    "trainer.warmup_steps=0 reward_workers.num_workers=1"
)
SMALL_GAME = "evaluate.max_tokens=4 evaluate.samples_per_prompt=1 environment.num_workers=1 trainer.lr=1e-4"
SMALL_ADDITION = "initial_run.max_steps=1 initial_run.evaluate.max_examples=4 evaluate.max_examples=4 max_steps=1"


def _blocks(name: str, language: str) -> list[str]:
    return [textwrap.dedent(code) for _, kind, code in BLOCK.findall(SKILLS[name]) if kind == language]


def _commands(name: str) -> list[str]:
    return [line for code in _blocks(name, "sh") for line in code.splitlines()]


def _run(command: str, folder: Path, *, statuses: tuple[int, ...] = (0,)) -> None:
    """Run a line of a page in `folder`."""
    program, *arguments = shlex.split(command)
    before = {"python": [], "purerl": ["-m", "purerl_cli"]}[program]
    done = PROGRAMS.run([sys.executable, *before, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode in statuses, f"{command}\n{done.stdout}{done.stderr}"


def _small(command: str, settings: str) -> str:
    return f"{command} {settings}" if command.startswith("purerl train") and "--dry-run" not in command else command


def test_there_are_five_of_at_most_60_lines_which_agents_are_told_of() -> None:
    assert len(SKILLS) == 5
    assert [name for name, text in SKILLS.items() if len(text.splitlines()) > 60] == []
    assert [name for name in SKILLS if f"(docs/how-to/skills/{name}.md)" not in AGENTS] == []
    assert len(AGENTS.splitlines()) <= 60


def test_commands_and_places_that_agents_are_told_of_exist() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"nox -s (\w+)", AGENTS)) <= sessions
    places = [text for text in re.findall(r"`([\w/.]+/[\w/.]*)`", AGENTS) if not text.startswith(".venv")]
    assert len(places) > 10
    assert [place for place in places if not (ROOT / place.replace("NAME", "grpo")).exists()] == []
    [install] = re.findall(r"^python3 -m venv .*$", AGENTS, re.MULTILINE)
    assert f"{install} && " in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_loss_is_written_tested_and_trained(tmp_path: Path) -> None:
    [code] = _blocks("write_a_loss", "python")
    (tmp_path / "bounded.py").write_text(code, encoding="utf-8")
    for command in _commands("write_a_loss"):
        _run(_small(command, SMALL_ADDITION), tmp_path)
    assert (tmp_path / "compare.html").is_file()


@pytest.mark.slow
def test_a_configuration_is_ported_its_run_is_read_and_its_mismatch_is_debugged(tmp_path: Path) -> None:
    """The files are those of the page about TRL, with a small model. `purerl doctor` may have a warning."""
    write_model(tmp_path / "tiny")
    write(tmp_path / "problems.jsonl", ROWS)
    for file, text in files_of("trl").items():
        (tmp_path / file).write_text(text.replace(MODEL, "tiny"), encoding="utf-8")
    for name in ("port_a_configuration", "read_a_report", "debug_a_mismatch"):
        for command in _commands(name):
            _run(_small(command, SMALL), tmp_path, statuses=(0, 1) if "doctor" in command else (0,))
        if name == "port_a_configuration":
            shutil.copytree(tmp_path / "runs" / "try", tmp_path / "runs" / "other")
    assert {path.name for path in tmp_path.glob("*.html")} == {"try.html", "report.html", "mismatch.html"}
    assert len([*(tmp_path / "runs").iterdir()]) == 6


@pytest.mark.slow
def test_an_environment_is_added(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    for command in _commands("add_an_environment"):
        if command == "cp examples/environment/* .":
            shutil.copytree(ROOT / "examples" / "environment", tmp_path, dirs_exist_ok=True)
            example = (tmp_path / "run.toml").read_text(encoding="utf-8")
            (tmp_path / "run.toml").write_text(example.replace(MODEL, "tiny"), encoding="utf-8")
        else:
            _run(_small(command, f"{SMALL} {SMALL_GAME}"), tmp_path)
    assert (tmp_path / "episodes.html").is_file()


def test_every_block_is_run() -> None:
    """Blocks of Python are files, and there is one."""
    assert {kind for text in SKILLS.values() for _, kind, _ in BLOCK.findall(text)} == {"sh", "python"}
    assert [name for name in SKILLS if _blocks(name, "python")] == ["write_a_loss"]
