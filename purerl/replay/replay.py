"""Recorded steps under another algorithm or reward: advantages, the loss of the policy, and its gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, State, fingerprint, keep_all, select_rows
from purerl.batch import FIELDS
from purerl.errors import DataError
from purerl.explain.comparison.outcomes import Computation, advantages_of, outcome_of
from purerl.replay.recording import Recording, columns_of, needs_of, not_recorded, with_needs
from purerl.store.rollouts import Metadata, read_table, to_batch, to_metadata
from purerl.system.process import torch_threads
from purerl.types import RowBool, TensorDict, TokenBool, TokenFloat

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReplayedStep", "Score", "has_state", "replay"]


class Score(Protocol):
    """Gives the rows of a step other rewards. `columns` are the columns of the rollouts that it reads."""

    @property
    def columns(self) -> Collection[str]: ...

    def __call__(self, table: pa.Table, batch: TensorDict) -> TensorDict:
        """`batch`, whose columns `table` has, with the other rewards."""
        ...


@frozen
class ReplayedStep:
    """A step as the run computed it, and as another algorithm computes it from the same completions.

    batch     the recorded rows
    rewarded  the same rows with the rewards of the replay
    keep      the rows that the other algorithm keeps, bool [rows]
    recorded  of the run: the recorded advantages, the loss and its gradient
    replayed  of the other algorithm
    is_exact  whether the run's algorithm gives the recorded advantages bit for bit; None if the run had another
              algorithm in this step than its configuration has now
    missing   fields without which the replayed loss is not known: it is NaN, and has no gradient
    recorded_missing  the same for the loss of the run
    """

    step: int
    batch: TensorDict
    rewarded: TensorDict
    keep: RowBool
    recorded: Computation
    replayed: Computation
    is_exact: bool | None
    missing: tuple[str, ...]
    recorded_missing: tuple[str, ...]


def replay(
    recording: Recording,
    algorithm: Algorithm | None = None,
    *,
    score: Score | None = None,
    steps: Sequence[int] | None = None,
) -> Iterator[ReplayedStep]:
    """Replay `steps` of `recording` under `algorithm`, with the rewards of `score`.

    Without `steps` all are replayed, without `algorithm` the run's own, and without `score` the recorded rewards.

    The loss is that of one optimizer step with all rows, at the start of the update. An algorithm with a state, such as
    running statistics, also computes the steps before, from the first recorded one on. If it is the run's own, and the
    rewards are too, each step starts from its recorded state.

    Raises: InputError that names the fields, if the algorithm reads what the run did not record; DataError for a
    damaged file.
    """
    own, chosen, state = recording.algorithm, {*(recording.steps if steps is None else steps)}, None
    algorithm = algorithm or own
    own_name, name = fingerprint(own), fingerprint(algorithm)
    columns = columns_of(needs_of(own), needs_of(algorithm)) | {*(score.columns if score else ())}
    # With a state, the steps before the last one are needed, too.
    steps = [step for step in recording.steps if step <= max(chosen)] if has_state(algorithm) else sorted(chosen)
    for step in steps:
        table, metadata, whole = _read(recording, step, columns)
        batch = whole.exclude(*(field for field in whole.keys() if FIELDS[field].writer in ("estimator", "prepare")))
        rewarded = batch if score is None else score(table, batch)
        is_repeated = metadata.algorithm == name and score is None
        if is_repeated or state is None:
            state = metadata.state if metadata.algorithm == name else algorithm.advantage.init()
        replayed = _computed(recording, step, algorithm, state, rewarded, is_repeated=is_repeated)
        state = replayed.state
        if step not in chosen:
            continue
        advantage = whole["advantage"] if "advantage" in whole.keys() else torch.zeros_like(replayed.outcome.advantage)
        recorded = None
        if metadata.algorithm == own_name:
            is_same = is_repeated and name == own_name
            recorded = replayed if is_same else _computed(recording, step, own, metadata.state, batch, is_repeated=True)
        yield ReplayedStep(
            step=step,
            batch=batch,
            rewarded=rewarded,
            keep=replayed.keep,
            recorded=Computation(advantage, *(recorded.outcome[1:] if recorded else (float("nan"), {}))),
            replayed=replayed.outcome,
            is_exact=recorded and _same_bits(recorded.outcome.advantage, advantage, batch["attention_mask"]),
            missing=replayed.missing,
            recorded_missing=recorded.missing if recorded else (),
        )


class _Computed(NamedTuple):
    state: State
    keep: RowBool
    outcome: Computation
    missing: tuple[str, ...]


def _read(recording: Recording, step: int, columns: Collection[str]) -> tuple[pa.Table, Metadata, TensorDict]:
    import pyarrow as pa

    try:
        table = read_table(recording.rollouts, step, columns)
        return table, to_metadata(table.schema), to_batch(table)
    except (pa.ArrowException, OSError, TypeError, KeyError) as error:
        what, got = f"rollouts of step {step} in {str(recording.rollouts)!r}", f"{type(error).__name__}: {error}"
        raise DataError(
            what, got=got, need="a file that a run has written", do="leave the step out: --steps"
        ) from error


def _computed(
    recording: Recording, step: int, algorithm: Algorithm, state: State, batch: TensorDict, *, is_repeated: bool
) -> _Computed:
    """The results of `algorithm` in `step`, which starts in `state`. If it `is_repeated`, it has kept all rows."""
    batch, missing = with_needs(needs_of(algorithm), batch, seed=recording.config.seed, step=step)
    if not is_repeated and (refused := [name for name in missing if FIELDS[name].writer != "trainer"]):
        raise not_recorded(refused, "the loss of this algorithm")
    with torch_threads(recording.config.num_threads):
        keep = keep_all(batch) if is_repeated else select_rows(algorithm, batch)
        if not keep.any():
            return _Computed(state, keep, Computation(torch.zeros_like(batch["reward"]), 0.0, {}), missing)
        state, rows = advantages_of(algorithm, state, batch[keep])
        return _Computed(state, keep, outcome_of(algorithm, rows, keep, has_outputs=not missing), missing)


def has_state(algorithm: Algorithm) -> bool:
    """Whether the advantages of a step depend on the steps before."""
    return _has_values(algorithm.advantage.init())


def _has_values(state: State) -> bool:
    """Whether there is anything in the tuples of `state`.

    >>> _has_values(((), ((), ()))), _has_values(((), 0.5))
    (False, True)
    """
    return any(map(_has_values, state)) if isinstance(state, tuple) else True


def _same_bits(first: TokenFloat, second: TokenFloat, mask: TokenBool) -> bool:
    return torch.equal(*(value[mask].to(torch.float32).view(torch.int32) for value in (first, second)))
