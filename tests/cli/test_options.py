"""The command line is an interface: its options are frozen here, and it answers at once."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import purerl
from purerl.plugins import names
from purerl_cli.main import app

FROZEN = {
    "": {
        "version": ["--version"],
        "install_completion": ["--install-completion"],
        "show_completion": ["--show-completion"],
    },
    "train": {
        "recipe": ["recipe"],
        "settings": ["--set"],
        "directory": ["--directory"],
        "fresh": ["--fresh"],
        "dry_run": ["--dry-run"],
        "debug": ["--debug"],
    },
    "recipes": {"debug": ["--debug"]},
    "config": {"recipe": ["recipe"], "settings": ["--set"], "toml": ["--toml"], "debug": ["--debug"]},
    "doctor": {"debug": ["--debug"]},
    "eval": {
        "model": ["model"],
        "run": ["--run"],
        "data": ["--data"],
        "reward": ["--reward"],
        "gate": ["--gate"],
        "samples": ["--samples"],
        "temperature": ["--temperature"],
        "max_tokens": ["--max-tokens"],
        "pass_at": ["--pass-at"],
        "answer": ["--answer"],
        "examples": ["--examples"],
        "system": ["--system"],
        "seed": ["--seed"],
        "json": ["--json"],
        "debug": ["--debug"],
    },
    "sample": {
        "model": ["model"],
        "run": ["--run"],
        "data": ["--data"],
        "reward": ["--reward"],
        "gate": ["--gate"],
        "rows": ["--rows"],
        "samples": ["--samples"],
        "temperature": ["--temperature"],
        "max_tokens": ["--max-tokens"],
        "system": ["--system"],
        "seed": ["--seed"],
        "debug": ["--debug"],
    },
    "algo": {},
    "algo list": {"debug": ["--debug"]},
    "data": {},
    "data inspect": {
        "file": ["file"],
        "model": ["--model"],
        "system": ["--system"],
        "template": ["--template"],
        "max_prompt_tokens": ["--max-prompt-tokens"],
        "rows": ["--rows"],
        "debug": ["--debug"],
    },
    "data convert": {
        "name": ["name"],
        "source": ["source"],
        "target": ["target"],
        "form": ["--form"],
        "debug": ["--debug"],
    },
    "report": {"runs": ["runs"], "output": ["--output"], "megabytes": ["--megabytes"], "debug": ["--debug"]},
}


def test_the_options_are_these() -> None:
    root = typer.main.get_command(app)
    groups = {name: command for name, command in root.commands.items() if hasattr(command, "commands")}
    below = {f"{above} {name}": one for above, group in groups.items() for name, one in group.commands.items()}
    commands = {"": root, **root.commands, **below}
    found = {name: {p.name: p.opts for p in command.params if p.name != "help"} for name, command in commands.items()}
    assert found == FROZEN


def test_every_algorithm_is_listed_with_what_it_is_made_of_and_needs() -> None:
    listing = CliRunner().invoke(app, ["algo", "list"], env={"COLUMNS": "200"}).stdout
    assert all(f"\n  {name} " in listing for name in names("algorithm"))
    row = next(line for line in listing.splitlines() if line.startswith("  ppo "))
    for part in ("PPO, proximal policy optimization", "1707.06347", "gae_advantage", "clipped_value_loss", "a critic"):
        assert part in row


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"purerl {purerl.__version__}\n"


def test_help_costs_little_more_than_its_libraries() -> None:
    """A ratio of CPU times, interleaved: neither a slow machine nor a busy one changes it much."""
    pairs = [(_cpu_seconds("-m", "purerl_cli", "--help"), _cpu_seconds("-c", _LIBRARIES)) for _ in range(5)]
    ours, theirs = map(min, zip(*pairs, strict=True))
    assert ours < 4 * theirs


_LIBRARIES = "import typer, rich.console, rich.table, rich.progress"


def _cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_console_script_is_installed() -> None:
    script = shutil.which("purerl", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"purerl {purerl.__version__}\n"


@pytest.mark.parametrize(("given", "found"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(given: dict[str, str], found: str) -> None:
    code = "import os, purerl_cli.main as cli; cli.app = lambda: print(os.environ['OMP_WAIT_POLICY']); cli.main()"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
