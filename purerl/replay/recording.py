"""The recorded rollouts of a run: which steps there are, and the fields of a step that an algorithm reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.batch import FIELDS, OPTIONAL_STRUCTURE, STRUCTURE, with_fields
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.config.stored import read_config
from purerl.errors import ConfigError, InputError
from purerl.explain.comparison.changes import policy_of
from purerl.loop.step import with_noise
from purerl.store.step_files import stored_steps
from purerl.types import RowFloat, TensorDict

__all__ = [
    "Needs",
    "Recording",
    "columns_of",
    "needs_of",
    "not_recorded",
    "open_recording",
    "parse_steps",
    "with_needs",
]

_OWN_WRITERS = ("estimator", "prepare")
_STAND_INS = {
    "logp": ("old_logp", "rollout_logp"),
    "old_logp": ("rollout_logp",),
    "value": ("old_value",),
    "entropy": ("old_entropy",),
}
"""Recorded fields with the value of another one, if the policy is that at the start of the update."""

_REMEDIES = {
    "components": "score the completions again with --reward, which computes each component",
    "old_logp": "replay a run whose algorithm reads it, such as one with importance_weight or several mini-batches",
}


@frozen
class Recording:
    """The recorded rollouts of the run in the directory `path`: its `config`, its `algorithm`, and the stored steps."""

    path: Path
    config: RunConfig
    algorithm: Algorithm
    steps: tuple[int, ...]

    @property
    def rollouts(self) -> Path:
        """The directory of the files."""
        return self.path / "rollouts"


def open_recording(path: Path) -> Recording:
    """The recorded rollouts of the run in the directory `path`, which may be in progress.

    Raises: RunDirectoryError if there is no run; InputError if it has no rollouts.
    """
    config = read_config(path)
    steps = stored_steps(path / "rollouts")
    if config.rollout is None or not steps:
        got = "no file in rollouts/" if config.rollout else "a run that learns from data, and samples nothing"
        raise InputError(f"rollouts of {str(path)!r}", got=got, need="a run with recorded rollouts")
    return Recording(path, config, requirements_of(config).algorithm, tuple(steps))


def parse_steps(text: str | None, steps: Sequence[int]) -> tuple[int, ...]:
    """The steps of `steps` that `text` names: one number, FIRST-LAST, FIRST- or -LAST; all without `text`.

    >>> parse_steps("2-", [1, 2, 3]), parse_steps("1", [1, 2, 3])
    ((2, 3), (1,))

    Raises: ConfigError for anything else, and if there is no such step.
    """
    first, dash, last = (text or "-").partition("-")
    if not all(part.isdecimal() or (dash and not part) for part in (first, last if dash else first)):
        raise ConfigError("--steps", got=repr(text), need="a step, such as 20, or a range, such as 10-20, 10- or -20")
    low, high = int(first or 0), int((last if dash else first) or steps[-1])
    chosen = tuple(step for step in steps if low <= step <= high)
    if not chosen:
        need = f"recorded steps: there are {len(steps)} from {steps[0]} to {steps[-1]}"
        raise ConfigError("--steps", got=repr(text), need=need)
    return chosen


# --- fields ------------------------------------------------------------------------------------------------------


class Needs(NamedTuple):
    """The fields that an algorithm needs beside those of every batch.

    advantage  what the selection of rows and the advantages read
    loss       what the loss of the policy reads, and the outputs of the policy
    """

    advantage: tuple[str, ...]
    loss: tuple[str, ...]


def needs_of(algorithm: Algorithm) -> Needs:
    """The needs of `algorithm`. Raises: InputError if it does not train a policy."""
    policy = policy_of(algorithm)
    return Needs(_not_written(algorithm.reads), _not_written((*policy.reads, *policy.outputs)))


def _not_written(names: Collection[str]) -> tuple[str, ...]:
    """`names` without the fields that an algorithm writes itself."""
    return tuple(dict.fromkeys(name for name in names if FIELDS[name].writer not in _OWN_WRITERS))


def columns_of(*needs: Needs) -> set[str]:
    """The columns of rollouts that a replay for `needs` may read."""
    names = {name for need in needs for name in (*need.advantage, *need.loss)}
    stand_ins = {name for need in names for name in _STAND_INS.get(need, ())}
    return {"tokens", "reward", "advantage", "example", *STRUCTURE, *OPTIONAL_STRUCTURE, *names, *stand_ins}


def with_needs(needs: Needs, batch: TensorDict, *, seed: int, step: int) -> tuple[TensorDict, tuple[str, ...]]:
    """The recorded `batch` of `step` with all fields of `needs`, and those of them that only the loss needs and lacks.

    `noise` is drawn again, and `score` is the sum of the rewards of an episode. The policy is the one at the start of
    the update. If the run did not score its rows with it, the generator's log-probabilities stand in, but not for a
    loss that reads both: their ratio would be 1.

    Raises: InputError if a field that the advantages read was not recorded.
    """
    if "noise" in needs.advantage and "noise" not in batch.keys():
        batch = with_noise(batch, seed, step - 1)
    if "score" in (*needs.advantage, *needs.loss) and "score" not in batch.keys():
        batch = with_fields(batch, score=_scores(batch))
    found = {name: _stand_in(name, needs, batch.keys()) for name in dict.fromkeys((*needs.advantage, *needs.loss))}
    missing = [name for name in needs.advantage if found[name] is None]
    if missing:
        raise not_recorded(missing, "the advantages of this algorithm")
    batch = with_fields(batch, **{name: batch[source] for name, source in found.items() if source is not None})
    return batch, tuple(name for name in needs.loss if found[name] is None)


def not_recorded(names: Collection[str], reader: str) -> InputError:
    """The error that `reader` reads the fields `names`, which the run did not record."""
    meanings = "; ".join(f"{name}: {FIELDS[name].meaning}" for name in names)
    otherwise = "replay a run whose algorithm reads it, or choose settings without it; purerl algo show lists the needs"
    do = next((_REMEDIES[name] for name in names if name in _REMEDIES), otherwise)
    return InputError(f"{reader} cannot be replayed", got=f"no recorded {', '.join(names)}", need=meanings, do=do)


def _stand_in(name: str, needs: Needs, recorded: Collection[str]) -> str | None:
    """The recorded field with the values of the field `name`; None if there is none."""
    reads_rollout_logp = "rollout_logp" in (needs.advantage if name in needs.advantage else needs.loss)
    candidates = [each for each in _STAND_INS.get(name, ()) if each != "rollout_logp" or not reads_rollout_logp]
    return next((each for each in (name, *candidates) if each in recorded), None)


def _scores(batch: TensorDict) -> RowFloat:
    """The sum of the rewards of the episode of each row, [rows]."""
    reward = batch["reward"].sum(-1)
    if "episode" not in batch.keys():
        return reward
    _, episode = batch["episode"].unique(return_inverse=True)
    return reward.new_zeros(int(episode.max()) + 1).index_add(0, episode, reward)[episode]
