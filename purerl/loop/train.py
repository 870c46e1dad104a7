"""A run, from its configuration to its trained model: open, resume, step, finish."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from purerl.algos.algebra import fingerprint
from purerl.config.check import check
from purerl.config.continuing import check_changes
from purerl.config.roles import ModelRole
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import digest, dumps, read_toml, to_dict
from purerl.config.tables import flat
from purerl.data.open import summary
from purerl.errors import ConfigError, nearest
from purerl.files import atomic_directory, explain_refusals
from purerl.loop.metrics import time_metrics
from purerl.loop.open import Run, check_inputs, max_steps_of, open_run, prepare, resolve_paths
from purerl.loop.origin import Origin, adopt, check_origin, to_origin
from purerl.loop.resume import best_of, describe_start, resume, save_checkpoint, stop
from purerl.loop.run import Clock, LoopState, Trajectory
from purerl.loop.step import Step
from purerl.process import frozen_objects, torch_threads
from purerl.protocols import RunInfo, Tracker, Trainer
from purerl.rewards.adapters import RewardFunction, name_of
from purerl.rewards.settings import Reward
from purerl.seeds import derive_seed, restored_generators
from purerl.store.directory import RunDirectory, claim
from purerl.store.rollouts import Metadata, total_reward, write_rollouts
from purerl.tracking.open import add_trackers, open_console
from purerl.tracking.trackers import Trackers

__all__ = ["Summary", "advance", "claim_directory", "train"]

_SHOWN_ROWS = 16


@frozen
class Summary:
    """A finished run: its directory, its number of steps, and its first and last evaluation.

    best_step      the step of the checkpoint that `checkpoint.best` has selected; None if there is none
    was_finished   whether the run was finished already, and nothing has been done
    """

    directory: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    best_step: int | None = None
    was_finished: bool = field(default=False, eq=False)

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint. There is none if the run was over before its first step."""
        return self.directory / "checkpoints" / f"{self.steps:06d}"

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint that `checkpoint.best` has selected."""
        return None if self.best_step is None else self.directory / "checkpoints" / f"{self.best_step:06d}"

    @property
    def model(self) -> Path:
        """The trained policy in Hugging Face's format."""
        return self.directory / "final"


