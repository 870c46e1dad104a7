"""Check the types of the files that differ from the last commit, with the settings of the project.

python -m tests.changed_types [COMMIT]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CHECKED = ("purerl/", "cli/", "docs/", "noxfile.py")
"""The files that `nox -s types` checks, see pyproject.toml."""


def changed(commit: str) -> list[str]:
    """The changed, and the new, files whose types are checked."""
    commands = (["diff", "--name-only", "--diff-filter=d", commit], ["ls-files", "--others", "--exclude-standard"])
    found = [
        subprocess.run(["git", *each], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        for each in commands
    ]
    return [name for names in found for name in names if name.endswith(".py") and name.startswith(_CHECKED)]


if __name__ == "__main__":
    files = changed(*sys.argv[1:] or ["HEAD"])
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *files]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode if files else 0)
