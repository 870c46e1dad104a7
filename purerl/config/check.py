"""What a configuration means together: what its algorithm needs is there, and nothing is there that it does not use.

All of it before any model, tokenizer or data set is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from purerl.algos.algebra import Algorithm, chain, compute_advantages, identity, keep_all, roles
from purerl.algos.parts.shaping import overlong_in_reward
from purerl.batch import FIELDS, STRUCTURE, collate, with_fields
from purerl.config.schema import Evaluate, RewardWorkers, RunConfig
from purerl.errors import ConfigError, nearest
from purerl.plugins import find, kind_of, locate
from purerl.rewards.adapters import RewardFunction, as_reward, is_async, load_reward

__all__ = [
    "SUPPLIED",
    "WITHIN",
    "algorithm_of",
    "check",
    "check_answer",
    "evaluated",
    "needs_rollouts",
    "outputs_of",
    "reads_of",
    "updates_of",
]

_ROWS = ("tokens", "example", "temperature", "chosen", "noise")
_ROLLOUTS = ("reward", "rollout_logp", "version", "truncated", "score", "components", "greedy_score")
SUPPLIED = frozenset({*_ROWS, *_ROLLOUTS})
"""Fields that rows come with, beside those of every batch."""
WITHIN = ("estimator", "prepare", "trainer")
"""Writers of fields that an algorithm has of its own."""


def algorithm_of(config: RunConfig) -> Algorithm:
    """The algorithm that `config` names, built; a penalty for length comes before its own advantage."""
    algorithm = find("algorithm", kind_of(config.algorithm)).algorithm(config.algorithm)
    rollout = config.rollout
    if rollout is None or rollout.overlong is None:
        return algorithm
    buffer, factor = rollout.overlong.buffer, rollout.overlong.factor
    penalty = overlong_in_reward(max_length=rollout.max_tokens, buffer=buffer, factor=factor)
    return algorithm._replace(advantage=chain(penalty, algorithm.advantage))


def updates_of(config: RunConfig) -> int:
    """Optimizer steps of each model that learns, in the whole run."""
    return config.max_steps * config.ppo_epochs * config.num_minibatches


def check(config: RunConfig, given: Mapping[str, RewardFunction] | None = None) -> None:
    """Refuse `config` where a setting is missing or has no effect; `given` are reward functions that are objects.

    Raises: ConfigError, for the first that is found; those of a `start` run begin with ``initial_run.``.
    """
    algorithm = algorithm_of(config)
    for rule in (
        _check_source,
        _check_problems,
        _check_supply,
        _check_models,
        _check_sampling,
        _check_weights,
        _check_lag,
        _check_selection,
        _check_stop,
        _check_cut,
        _check_trackers,
    ):
        rule(config, algorithm)
    _check_functions(config, given or {})
    if config.prepare_data is not None:
        locate(config.prepare_data)
    if config.initial_run is not None:
        _check_start(config.initial_run)
        _named("initial_run", check, config.initial_run)


def _check_start(initial_run: RunConfig) -> None:
    """What comes before both, the run sees to and not its start."""
    if initial_run.prepare_data is not None:
        because = "a run that is no start: what it prepares is there for its start too"
        raise _refuse("initial_run.prepare_data", initial_run.prepare_data, because, "set prepare_data in its place")
    if initial_run.initial_run is not None:
        because, do = "a run that is no start", "do that run by itself first, and set initial_run.model to its final/"
        raise _refuse("initial_run.initial_run", initial_run.initial_run.name, because, do)


def reads_of(algorithm: Algorithm) -> set[str]:
    """All fields that `algorithm` reads, beside those of every batch."""
    objectives = (*algorithm.before, *algorithm.objectives)
    return {*algorithm.reads, *(name for objective in objectives for name in objective.reads)}


def needs_rollouts(algorithm: Algorithm) -> set[str]:
    """What `algorithm` reads that only completions of the policy's own have; empty where it may learn from data.

    A ratio to what the policy was when the update began weighs what that policy sampled. In a pair it weighs nothing:
    there it is how far the policy has moved, whoever wrote the two.
    """
    reads = reads_of(algorithm)
    return reads.intersection(_ROLLOUTS) or (reads & {"old_logp"} if "chosen" not in reads else set())


_MEASURES = (
    "accuracy", "accuracy_high", "accuracy_low", "failed", "length", "reward", "timed_out", "truncated",
    "valid_fraction",
)  # fmt: skip


def evaluated(settings: Evaluate) -> tuple[str, ...]:
    """Metrics of an evaluation: those of its data set; of several those of each, and the mean accuracy."""
    several = [
        *(f"pass@{k}" for k in settings.passes),
        *([f"maj@{settings.samples_per_prompt}"] if settings.answer_extractor else []),
    ]
    measures = [*_MEASURES, *several]
    if len(settings.data) < 2:
        return tuple(f"eval/{measure}" for measure in measures)
    return ("eval/accuracy", *(f"eval/{name}/{measure}" for name in settings.data for measure in measures))


def _refuse(key: str, value: object, because: str, do: str) -> ConfigError:
    return ConfigError(f"{key} has no effect", got=repr(value), need=because, do=do)


def _check_source(config: RunConfig, algorithm: Algorithm) -> None:
    kind, needs = kind_of(config.algorithm), needs_rollouts(algorithm)
    if needs and config.rollout is None:
        need = f"completions of the policy's own: {kind} reads {', '.join(sorted(needs))}"
        raise ConfigError("rollout is missing", need=need, do="set rollout.samples_per_prompt and rollout.max_tokens")
    if config.rollout and not needs and "teacher" not in roles(algorithm, FIELDS):
        because = f"an algorithm that learns from rewards or a teacher; {kind} learns from data"
        raise _refuse("rollout", config.rollout, because, "leave rollout out")


def _check_problems(config: RunConfig, algorithm: Algorithm) -> None:
    evaluate, held_out = config.evaluate, config.data.validation_fraction
    if evaluate and not evaluate.data and not held_out:
        need = "problems to evaluate on"
        raise ConfigError(
            "evaluate.data is missing", need=need, do="set it, or data.validation_fraction to a share of the data"
        )
    if evaluate and evaluate.data and held_out:
        because = "an evaluation without data of its own"
        raise _refuse(
            "data.validation_fraction", held_out, because, "leave data.validation_fraction or evaluate.data out"
        )
    if held_out and not evaluate:
        raise _refuse(
            "data.validation_fraction",
            held_out,
            "an evaluation",
            "set evaluate.max_tokens, or leave data.validation_fraction out",
        )


def _check_supply(config: RunConfig, algorithm: Algorithm) -> None:
    """Every field that the algorithm reads is written by something that the run has."""
    kind, trained = kind_of(config.algorithm), {o.role for o in (*algorithm.before, *algorithm.objectives)}
    for name in sorted(reads_of(algorithm)):
        field = FIELDS[name]
        teacher = ("teacher",) if config.teacher else ()
        if field.source and field.source[0] not in {*trained, "reference", *teacher}:
            need = f"a model in the role {field.source[0]!r}: {kind} reads {name!r}, {field.meaning}"
            raise ConfigError(f"algorithm {kind!r}", got="a run that has no such model", need=need)
        if not field.source and field.writer not in WITHIN and name not in SUPPLIED:
            need = f"{name!r}, written by {field.writer}: {field.meaning}"
            raise ConfigError(f"algorithm {kind!r}", got="a run that cannot supply a field", need=need)


def _check_models(config: RunConfig, algorithm: Algorithm) -> None:
    for name, model in (("model", config.model), ("teacher", config.teacher)):
        if model and model.revision is not None and (model.path.startswith("{run}") or Path(model.path).is_dir()):
            because = f"a name on the hub; {model.path!r} is a directory"
            raise _refuse(f"{name}.revision", model.revision, because, f"leave {name}.revision out")
    if config.critic is not None and "critic" not in roles(algorithm, FIELDS):
        because = f"an algorithm with a critic; {kind_of(config.algorithm)} has none"
        raise _refuse("critic", config.critic, because, "leave critic out")
    if config.teacher is not None and "teacher" not in roles(algorithm, FIELDS):
        because = f"an algorithm that learns from a teacher; {kind_of(config.algorithm)} does not"
        raise _refuse("teacher", config.teacher, because, "leave teacher out")
    for role in roles(algorithm, FIELDS):
        key = "critic" if role == "critic" and config.critic else "trainer"
        engine = getattr(config, key)
        refuse = getattr(find("trainer", kind_of(engine)), "check", None)
        if refuse is not None:
            _named(key, refuse, engine, role=role, outputs=outputs_of(algorithm, role), updates=updates_of(config))


def outputs_of(algorithm: Algorithm, role: str) -> tuple[str, ...]:
    """What `algorithm` wants of the model in `role`."""
    scored = (FIELDS[name].source for name in sorted(reads_of(algorithm)))
    learned = [o for o in (*algorithm.before, *algorithm.objectives) if o.role == role]
    wanted = [source[1] for source in scored if source[:1] == (role,)]
    return tuple(dict.fromkeys([*wanted, *(name for o in learned for name in (*o.outputs, *o.metric_outputs))]))


def _named(key: str, function: Callable, *args: Any, **kwargs: Any) -> None:
    """Call `function`; what it refuses is a setting under `key`."""
    try:
        function(*args, **kwargs)
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error


def _check_sampling(config: RunConfig, algorithm: Algorithm) -> None:
    samples = config.rollout is not None or config.evaluate is not None
    for name, value in (("generator", config.generator), ("rewards", config.rewards)):
        if samples and not value:
            needed = "something is sampled and judged: rollout or evaluate is set"
            raise ConfigError(f"{name} is missing", need=needed, do=f"set {name}")
    judging = config.reward_workers if config.reward_workers != RewardWorkers() else None
    for name in ("generator", "rewards", "gates", "reward_workers"):
        value = judging if name == "reward_workers" else getattr(config, name)
        if value and not samples:
            raise _refuse(name, value, "rollout or evaluate", f"leave {name} out")
    if config.generator is not None:
        find("generator", kind_of(config.generator))


def _check_weights(config: RunConfig, algorithm: Algorithm) -> None:
    for key, names in (("rewards", [one.function for one in config.rewards]), ("gates", config.gates)):
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(key, got=f"{name!r} {names.count(name)} times", do="name it once, with a weight")
    if config.rollout is None:
        return
    if "reward" in algorithm.reads:
        if not any(one.weight for one in config.rewards):
            need = "one that is not 0: every reward would be"
            raise ConfigError("rewards.weight", got="0 for each function", need=need, do="set the weight of one")
        return
    kind = kind_of(config.algorithm)
    if config.rollout.overlong:
        because = f"an algorithm that reads the reward; {kind} does not"
        raise _refuse("rollout.overlong", config.rollout.overlong, because, "leave rollout.overlong out")
    if "components" in algorithm.reads and any(one.weight != 1 for one in config.rewards):
        because = f"an algorithm that reads the sum; {kind} reads each component"
        raise _refuse("rewards.weight", [one.weight for one in config.rewards], because, "set algorithm.weights")
    weights = getattr(config.algorithm, "weights", ())
    if 0 < len(weights) < len(config.rewards):
        need = f"one for each component of the {len(config.rewards)} rewards, or none"
        raise ConfigError("algorithm.weights", got=weights, need=need)


def _check_functions(config: RunConfig, given: Mapping[str, RewardFunction]) -> None:
    """Every function is found and can be called, and how it is called has an effect."""
    names = dict.fromkeys([*(one.function for one in config.rewards), *config.gates])
    here = [as_reward(name, given[name]) for name in names if name in given]
    elsewhere = [load_reward(name) for name in names if name not in given]
    if config.evaluate:
        check_answer(config.evaluate)
    reward_workers, do = config.reward_workers, "name the functions, as module:function"
    if names and not elsewhere and reward_workers.num_workers is not None:
        because = "a function that runs in worker processes: all are objects of this one"
        raise _refuse("reward_workers.num_workers", reward_workers.num_workers, because, do)
    awaited = any(is_async(one.function) for one in here)
    if names and not elsewhere and not awaited and reward_workers.timeout != RewardWorkers().timeout:
        because = "a function that can be ended: all are objects of this process, and not async"
        raise _refuse("reward_workers.timeout", reward_workers.timeout, because, do)


def check_answer(settings: Evaluate) -> None:
    """Refuse an `answer` that is no function of a completion. Raises ConfigError."""
    if settings.answer_extractor is None:
        return
    found = locate(settings.answer_extractor)
    if not callable(found) or not _takes_one(found):
        got = f"a function {inspect.signature(found)}" if callable(found) else type(found).__name__
        raise ConfigError("evaluate.answer_extractor", got=got, need="a function (completion) -> text or None")


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind("")
    except TypeError:
        return False
    except ValueError:  # what is written in C may not tell
        return True
    return True


def _check_lag(config: RunConfig, algorithm: Algorithm) -> None:
    """A checkpoint and an evaluation hand the sampler the newest weights."""
    for key in ("checkpoint", "evaluate"):
        section = getattr(config, key)
        if config.rollout and config.rollout.max_staleness and section and section.every == 1:
            because = f"steps after which the sampler does not get new weights; {key}.every is 1"
            raise _refuse(
                "rollout.max_staleness",
                config.rollout.max_staleness,
                because,
                f"raise {key}.every, or leave rollout.max_staleness out",
            )


def _check_selection(config: RunConfig, algorithm: Algorithm) -> None:
    rollout = config.rollout
    if rollout is None:
        return
    if rollout.max_resample_rounds and algorithm.select is keep_all:
        because = f"an algorithm that drops groups; {kind_of(config.algorithm)} keeps all"
        raise _refuse(
            "rollout.max_resample_rounds", rollout.max_resample_rounds, because, "leave rollout.max_resample_rounds out"
        )
    if algorithm.advantage != identity and not _learns(algorithm, rollout.samples_per_prompt):
        because = f"groups that {kind_of(config.algorithm)} can compare; in smaller ones every advantage is 0"
        raise ConfigError(
            "rollout.samples_per_prompt",
            got=rollout.samples_per_prompt,
            need=because,
            do="set rollout.samples_per_prompt to 2 or more",
        )


def _learns(algorithm: Algorithm, samples: int) -> bool:
    """Whether groups of so many rows give any advantage: tried out on four, with one to four right rows."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        {"tokens": [0] * 4, "action": [False, True, True, True], "row": k, "group": k // samples}
        for k in range(4 * samples)
    ]
    batch = collate(rows)
    for name in set(algorithm.reads) - set(STRUCTURE):
        field = FIELDS[name]
        shape = [{"rows": len(batch), "time": 4}.get(axis, 2) for axis in field.axes.split()]
        batch = with_fields(batch, **{name: torch.rand(shape, generator=generator).to(field.dtype)})
    right = batch["row"] % samples <= batch["group"]
    outcome = torch.nn.functional.pad(right[:, None].float(), (3, 0))
    _, batch = compute_advantages(algorithm, algorithm.advantage.init(), with_fields(batch, reward=outcome))
    return bool(batch["advantage"].any())


