"""Settings that may change when a run is continued, and the error for those that may not.

Each setting declares it where it is defined, by `may_change` of `purerl.settings.setting`:

    True        it may change: no result depends on it
    "rounding"  it may change: results depend on it only by rounding
    "end"       it may change: it decides only when the run ends
    "length"    it may grow, if no learning rate depends on the number of steps of the run
    False       it may not change, because it changes what the run has already done

What decides the end of an initial run may not change, because the run starts from its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from attrs import frozen

from purerl.backends.plugin import trainer_plugin
from purerl.config.listing import leaves
from purerl.config.requirements import ModelRole, requirements_of
from purerl.config.schema import RunConfig
from purerl.config.structure import to_dict
from purerl.config.tables import differences, show
from purerl.errors import RunDirectoryError

__all__ = ["Change", "check_changes", "describe_changes"]

_INITIAL_RUN = "initial_run."
_MAX_LISTED = 10
_MAX_VALUE_LENGTH = 200  # characters
_OF_ANOTHER_RUN = ("name", "seed", "model", "data", "algorithm", "initial_run", "prepare_data")
"""If one of these settings differs, another run was probably meant."""


@frozen
class Change:
    """A setting that differs: its key, both values (None: not set), and `may_change` of its field."""

    key: str
    before: Any
    after: Any
    rule: bool | str


def check_changes(path: Path, stored: RunConfig, new: RunConfig) -> list[Change]:
    """The settings in which `new` differs from `stored`, the configuration of the started run in the directory `path`.

    Raises: RunDirectoryError if one of them may not change.
    """
    rules = {
        key: metadata.get("may_change", False) for config in (stored, new) for key, _, metadata, _ in leaves(config)
    }
    changes = [
        Change(key, before, after, rules.get(key, False))
        for key, before, after in differences(to_dict(stored), to_dict(new))
    ]
    models = requirements_of(new).models if changes else {}
    refused = [change for change in changes if not _is_allowed(change, models)]
    if refused:
        raise RunDirectoryError(
            f"{str(path)!r} contains a run with another configuration",
            got=_listed([f"{c.key}: {_shown(c.before)} there, {_shown(c.after)} now" for c in refused]),
            need=_need(refused),
            do=_remedy(path, refused),
        )
    return changes


def describe_changes(changes: Sequence[Change]) -> str:
    """The changes in one line; empty if there are none.

    >>> describe_changes([Change("reward_workers.num_workers", 2, 4, True), Change("num_threads", None, 8, "rounding")])
    'changed: reward_workers.num_workers 2 -> 4; num_threads none -> 8 (results change only by rounding)'
    """
    notes = {"rounding": " (results change only by rounding)"}
    texts = [f"{c.key} {_shown(c.before)} -> {_shown(c.after)}{notes.get(str(c.rule), '')}" for c in changes]
    return f"changed: {_listed(texts)}" if texts else ""


def _is_allowed(change: Change, models: Mapping[str, ModelRole]) -> bool:
    is_initial = change.key.startswith(_INITIAL_RUN)
    match change.rule:
        case True | "rounding":
            return True
        case "end":
            return not is_initial
        case "length":
            grows = change.before is not None and change.after is not None and change.after > change.before
            return grows and not is_initial and not _depends_on_length(models)
    return False


def _depends_on_length(models: Mapping[str, ModelRole]) -> bool:
    """Whether the learning rate of a model depends on the number of steps of the run, or may depend on it."""
    trainers = [role.settings.trainer for role in models.values() if role.is_trained]
    return any(trainer_plugin(each).depends_on_length(each) for each in trainers)


def _need(refused: Sequence[Change]) -> str:
    rules = {change.rule for change in refused if not change.key.startswith(_INITIAL_RUN)}
    if rules == {"length"}:
        return (
            "the same length or a greater one; a greater one only if past learning rates do not depend on it: "
            "lr_scheduler=constant, or lr_scheduler_steps set from the start"
        )
    allowed = "those that change nothing in past steps, which docs/how-to/continuing.md lists"
    return f"the same settings, except for {allowed}"


def _remedy(path: Path, refused: Sequence[Change]) -> str:
    other = quote(str(_free(path)))
    new_run = f"for a new run add --directory {other}"
    from_checkpoint = f"to use the new settings from the last checkpoint on, --resume-from {quote(str(path))} "
    from_checkpoint += f"--directory {other}"
    is_other = any(change.key.partition(".")[0] in _OF_ANOTHER_RUN for change in refused)
    first, second = (new_run, from_checkpoint) if is_other else (from_checkpoint, new_run)
    return f"{first}; {second}; to discard the old run, --fresh"


def _free(path: Path) -> Path:
    """A directory beside `path` that does not exist."""
    path, number = (path if path.name not in ("", "..") else path.resolve()), 2
    while (other := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return other


def _listed(texts: Iterable[str]) -> str:
    texts = [*texts]
    more = [f"and {len(texts) - _MAX_LISTED} more"] if len(texts) > _MAX_LISTED else []
    return "; ".join(texts[:_MAX_LISTED] + more)


def _shown(value: Any) -> str:
    text = "none" if value is None else show(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."
