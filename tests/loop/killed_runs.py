"""Kinds of small runs that are killed and resumed, and what must hold for them afterwards.

Runs of `KINDS` are equal to uninterrupted ones bit for bit. What those of `TIMED` sample depends on time: they train
each draw at most once, lose none, and train no token that is too old.

All of them train and sample a real model with the engines `hf`, except for an engine that decodes on its own: that is
the fake one, whose rows do not depend on each other at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.algos import dapo, dpo, gigpo, grpo, opd, ppo, prime, remax, sft
from purerl.algos.modifiers import bypass, entropy_bonus, importance_weight, kl_reward
from purerl.backends.hf.tiny_models import write_small_model
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.envs.settings import EnvironmentSettings
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.settings import RewardWorkers
from purerl.store.checkpoint import newest, restore
from purerl.store.groups import read_groups
from purerl.store.rollouts import read_rollouts
from purerl.store.settings import Checkpoint
from purerl.store.step_files import stored_steps
from tests.data.made import write

from .killed import run
from .runs import records, without_times
from .small import fake, small, small_real

__all__ = ["KINDS", "TIMED", "check_draws", "check_equal", "kill_until_finished"]


def _ppo(folder: Path) -> RunConfig:
    return small(
        algorithm=Composition(ppo.Config(), (importance_weight.Config(), kl_reward.Config(coef=0.01))),
        rollout=evolve(small().rollout, max_staleness=1),
        roles={"reference": Role(update_every=1, update_mix=0.5)},
    )


def _sft(folder: Path) -> RunConfig:
    return small_real(algorithm=sft.Config(), rollout=None, max_steps=4)


def _dpo(folder: Path) -> RunConfig:
    pairs = [{"prompt": f"{k}+{k}=", "chosen": f"{2 * k}", "rejected": "+"} for k in range(9)]
    data = write(folder / "pairs.parquet", pairs)
    offline = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
    return small_real(algorithm=dpo.Config(), data=data, max_steps=None, num_epochs=2, **offline)


def _dapo(folder: Path) -> RunConfig:
    """Groups are sampled again until they have variance, and a coefficient adapts."""
    adaptive = entropy_bonus.Config(coef=0.01, target=10.0)
    rollout = evolve(small().rollout, max_resample_rounds=2)
    gates = ("tests.loop.rewards:first_is_even",)
    return small_real(algorithm=Composition(dapo.Config(), (adaptive,)), rollout=rollout, gates=gates, max_steps=6)


def _remax(folder: Path) -> RunConfig:
    """A greedy baseline, and evaluations with several samples of each problem."""
    evaluate = evolve(small().evaluate, samples_per_prompt=2, temperature=1.0)
    return small_real(algorithm=remax.Config(), evaluate=evaluate, num_minibatches=1, max_steps=6)


def _prime(folder: Path) -> RunConfig:
    """Two trained models, and rewards that are functions of random numbers."""
    rewards = ("tests.loop.rewards:digits", "tests.loop.random_rewards:drawn")
    return small_real(algorithm=prime.Config(), rewards=rewards, max_steps=6)


def _distillation(folder: Path) -> RunConfig:
    """The teacher is another model than the policy."""
    write_small_model(folder / "teacher", character_tokenizer(), seed=1, max_length=32, initializer_range=0.06)
    return small_real(algorithm=opd.Config(), roles={"teacher": Role(model=str(folder / "teacher"))}, max_steps=6)


_CORRECTED = Composition(grpo.Config(), (bypass.Config(),))
"""An algorithm that corrects for stale rollouts."""


def _stale(max_staleness: int, make: Callable[..., RunConfig] = small_real, **changes: Any) -> RunConfig:
    """Rewards are computed by a worker process, so some are missing when a step ends."""
    rollout = evolve(small().rollout, max_staleness=max_staleness, **changes)
    return make(algorithm=_CORRECTED, rollout=rollout, reward_workers=RewardWorkers(num_workers=1), max_steps=7)


def _environment(max_staleness: int, game: str, **changes: Any) -> RunConfig:
    """A turn ends with an even digit. The ratio of the policies at the tokens is a weight of the loss."""
    settings = EnvironmentSettings(factory=f"tests.loop.games:{game}", has_states=True, max_turns=3, **changes)
    weighted = Composition(gigpo.Config(), (importance_weight.Config(),))
    algorithm, config = _CORRECTED if max_staleness else weighted, _stale(max_staleness)
    rollout = evolve(config.rollout, max_tokens=8, stop_strings=tuple("02468"))
    return evolve(config, algorithm=algorithm, rollout=rollout, rewards=(), environment=settings, max_steps=5)


def _in_event_loop(max_staleness: int) -> RunConfig:
    return _environment(max_staleness, "AsyncEvens", run_in="event_loop")


def _decodes_on_its_own(max_staleness: int, **changes: Any) -> RunConfig:
    """The engine samples in a thread of its own while the trainer trains."""
    config = _stale(max_staleness, fake, **changes)
    return evolve(config, generator=evolve(config.generator, in_process=False, seconds_per_token=0.001))


def _in_background(config: RunConfig) -> RunConfig:
    """A checkpoint after each step is written while the next step is done."""
    return evolve(config, checkpoint=Checkpoint(every=1, keep=2, background=True))


KINDS: Mapping[str, Callable[[Path], RunConfig]] = {
    "grpo": lambda folder: small(algorithm=grpo.Config()),
    "ppo, one step off policy, reference follows the policy": _ppo,
    "sft": _sft,
    "dpo, two epochs": _dpo,
    "dapo, resampled groups, adaptive entropy": _dapo,
    "remax, several samples in evaluations": _remax,
    "prime, random rewards": _prime,
    "distillation": _distillation,
    "three steps off policy": lambda folder: _stale(3),
    "environment in the event loop, one step off policy": lambda folder: _environment(
        1, "AsyncEvens", run_in="event_loop"
    ),
    "environment in the event loop": lambda folder: _environment(0, "AsyncEvens", run_in="event_loop"),
    "environment in processes": lambda folder: _environment(0, "SlowEvens", num_workers=2),
    "an engine that decodes on its own": lambda folder: _decodes_on_its_own(0),
    "checkpoints in the background": lambda folder: _in_background(small(algorithm=grpo.Config())),
    "checkpoints in the background, three steps off policy": lambda folder: _in_background(_stale(3)),
}

TIMED: Mapping[str, Callable[[Path], RunConfig]] = {
    "an engine that decodes on its own, three steps off policy": lambda folder: _decodes_on_its_own(3),
    "groups that finish first, and extra ones": lambda folder: _decodes_on_its_own(
        1, order="finished", num_extra_groups=2
    ),
    "an engine in a thread of its own, one step off policy": lambda folder: _stale(1, background=True),
    "extra groups, synchronous": lambda folder: _stale(0, order="finished", num_extra_groups=2),
    "groups that finish first": lambda folder: _stale(3, order="finished"),
    "environment in processes, one step off policy": lambda folder: _environment(1, "SlowEvens", num_workers=2),
}


def kill_until_finished(
    config: RunConfig, directory: Path, moments: Iterator[dict[str, Any]], *, max_kills: int = 1000
) -> int:
    """Start the run until it is finished, and kill it each time at the next of `moments`; return how often.

    After `max_kills` it is not killed any more.
    """
    kills = 0
    # A run may be killed just after it has been marked as finished.
    while not (directory / "summary.json").exists():
        code = run(config, directory, **(next(moments) if kills < max_kills else {}))
        assert code in (0, -9)
        kills += code == -9
    return kills


def check_equal(directory: Path, reference: Path) -> None:
    """Everything that both runs have written is equal, except for times."""
    outcome, expected = _outcome(directory), _outcome(reference)
    assert outcome.keys() == expected.keys()
    for name, value in expected.items():
        assert outcome[name] == value, name


def check_draws(directory: Path, config: RunConfig) -> None:
    """Every step of a finished run is complete, and each draw was trained, is kept for later, or was cancelled."""
    assert config.max_steps is not None
    assert config.rollout is not None
    metrics, steps = records(directory), range(1, config.max_steps + 1)
    assert [record["step"] for record in metrics] == [0, *steps]
    # The mismatch is that of tokens of the current version, of which a step may have none.
    others = ("eval/", "time/", "mismatch/") if config.rollout.max_staleness else ("eval/", "time/")
    names = [{name for name in record if not name.startswith(others)} for record in metrics[1:]]
    assert all(each == names[0] for each in names), "every step has all metrics"
    rows = [read_rollouts(directory / "rollouts", step) for step in steps]
    trained = [group for step in rows for group in dict.fromkeys(row["group"] for row in step)]
    assert [len({row["group"] for row in step}) for step in rows] == [config.batch_size] * config.max_steps
    assert max(record["rollout/staleness_max"] for record in metrics[1:]) <= config.rollout.max_staleness
    checkpoint = newest(directory / "checkpoints")
    assert checkpoint is not None
    state, waiting = restore(checkpoint, {}), checkpoint / "waiting" / "groups.parquet"
    later = [*state["in_flight"], *(group.draw for group in (read_groups(waiting) if waiting.exists() else ()))]
    used = [*trained, *later]
    assert len(set(used)) == len(used), "each draw is used once"
    assert set(used) <= set(range(state["num_draws"]))
    assert len(used) + sum(record.get("rollout/cancelled", 0) for record in metrics) == state["num_draws"]


def _outcome(directory: Path) -> dict[str, Any]:
    """Everything that a run writes, except for times."""
    outcome: dict[str, Any] = {}
    for name, part in {"initial": directory / "initial_run", "run": directory}.items():
        if part.exists():
            outcome[f"{name} metrics"] = without_times(records(part))
            files = sorted((part / "final").iterdir())
            outcome[f"{name} model"] = {file.name: file.read_bytes() for file in files}
            files = sorted((part / "evaluations").glob("*"))
            outcome[f"{name} evaluations"] = {file.name: file.read_bytes() for file in files}
            outcome[f"{name} checkpoints"] = sorted(path.name for path in (part / "checkpoints").iterdir())
    folder = directory / "rollouts"
    return outcome | {"rollouts": {step: read_rollouts(folder, step) for step in stored_steps(folder)}}