_JUDGED = ("mean", "valid_fraction", "failed", "timed_out")
_SAMPLED = ("sampled", "kept_fraction", "truncated")
_LEARNED = (
    "accuracy", "chi2", "clip_fraction", "coverage", "dropped_fraction", "entropy", "forward_kl", "grad_norm",
    "approx_kl",
    "ref_kl", "sampler_kl", "learning_rate", "log_partition", "log_perplexity_gap", "margin", "ratio",
    "rejected_fraction",
    "reverse_kl", "skipped", "value_error", "weight", "weight_square",
)  # fmt: skip
_TIMED = (
    "advantage", "cpu", "evaluate", "generate", "reward", "score", "step", "store", "sync", "tokens_per_second",
    "update",
)  # fmt: skip


def _measured(config: RunConfig, algorithm: Algorithm) -> dict[str, tuple[str, ...]]:
    """What is known of the metrics that the run has: by what stands before the stroke, what stands behind it."""
    found: dict[str, tuple[str, ...]] = {one.role: _LEARNED for one in (*algorithm.before, *algorithm.objectives)}
    found |= {"rollout": ("length", "length_max"), "time": _TIMED}
    if config.evaluate:
        found["eval"] = tuple(name.removeprefix("eval/") for name in evaluated(config.evaluate))
    if config.rollout:
        named = (one.rpartition(":")[2] for one in (*(one.function for one in config.rewards), *config.gates))
        found["reward"] = (*_JUDGED, *(["overlong"] if config.rollout.overlong else []), *named)
        found["rollout"] += _SAMPLED
    return found


