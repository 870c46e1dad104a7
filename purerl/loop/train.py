"""A run, from its configuration to its trained model: open, resume, step, finish."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen

from purerl.algos.algebra import fingerprint
from purerl.config.check import check, learns_from_rewards
from purerl.config.roles import ModelRole
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import differences, digest, dumps, read_toml, to_dict
from purerl.config.tables import flat
from purerl.data.open import notes
from purerl.debugging.profiler import profiled
from purerl.debugging.settings import Debug
from purerl.debugging.stacks import stacks_after
from purerl.diagnosis.run import Monitor
from purerl.errors import ConfigError, RunDirectoryError, nearest
from purerl.files import atomic_directory, explain_refusals
from purerl.loop.callbacks import NO_CALLBACKS, Callbacks, call_callbacks
from purerl.loop.measure import due, measure, measure_rest
from purerl.loop.metrics import time_metrics
from purerl.loop.open import Run, check_inputs, open_run, prepare, resolve_paths
from purerl.loop.records import is_reached, to_record
from purerl.loop.run import Clock, LoopState
from purerl.loop.shown import log_completions, log_evaluation, texts_and_rewards
from purerl.loop.step import Step
from purerl.process import frozen_objects, torch_threads
from purerl.protocols import RunInfo, Tracker, Trainer
from purerl.rewards.adapters import RewardFunction, name_of
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.seeds import derive_seed, restored_generators
from purerl.store.checkpoint import commit, restore
from purerl.store.directory import RunDirectory, claim
from purerl.store.resume import find_checkpoint, rewind_to
from purerl.store.rollouts import Metadata, write_rollouts
from purerl.tracking.open import add_trackers, open_console

__all__ = ["Summary", "advance", "changes_from", "check_unfinished", "claim_directory", "train"]


@frozen
class Summary:
    """A finished run: its directory, its number of steps, and its evaluations `before` and `after` training.

    They have the metrics ``eval/...`` and ``validation/...``. `before` is empty without an evaluation at step 0.
    """

    directory: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint. There is none if the run was over before its first step."""
        return self.directory / "checkpoints" / f"{self.steps:06d}"

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
    callbacks: Callbacks = NO_CALLBACKS,
) -> Summary:
    """Do the run that `config` describes, or resume it.

    rewards, gates  functions that replace those of `config`. They are called in this process, so a function that hangs
                    cannot be stopped. A `Reward` gives its function a weight
    directory       the run directory; ``runs/<name>`` if not given
    fresh           discard the run in the directory
    callbacks       functions that are called after steps, evaluations and checkpoints. An exception in one of them ends
                    the run, which can be resumed afterwards

    Raises: ConfigError and DataError for invalid settings and data, as early as they can be found; RunDirectoryError if
    the directory contains another run or a finished one, or cannot be written; RewardError, EngineError and
    CheckpointError during the run, which can be resumed afterwards.
    """
    config, functions = _with_functions(config, rewards, gates)
    check(config, functions)
    path = Path(directory or Path("runs") / config.name)
    if fresh or config.initial_run is not None:  # before a run is discarded, or the first of two is done
        check_inputs(config)
    with explain_refusals(path):
        return _train(config, path, functions, callbacks, fresh=fresh)


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
    """Lock the directory at `path` for `config`. The trackers and reward workers of a started run may change."""
    return claim(path, dumps(config), digest(config), changes=partial(changes_from, config), fresh=fresh)


def changes_from(config: RunConfig, stored: Path) -> list[tuple[str, Any, Any]]:
    """The settings that differ between the file `stored` and `config`, and may not: (key, stored, now)."""
    return differences(_unchangeable(read_toml(stored, RunConfig)), _unchangeable(config))


def check_unfinished(path: Path) -> None:
    """Raise RunDirectoryError if the run in the directory at `path` is finished."""
    if (path / "summary.json").exists():
        do = f"its model is in {str(path / 'final')!r}; --fresh discards it and starts again"
        raise RunDirectoryError(f"the run in {str(path)!r} is finished", do=do)


def _unchangeable(config: RunConfig) -> RunConfig:
    """`config` without the settings that may change when a run is resumed."""
    initial_run = config.initial_run and _unchangeable(config.initial_run)
    return evolve(config, trackers=(), reward_workers=RewardWorkers(), debug=Debug(), initial_run=initial_run)


