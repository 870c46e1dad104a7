"""A run from its configuration to its trained model: open, resume, step after step, finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from purerl.config.check import check
from purerl.config.schema import Reward, RunConfig
from purerl.errors import ConfigError, RunDirectoryError
from purerl.files import folder_at_once, refusals_told
from purerl.loop.checkpoint import commit, committed, restore
from purerl.loop.data import summary
from purerl.loop.evaluate import evaluate
from purerl.loop.metrics import time_metrics
from purerl.loop.open import check_inputs, located, open_run, prepare
from purerl.loop.process import borrowed
from purerl.loop.run import Clock, Run, State, seed_of
from purerl.loop.step import step
from purerl.loop.update import sync
from purerl.loop.watch import follow, shown, watched
from purerl.protocols import Tracker
from purerl.rewards.adapters import RewardFunction, name_of
from purerl.store.directory import RunDirectory, claim
from purerl.store.rollouts import write_rollouts

__all__ = ["Summary", "advance", "train"]


@frozen
class Summary:
    """What a finished run came to: where it is, how many steps it took, and its first and last evaluation."""

    directory: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint: all that the run would need to go on."""
        return self.directory / "checkpoints" / f"{self.steps:06d}"

    @property
    def model(self) -> Path:
        """The trained policy, in Hugging Face's format."""
        return self.directory / "final"


def train(
    config: RunConfig,
    *,
    rewards: Sequence[RewardFunction | Reward] = (),
    gates: Sequence[RewardFunction] = (),
    directory: str | Path | None = None,
    fresh: bool = False,
) -> Summary:
    """Do the run that `config` describes, or go on with it where it was left.

    `rewards` and `gates` are functions that take the place of those that `config` names; they are called in this
    process, so one that hangs cannot be ended. A `Reward` in `rewards` gives its function a weight. The run lives in
    `directory`, ``runs/<name>`` if not given; `fresh` throws away the run that is there.

    Raises: ConfigError and DataError before any model is loaded; RunDirectoryError where the directory holds another
    run or a finished one, or cannot be written; RewardError, EngineError and CheckpointError while it runs, after which
    it can be resumed.
    """
    config, given = _with(config, rewards, gates)
    check(config, given)
    path = Path(directory or Path("runs") / config.name)
    if fresh or config.initial_run is not None:  # before a run is thrown away, or the first of two is done
        check_inputs(config)
    with refusals_told(path):
        return _train(config, path, given, fresh=fresh)


def _train(config: RunConfig, path: Path, given: Mapping[str, RewardFunction], *, fresh: bool) -> Summary:
    """Take the directory at `path`, and do the run in it, or go on with it."""
    place = claim(path, config, fresh=fresh)
    try:
        if place.summary is not None:
            do = f"its model is in {str(place.final)!r}; --fresh throws it away and starts anew"
            raise RunDirectoryError(f"the run in {str(place.path)!r} is finished", do=do)
        prepare(config, place)
        if config.initial_run is not None:
            # Its own seed and that of the whole: another seed of either is another run.
            _start(evolve(config.initial_run, seed=seed_of(config.seed, "initial_run", config.initial_run.seed)), place)
        return _finish(config, place, given, root=place.path)
    finally:
        place.release()


def _with(
    config: RunConfig, rewards: Sequence[RewardFunction | Reward], gates: Sequence[RewardFunction]
) -> tuple[RunConfig, dict[str, RewardFunction]]:
    """`config` with these functions named in it, and the functions by their names."""
    weighed = [one if isinstance(one, Reward) else Reward(one) for one in rewards]
    given: dict[str, RewardFunction] = {}
    for function in (*(one.function for one in weighed), *gates):
        if callable(function) and given.setdefault(name_of(function), function) is not function:
            do = "give them names of their own, with def"
            raise ConfigError("rewards", got=f"two functions that are called {name_of(function)!r}", do=do)
    named = [evolve(one, function=name_of(one.function)) if callable(one.function) else one for one in weighed]
    config = evolve(config, rewards=tuple(named)) if named else config
    return evolve(config, gates=tuple(map(name_of, gates))) if gates else config, given