def _check_stop(config: RunConfig, algorithm: Algorithm) -> None:
    """Rewards and trainers give metrics of their own: of theirs only what is nearly one that is known is a mistake."""
    if config.stop_when is None or config.stop_when.metric == "step":
        return
    if config.stop_when.metric.startswith("eval/") and config.evaluate is None:
        raise _refuse("stop_when", config.stop_when, "an evaluation", "set evaluate, or leave stop_when out")
    (head, _, tail), measured = config.stop_when.metric.partition("/"), _measured(config, algorithm)
    known = measured.get(head, ())
    open_ended = bool(tail) and head in measured and head not in ("eval", "rollout", "time")
    if tail not in known and not (open_ended and not get_close_matches(tail, known, n=1, cutoff=0.75)):
        names = ["step", *(f"{above}/{name}" for above, below in measured.items() for name in below)]
        do = nearest(config.stop_when.metric, names)
        raise ConfigError("stop_when.metric", got=config.stop_when.metric, need="a metric that the run has", do=do)


def _check_cut(config: RunConfig, algorithm: Algorithm) -> None:
    whole_groups = any(one.unit == "group" for one in (*algorithm.before, *algorithm.objectives))
    samples = config.rollout.samples_per_prompt if config.rollout and not whole_groups else 1
    if config.num_minibatches > config.batch_size * samples:
        need = f"at most the {'groups' if whole_groups else 'rows'} of a step, {config.batch_size * samples}"
        raise ConfigError(
            "num_minibatches", got=config.num_minibatches, need=need, do="raise batch_size or lower num_minibatches"
        )


def _check_trackers(config: RunConfig, algorithm: Algorithm) -> None:
    kinds = [kind_of(tracker) for tracker in config.trackers]
    for kind, tracker in zip(kinds, config.trackers, strict=True):
        refuse = getattr(find("tracker", kind), "check", None)
        if refuse is not None:
            _named("trackers", refuse, tracker)
        if kinds.count(kind) > 1:
            raise ConfigError("trackers", got=f"{kinds.count(kind)} of the kind {kind!r}", need="one of each kind")