def _train(
    config: RunConfig, path: Path, functions: Mapping[str, RewardFunction], callbacks: Callbacks, *, fresh: bool
) -> Summary:
    directory = claim_directory(path, config, fresh=fresh)
    try:
        check_unfinished(directory.path)
        prepare(config, directory.path)
        if config.initial_run is not None:
            # Its seed depends on both seeds, so that changing either one gives another run.
            seed = derive_seed(config.seed, "initial_run", config.initial_run.seed)
            _train_initial(evolve(config.initial_run, seed=seed), directory)
        return _finish(config, directory, functions, callbacks)
    finally:
        directory.release()


def _train_initial(config: RunConfig, outer: RunDirectory) -> None:
    """Do the initial run in a directory of its own, unless it is finished. Its files are in the `outer` directory."""
    config = resolve_paths(config, Path("{run}/.."))
    directory = claim_directory(outer.path / "initial_run", config)
    try:
        if directory.summary is None:
            _finish(config, directory, {}, NO_CALLBACKS)
    finally:
        directory.release()


def _finish(
    config: RunConfig, directory: RunDirectory, functions: Mapping[str, RewardFunction], callbacks: Callbacks
) -> Summary:
    """Do all remaining steps, export the policy, and write the summary."""
    with restored_generators(), torch_threads(config.num_threads):
        run = open_run(resolve_paths(config, directory.path), directory, functions)
        with closing(run), frozen_objects():
            record = _remaining_steps(config, run, directory, callbacks)
            with atomic_directory(directory.final) as folder:
                run.trainers["policy"].export(folder)
                run.data.chat.tokenizer.save_pretrained(folder)
    before, after = (_evaluation(record) for record in (directory.records()[0], record))
    directory.finish({"steps": record["step"], "before": before, "after": after})
    return Summary(directory.path, record["step"], before, after)


def _remaining_steps(config: RunConfig, run: Run, directory: RunDirectory, callbacks: Callbacks) -> dict[str, Any]:
    """Do all remaining steps; return the last record. `config` is the configuration with unresolved paths."""
    facts = {"max_steps": run.max_steps, "learns_from_rewards": learns_from_rewards(run.learner.algorithm)}
    directory.write_data({**facts, **run.data.counts}, run.files, run.models)
    if not directory.tokenizer.exists():
        with atomic_directory(directory.tokenizer) as folder:
            run.data.chat.tokenizer.save_pretrained(folder)
    identity = directory.identity
    title, note = f"{config.algorithm}, {config.model.path}", notes(run.data)
    with run.rewards, open_console(config.name, run.max_steps, title=title, note=note) as trackers:
        state, record = _resume(run, directory)
        info = partial(RunInfo, config.name, identity, settings=flat(to_dict(config)), first=record["step"])
        folder = directory.path / "trackers"
        add_trackers(trackers, config.trackers, folder=folder, run_info=info, every=config.checkpoint.every)
        log_evaluation(trackers, record["step"], directory.evaluations)
        trackers.log(record)
        records = directory.records()
        names, monitor = {name for record in records for name in record}, Monitor.of_run(directory.path, records)
        _check_stop(config.stop_when, names)
        if record["step"] == 0:
            call_callbacks(callbacks, record, directory.checkpoints)
        while not _is_over(record, run.max_steps, config.stop_when):
            with _debugged(config.debug, directory.path, state.step + 1):
                state, record = advance(run, state, directory, trackers)
            for warning in monitor.observe(record):
                trackers.warn(warning.step, warning.name, warning.message)
            call_callbacks(callbacks, record, directory.checkpoints)
            names.update(record)
            _check_stop(config.stop_when, names)
    return record


@contextmanager
def _debugged(settings: Debug, folder: Path, step: int) -> Iterator[None]:
    """Record the block, which is `step`, as `settings` say, in files in `folder`."""
    stacks = stacks_after(settings.stack_dump_after, folder / "stacks.txt", step)
    with stacks, profiled(settings, folder / "profile", step):
        yield


