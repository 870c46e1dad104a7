"""Short commands run without garbage collections, and so does the end of every process of `purerl`."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from purerl.system.garbage import without_collections


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_off_in_the_block_and_as_before_after_it(enabled: bool) -> None:
    seen = []

    @without_collections()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise ValueError("no")

    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="no"):
            fail()
        assert (seen, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()


def test_command_line_ends_without_collections_of_objects_of_libraries() -> None:
    code = """
import atexit, gc, sys
from purerl_cli import main
atexit.register(lambda: print(gc.get_freeze_count() > 10_000))  # runs after the functions that main registers
sys.argv = ["purerl", "--version"]
main.main()
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "True"


@pytest.mark.slow
def test_comparison_of_algorithms_runs_without_collections() -> None:
    code = """
import gc
from typer.testing import CliRunner
from purerl_cli.main import app
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]) if phase == "start" else None)
collections.clear()
result = CliRunner().invoke(app, ["algo", "diff", "grpo", "dapo"])
print(result.exit_code, collections.count(2))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["0", "0"]