def train(
    config: RunConfig,
    *,
    rewards: Sequence[RewardFunction | Reward] = (),
    gates: Sequence[RewardFunction] = (),
    directory: str | Path | None = None,
    fresh: bool = False,
    resume_from: str | Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Do the run that `config` describes, or resume it. A finished run is not done again: its summary is returned.

    rewards, gates  functions that replace those of `config`. They are called in this process, so a function that hangs
                    cannot be stopped. A `Reward` gives its function a weight
    directory       the run directory; ``runs/<name>`` if not given
    fresh           discard the run in the directory
    resume_from     the run in the directory starts from a checkpoint of another run: RUN, RUN:STEP, RUN:best, or
                    RUN/checkpoints/STEP, where RUN is a run directory
    should_stop     called before each step. If it returns true, a checkpoint is written and RunStoppedError is raised

    Raises: ConfigError and DataError for invalid settings and data, as early as they can be found; RunDirectoryError if
    the directory contains another run, or cannot be written; RewardError, EngineError, CheckpointError and
    RunStoppedError during the run, which can be resumed afterwards.
    """
    config, functions = _with_functions(config, rewards, gates)
    check(config, functions)
    path = Path(directory or Path("runs") / config.name)
    origin = None if resume_from is None else to_origin(resume_from)
    if origin is not None:
        check_origin(origin, path, config, fresh=fresh)
    if fresh or config.initial_run is not None:  # before a run is discarded, or the first of two is done
        check_inputs(config)
    with explain_refusals(path):
        return _train(config, path, functions, fresh=fresh, origin=origin, should_stop=should_stop)


def _with_functions(
    config: RunConfig, rewards: Sequence[RewardFunction | Reward], gates: Sequence[RewardFunction]
) -> tuple[RunConfig, dict[str, RewardFunction]]:
    """`config` with the names of these functions, and the functions by name."""
    weighted = [reward if isinstance(reward, Reward) else Reward(reward) for reward in rewards]
    functions: dict[str, RewardFunction] = {}
    for function in (*(reward.function for reward in weighted), *gates):
        if callable(function) and functions.setdefault(name_of(function), function) is not function:
            got, do = f"two functions called {name_of(function)!r}", "give them different names, with def"
            raise ConfigError("rewards", got=got, do=do)
    named = [evolve(r, function=name_of(r.function)) if callable(r.function) else r for r in weighted]
    config = evolve(config, rewards=tuple(named)) if named else config
    return evolve(config, gates=tuple(map(name_of, gates))) if gates else config, functions


def claim_directory(path: Path, config: RunConfig, *, fresh: bool = False) -> RunDirectory:
    """Lock the directory at `path` for `config`. A started run may have other settings that `check_changes` allows."""

    def changes(stored: Path) -> Sequence[Any]:
        return check_changes(path, read_toml(stored, RunConfig), config)

    return claim(path, dumps(config), digest(config), changes=changes, fresh=fresh)


def _train(
    config: RunConfig,
    path: Path,
    functions: Mapping[str, RewardFunction],
    *,
    fresh: bool,
    origin: Origin | None,
    should_stop: Callable[[], bool],
) -> Summary:
    directory = claim_directory(path, config, fresh=fresh)
    try:
        if directory.summary is not None:
            if _is_finished(config, directory):
                return Summary(directory.path, **directory.summary, was_finished=True)
            directory.reopen(dumps(config), digest(config))
        adopt(origin, directory, config)
        prepare(config, directory.path)
        if config.initial_run is not None:
            # Its seed depends on both seeds, so that changing either one gives another run.
            seed = derive_seed(config.seed, "initial_run", config.initial_run.seed)
            _train_initial(evolve(config.initial_run, seed=seed), directory, should_stop)
        return _finish(config, directory, functions, should_stop)
    finally:
        directory.release()


def _is_finished(config: RunConfig, directory: RunDirectory) -> bool:
    """Whether the finished run in `directory` is finished with `config` too, which may make it longer."""
    max_steps = max_steps_of(config, directory.facts.get("examples", 0))
    return not directory.changes or _is_over(directory.records()[-1], max_steps, config.stop_when)


def _train_initial(config: RunConfig, outer: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Do the initial run in a directory of its own, unless it is finished. Its files are in the `outer` directory."""
    config = resolve_paths(config, Path("{run}/.."))
    directory = claim_directory(outer.path / "initial_run", config)
    try:
        if directory.summary is None:
            _finish(config, directory, {}, should_stop)
    finally:
        directory.release()


def _finish(
    config: RunConfig,
    directory: RunDirectory,
    functions: Mapping[str, RewardFunction],
    should_stop: Callable[[], bool],
) -> Summary:
    """Do all remaining steps, export the policy, and write the summary."""
    with restored_generators(), torch_threads(config.num_threads):
        run = open_run(resolve_paths(config, directory.path), directory, functions)
        with closing(run), frozen_objects():
            record = _remaining_steps(config, run, directory, should_stop)
            with atomic_directory(directory.final) as folder:
                run.trainers["policy"].export(folder)
                run.data.chat.tokenizer.save_pretrained(folder)
    before, after = (_evaluation(record) for record in (directory.records()[0], record))
    best = best_of(directory, config.checkpoint)
    directory.finish({"steps": record["step"], "before": before, "after": after, "best_step": best})
    return Summary(directory.path, record["step"], before, after, best)


def _remaining_steps(
    config: RunConfig, run: Run, directory: RunDirectory, should_stop: Callable[[], bool]
) -> dict[str, Any]:
    """Do all remaining steps; return the last record. `config` is the configuration with unresolved paths."""
    directory.write_data({"max_steps": run.max_steps, **run.data.counts}, run.files)
    if not directory.tokenizer.exists():
        with atomic_directory(directory.tokenizer) as folder:
            run.data.chat.tokenizer.save_pretrained(folder)
    state, title = resume(run, directory), f"{config.algorithm}, {config.model.path}"
    past, notes = directory.records()[:-1], [summary(run.data.counts), describe_start(state, directory)]
    note = "\n".join(filter(None, notes))
    with run.rewards, open_console(config.name, run.max_steps, title=title, note=note, history=past) as trackers:
        if not directory.records():
            directory.log({"step": 0} | run.evaluate(step=0))
        record = directory.records()[-1]
        _add_trackers(trackers, config, directory, [*past, record])
        trackers.log(record)
        names = {name for record in [*past, record] for name in record}
        _check_metrics(config, names)
        while not _is_over(record, run.max_steps, config.stop_when):
            if should_stop():
                stop(run, state, directory, lambda state=state: advance(run, state, directory, trackers)[0])
            state, record = advance(run, state, directory, trackers)
            names.update(record)
            _check_metrics(config, names)
    return record


def _add_trackers(
    trackers: Trackers, config: RunConfig, directory: RunDirectory, records: Sequence[Mapping[str, Any]]
) -> None:
    """Add the trackers of `config`. A run that starts from another one has a past that they do not know yet."""
    is_new = directory.origin is not None and directory.origin["step"] == records[-1]["step"]
    history, first = records[:-1] if is_new else [], records[0 if is_new else -1]["step"]
    info = partial(RunInfo, config.name, directory.identity, settings=flat(to_dict(config)), first=first)
    folder, every = directory.path / "trackers", config.checkpoint.every
    add_trackers(trackers, config.trackers, folder=folder, run_info=info, every=every, history=history)


def advance(run: Run, state: LoopState, directory: RunDirectory, tracker: Tracker) -> tuple[LoopState, dict[str, Any]]:
    """One step, and what is due after it: new weights, an evaluation, records, a checkpoint."""
    config, clock, number = run.config, Clock(), state.step + 1
    max_staleness = config.rollout.max_staleness if config.rollout else None
    is_saved = number % config.checkpoint.every == 0
    with clock("step"):
        before_update = partial(run.load_weights, state.step, clock) if max_staleness else lambda: None
        step = run.learner.step(state, run.source, clock, before_update=before_update)
        record = {"step": number, **step.metrics}
        is_last = _is_over(record, run.max_steps, config.stop_when)
        is_evaluated = config.evaluate is not None and (is_last or number % config.evaluate.every == 0)
        _follow_policy(run.trainers, run.roles, number, clock)
        if is_evaluated or is_saved or max_staleness == 0:
            run.load_weights(number, clock)
    if is_evaluated:
        with clock("evaluate"):
            record |= run.evaluate(step=number)
    trained = _store(run, state, step, directory, clock)
    record |= time_metrics(clock, record.get("rollout/tokens", trained))
    directory.log(record)
    if rows := _shown(step.trajectories):
        tracker.completions(number, rows)
    tracker.log(record)
    is_saved = is_saved or (is_evaluated and best_of(directory, config.checkpoint, number) == number)
    if is_saved or _is_over(record, run.max_steps, config.stop_when):
        save_checkpoint(run, step.state, directory)
    return step.state, record


def _store(run: Run, state: LoopState, step: Step, directory: RunDirectory, clock: Clock) -> int:
    """Write the rollouts of `step`, which began with `state`; return the number of action tokens in its batch."""
    if step.batch is None:
        return 0
    if run.config.rollout is not None:
        with clock("store"):
            metadata = Metadata(fingerprint(run.learner.algorithm), state.transform)
            texts = [trajectory.texts for trajectory in step.trajectories]
            write_rollouts(directory.rollouts, step.state.step, step.batch, texts, metadata)
    return int(step.batch["action"].sum())


def _follow_policy(trainers: Mapping[str, Trainer], roles: Mapping[str, ModelRole], step: int, clock: Clock) -> None:
    """Update the models that follow the policy and are due after `step`."""
    for name, role in roles.items():
        if role.settings.update_every and step % role.settings.update_every == 0:
            with clock("sync"):
                trainers[name].load_weights(trainers["policy"].weights(), mix=role.settings.update_mix)


def _is_over(record: Mapping[str, Any], max_steps: int, stop_when: StopWhen | None) -> bool:
    reached = stop_when is not None and record.get(stop_when.metric, -float("inf")) >= stop_when.at_least
    return record["step"] >= max_steps or reached


def _check_metrics(config: RunConfig, names: Collection[str]) -> None:
    """Refuse metrics of settings that are not in `names`, those of all records, once they should be.

    The metrics of an evaluation are in the first record with an accuracy, which an evaluation without any reward does
    not have. All others are in the first record of a policy update.
    """
    metrics = {
        "stop_when.metric": config.stop_when and config.stop_when.metric,
        "checkpoint.best": config.checkpoint.best,
    }
    is_evaluated, is_updated = "eval/accuracy" in names, any(name.startswith("policy/loss/") for name in names)
    for key, metric in metrics.items():
        if metric and metric not in names and (is_evaluated if metric.startswith("eval/") else is_updated):
            raise ConfigError(key, got=metric, need="a metric of the run", do=nearest(metric, names))


def _shown(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Some completions, evenly from all over the step; empty if nothing was sampled."""
    sampled = [trajectory for trajectory in trajectories if trajectory.texts]
    shown = sampled[:: max(1, len(sampled) // _SHOWN_ROWS)][:_SHOWN_ROWS]
    return [{**trajectory.texts, "reward": total_reward(trajectory.fields)} for trajectory in shown]


def _evaluation(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name.startswith("eval/")}