def _resume(run: Run, directory: RunDirectory) -> tuple[LoopState, dict[str, Any]]:
    """Resume from the newest checkpoint. If there is none, start with an evaluation of the initial policy."""
    path = find_checkpoint(directory)
    initial = LoopState(transform=run.learner.algorithm.advantage.init())
    state = LoopState(**restore(path, run.trainers)) if path else initial
    rewind_to(path, directory, keep=run.config.checkpoint.keep)
    run.load_weights(state.step, Clock())
    if path is None:
        metrics = measure(run, state, due(run.config, 0), Clock())
        directory.log(to_record({"step": 0, **metrics}, directory.path))
    return state, directory.records()[-1]


def advance(run: Run, state: LoopState, directory: RunDirectory, tracker: Tracker) -> tuple[LoopState, dict[str, Any]]:
    """One step, and what is due after it: new weights, an evaluation, records, a checkpoint."""
    config, clock, number = run.config, Clock(), state.step + 1
    max_staleness = config.rollout.max_staleness if config.rollout else None
    is_saved = number % config.checkpoint.every == 0
    with clock("step"):
        before_update = partial(run.load_weights, state.step, clock) if max_staleness else lambda: None
        step = run.learner.step(state, run.source, clock, before_update=before_update)
        record = to_record({"step": number, **step.metrics}, directory.path)
        is_last = _is_over(record, run.max_steps, config.stop_when)
        measured = due(config, number, is_last=is_last)
        _follow_policy(run.trainers, run.roles, number, clock)
        if "evaluate" in measured or is_saved or max_staleness == 0:
            run.load_weights(number, clock)
    record |= to_record(measure(run, step.state, measured, clock), directory.path)
    if _is_over(record, run.max_steps, config.stop_when):
        record |= to_record(measure_rest(run, step.state, measured, clock), directory.path)
    directory.check_lock()
    trained = _store(run, state, step, directory, clock)
    record |= time_metrics(clock, record.get("rollout/tokens", trained))
    directory.log(record)
    log_completions(tracker, number, step.trajectories)
    log_evaluation(tracker, number, directory.evaluations)
    tracker.log(record)
    if is_saved or _is_over(record, run.max_steps, config.stop_when):
        directory.sync(range(number - config.checkpoint.every, number + 1))
        saved = asdict(step.state, recurse=False)
        commit(directory.checkpoints, number, saved, run.trainers, keep=config.checkpoint.keep)
    return step.state, record


def _store(run: Run, state: LoopState, step: Step, directory: RunDirectory, clock: Clock) -> int:
    """Write the rollouts of `step`, which began with `state`; return the number of action tokens in its batch."""
    if step.batch is None:
        return 0
    if run.config.rollout is not None:
        with clock("store"):
            metadata = Metadata(fingerprint(run.learner.algorithm), state.transform)
            texts = texts_and_rewards(step.trajectories)
            write_rollouts(directory.rollouts, step.state.step, step.batch, texts, metadata)
    return int(step.batch["action"].sum())


def _follow_policy(trainers: Mapping[str, Trainer], roles: Mapping[str, ModelRole], step: int, clock: Clock) -> None:
    """Update the models that follow the policy and are due after `step`."""
    for name, role in roles.items():
        if role.settings.update_every and step % role.settings.update_every == 0:
            with clock("sync"):
                trainers[name].load_weights(trainers["policy"].weights(), mix=role.settings.update_mix)


def _is_over(record: Mapping[str, Any], max_steps: int, stop_when: StopWhen | None) -> bool:
    return record["step"] >= max_steps or is_reached(stop_when, record)


def _check_stop(stop_when: StopWhen | None, names: Collection[str]) -> None:
    """Refuse a metric that is not in `names`, those of all records, once it should be.

    The metrics of an evaluation are in the first record with an accuracy, which an evaluation without any reward does
    not have, and those of a validation in the first one with its loss. All others are in the first record of a policy
    update.
    """
    if stop_when is None or stop_when.metric in names:
        return
    group = stop_when.metric.partition("/")[0]
    sign = {"eval": "eval/accuracy", "validation": "validation/loss"}.get(group, "policy/loss/")
    if any(name.startswith(sign) for name in names):
        need = "a metric of the run"
        raise ConfigError("stop_when.metric", got=stop_when.metric, need=need, do=nearest(stop_when.metric, names))


def _evaluation(record: Mapping[str, Any]) -> dict[str, float]:
    prefixes = ("eval/", "validation/")
    return {name: value for name, value in record.items() if name.startswith(prefixes) and value is not None}
