"""Check an installed purerl, in a directory outside of the clone: `nox -s build` runs ``python -I installed.py CLONE``.

It uses only what a user has who has installed purerl: no pytest, and of the clone only the names of its files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import distribution
from pathlib import Path

import purerl

_INITIAL_RUN = ("initial_run.max_steps=2", "initial_run.evaluate.every=2", "initial_run.stop_when.at_least=0")
_TWO_STEPS = ("max_steps=2", "batch_size=8", "evaluate.max_examples=8", *_INITIAL_RUN)


def main(clone: Path) -> None:
    """Raise AssertionError or CalledProcessError if something is missing or does not run."""
    packages = Path(sysconfig.get_path("purelib"))
    assert Path(purerl.__file__).is_relative_to(packages), f"imported from {purerl.__file__}, expected {packages}"
    assert distribution("purerl").version == purerl.__version__
    missing = [str(name) for name in _names(clone) if not (packages / name).is_file()]
    assert not missing, f"not installed: {missing}"
    assert "train" in _run("--help")
    assert "grpo" in _run("algo", "list")
    with tempfile.TemporaryDirectory() as folder:
        settings = [text for setting in _TWO_STEPS for text in ("--set", setting)]
        _run("train", *settings, "--directory", f"{folder}/run")
        assert Path(folder, "run", "final", "model.safetensors").is_file(), "no model in final/"


def _names(clone: Path) -> list[Path]:
    """Every file of the packages in the clone: modules, py.typed, tables, the files of the report."""
    roots = {"purerl": clone, "purerl_cli": clone / "cli"}
    files = [path.relative_to(root) for name, root in roots.items() for path in (root / name).rglob("*")]
    return [path for path in files if path.suffix not in ("", ".pyc") and "__pycache__" not in path.parts]


def _run(*arguments: str) -> str:
    """The output of the command `purerl` of this environment."""
    command = shutil.which("purerl", path=str(Path(sys.executable).parent))
    assert command, "the command purerl is not installed"
    return subprocess.run([command, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