def _start(config: RunConfig, place: RunDirectory) -> None:
    """The run that comes first, in a directory of its own; nothing where it is finished already."""
    first = claim(place.path / "initial_run", config, fresh=False)
    try:
        if first.summary is None:
            _finish(config, first, {}, root=place.path)
    finally:
        first.release()


def _finish(config: RunConfig, place: RunDirectory, given: Mapping[str, RewardFunction], *, root: Path) -> Summary:
    """Do all the steps that are left, export the policy, and say what the run came to."""
    with borrowed(config):
        run = open_run(located(config, root), place, given)
        with closing(run):
            state, record = _steps(config, run, place)
        with folder_at_once(place.final) as folder:
            run.trainers["policy"].export(folder)
            run.tokenizer.save_pretrained(folder)
    before, after = (_evaluation(record) for record in (place.records()[0], record))
    place.finish({"steps": state.step, "before": before, "after": after})
    return Summary(place.path, state.step, before, after)


def _steps(config: RunConfig, run: Run, place: RunDirectory) -> tuple[State, dict[str, Any]]:
    """Do all the steps that are left; the state and the metrics of the last one. `config` is as people wrote it."""
    place.note_data(run.data.counts, run.data.files)
    if not place.tokenizer.exists():
        with folder_at_once(place.tokenizer) as folder:
            run.tokenizer.save_pretrained(folder)
    with run.judge, watched(config, summary(run.data.counts)) as watch:
        state, record = _resume(run, place)
        follow(watch, config, place, first=record["step"])
        watch.log(record)
        while not _is_over(config, record):
            state, record = advance(run, state, place, watch)
    return state, record


def _resume(run: Run, place: RunDirectory) -> tuple[State, dict[str, Any]]:
    """Go on from the last checkpoint; without one begin, with an evaluation before the first step."""
    path = committed(place.checkpoints, keep=run.config.checkpoint.keep)
    state = restore(path, run.trainers) if path else State(transform=run.algorithm.advantage.init())
    place.rewind(state.step if path else -1)
    if run.generator is not None:
        sync(run.trainers["policy"], run.generator, version=state.step)
    if path is None:
        place.log({"step": 0} | (evaluate(run, step=0) if run.config.evaluate else {}))
    return state, place.records()[-1]


def advance(run: Run, state: State, place: RunDirectory, watch: Tracker) -> tuple[State, dict[str, Any]]:
    """One step, and what is due after it: weights to the sampler, an evaluation, metrics, rollouts, a checkpoint.

    `watch` is told before the checkpoint is written, so that it misses nothing if that fails.
    """
    config, clock = run.config, Clock()
    with clock("step"):
        state, batch, samples, metrics = step(run, state, clock)
        record = {"step": state.step} | metrics
        evaluating = config.evaluate is not None and (
            _is_over(config, record) or state.step % config.evaluate.every == 0
        )
        saving = state.step % config.checkpoint.every == 0
        if run.generator is not None and (evaluating or saving or (config.rollout and not run.lag)):
            with clock("sync"):
                sync(run.trainers["policy"], run.generator, version=state.step)
    if evaluating:
        with clock("evaluate"):
            record |= evaluate(run, step=state.step)
    if config.rollout and batch is not None:
        with clock("store"):
            write_rollouts(place.rollouts, state.step, batch, [sample.texts for sample in samples])
    given = 0 if batch is None else int(batch["action"].sum())
    record |= time_metrics(clock, record.get("rollout/tokens", given))
    place.log(record)
    if rows := shown(samples):
        watch.completions(state.step, rows)
    watch.log(record)
    if saving or _is_over(config, record):
        commit(place.checkpoints, state, run.trainers, keep=config.checkpoint.keep)
    return state, record


def _is_over(config: RunConfig, record: Mapping[str, Any]) -> bool:
    reached = (
        config.stop_when is not None and record.get(config.stop_when.metric, float("-inf")) >= config.stop_when.at_least
    )
    return reached or record["step"] >= config.max_steps


def _evaluation(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name.startswith("eval/")}
