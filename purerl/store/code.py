"""The code of the user that a run was trained with: digests of its files, in code.json of the run directory.

A run that is resumed after its code was edited has several versions. Each has the number of steps that had been done
before it was first used: the first version has 0, unless the run started from a checkpoint of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from purerl.errors import RunDirectoryError
from purerl.store.objects import damaged, read_object
from purerl.system.files import write_atomically
from purerl.system.strict_json import to_json

__all__ = ["CodeVersion", "check_code", "code_changes", "describe_code_change", "record_code"]

_MAX_LISTED = 5


@frozen
class CodeVersion:
    """A version of the code: the digest of each file, and the number of steps that were done before it was used."""

    after_step: int
    files: Mapping[str, str]


def check_code(run: Path, files: Mapping[str, str], checkpoints: Iterable[int], *, is_accepted: bool) -> None:
    """Refuse to resume `run` with other code than that of its newest checkpoint, unless it `is_accepted`.

    files        the digests now
    checkpoints  the steps of the checkpoints of the run. Before the first one, a run has done nothing that is kept, so
                 its code may be edited

    Raises: RunDirectoryError.
    """
    newest = max(checkpoints, default=0)
    used = [version for version in _read(run) if version.after_step < newest]
    if is_accepted or not used or used[-1].files == files:
        return
    raise RunDirectoryError(
        f"the code of the run in {str(run)!r} has changed since step {newest}",
        got=describe_code_change(used[-1].files, files),
        need="the same code, to resume the run: other code may give other results",
        do="restore it, accept it with --accept-changed-code, name another directory, or discard the run with --fresh; "
        "in Python, accept_changed_code=True",
    )


def record_code(run: Path, files: Mapping[str, str], step: int) -> None:
    """Record that `run` does the steps after `step` with the code that has the digests `files`."""
    versions = [version for version in _read(run) if version.after_step < step]
    if not versions or versions[-1].files != files:
        versions.append(CodeVersion(step, files))
    content = {"versions": [{"after_step": each.after_step, "files": each.files} for each in versions]}
    write_atomically(_path(run), to_json(content, indent=2) + "\n")


def code_changes(run: Path) -> list[tuple[int, str]]:
    """For each change of the code of `run`: the step after which the new code was used, and what changed.

    Raises: RunDirectoryError if the record is damaged.
    """
    versions = _read(run)
    return [(after.after_step, describe_code_change(before.files, after.files)) for before, after in pairwise(versions)]


def describe_code_change(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The files that differ, in words.

    >>> describe_code_change({"reward.py": "a", "old.py": "b"}, {"reward.py": "c", "helpers.py": "d"})
    'edited: reward.py; not used any more: old.py; new: helpers.py'
    """
    groups = {
        "edited": [name for name in before if name in after and before[name] != after[name]],
        "not used any more": [name for name in before if name not in after],
        "new": [name for name in after if name not in before],
    }
    return "; ".join(f"{label}: {_listed(names)}" for label, names in groups.items() if names)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _path(run: Path) -> Path:
    return run / "code.json"


def _read(run: Path) -> list[CodeVersion]:
    """The versions of the code of the run in the directory `run`, in their order; none, if it has not started."""
    file = _path(run)
    do = "restore it, or remove it to resume the run with the code as it is"
    content = read_object(file, do) if file.exists() else {"versions": []}
    try:
        versions = [CodeVersion(int(each["after_step"]), dict(each["files"])) for each in content["versions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(file, str(content), "the digests of the files, by version", do) from error
    return versions
