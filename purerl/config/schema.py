"""The configuration of a run: the frozen class `RunConfig`, which is composed of the settings of all packages.

A recipe is a Python function that returns a RunConfig; a TOML file has the same fields. A field that names an engine
holds the `Config` of its module. The field of the algorithm holds a `Composition`: the Config of the algorithm, and
those of its modifiers.

Paths may start with ``{run}``, the run directory, for files that `prepare_data` or `initial_run` writes there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, frozen
from attrs.converters import optional

from purerl.composition import Composition, to_composition
from purerl.config.missing import find_missing
from purerl.config.tables import ALTERNATIVES, with_kind
from purerl.data.settings import Data, to_data
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.evaluation.settings import Evaluate, Validation
from purerl.monitoring.debugging.settings import Debug
from purerl.placement.settings import Placement
from purerl.rewards.judges.settings import Judge
from purerl.rewards.settings import Gate, Reward, RewardWorkers, to_gates, to_rewards
from purerl.rewards.steps import Steps
from purerl.rollouts.settings import Rollout
from purerl.settings import Model, above_zero, at_least, boolean, check_alternatives, no_effect, setting, to_model
from purerl.store.settings import Checkpoint

__all__ = ["Role", "RunConfig", "StopWhen"]


@frozen(kw_only=True)
class Role:
    """A model other than the policy: critic, reference, reward model or teacher.

    A model that is not trained may follow the policy: every `update_every` steps its weights become
    (1 - update_mix) * own + update_mix * policy. A model in ``roles.rewards`` scores completions: a classifier, or with
    `judge` a language model that answers a question about each of them.
    """

    model: Model | None = setting(
        "where the model is loaded from; if not given, the run's model", default=None, converter=optional(to_model)
    )
    trainer: Any = setting(
        "the engine; settings that are missing are those of the run's trainer, unless a kind is set",
        default=None,
        plugin="trainer",
    )
    update_every: int | None = setting(
        "steps between updates from the policy; if not given, the model does not change", default=None, **at_least(1)
    )
    update_mix: float = setting(
        "weight of the policy in an update; 1: the weights are replaced",
        default=1.0,
        need="above 0 and at most 1",
        valid=lambda value: 0 < value <= 1,
    )

    precompute: bool = setting(
        "only of the reference, in a run that learns from data: its log-probabilities are computed for all rows before "
        "the first step, and the model is not kept in memory",
        default=False,
        **boolean(),
    )
    num_minibatches: int | None = setting(
        "mini-batches of this model in a step, if it is trained; if neither this nor minibatch_size is given, as many "
        "as the run has",
        default=None,
        **at_least(1),
    )
    minibatch_size: int | None = setting(
        "prompts, demonstrations or pairs per mini-batch of this model, instead of num_minibatches",
        default=None,
        **at_least(1),
    )
    ppo_epochs: int | None = setting(
        "passes of this model over the rows of a step, if it is trained; if not given, those of the run",
        default=None,
        **at_least(1),
    )

    steps: Steps | None = setting(
        "only in roles.rewards: the model scores each step of a completion; if not given, the whole completion",
        default=None,
    )

    judge: Judge | None = setting(
        "only in roles.rewards: the model is a language model, which is asked about each completion; if not given, it "
        "is a classifier",
        default=None,
    )

    generator: Any = setting(
        "only in roles.rewards: the engine that samples the answers of a judge; if not given, hf",
        default=None,
        plugin="generator",
    )

    def __attrs_post_init__(self) -> None:
        if self.update_mix != 1 and self.update_every is None:
            raise no_effect("update_mix", self.update_mix, "updates from the policy", "set update_every")
        check_alternatives(self, "num_minibatches", "minibatch_size")


@frozen(kw_only=True)
class StopWhen:
    """Stop the run early, as soon as a metric is high enough."""

    metric: str = setting("name of the metric, such as eval/accuracy", may_change="end")
    at_least: float = setting(
        "the value that stops the run", need="a finite number", valid=math.isfinite, may_change="end"
    )


@frozen(kw_only=True)
class RunConfig:
    """A run, from its data to its trained model."""

    name: str = setting("name of the run, and of its default directory", example='"my_run"')
    model: Model = setting(
        "the model that is trained: the policy at its start",
        converter=to_model,
        example='"Qwen/Qwen2.5-0.5B-Instruct"',
    )
    data: Data = setting(
        "training data: prompts, demonstrations or preference pairs", converter=to_data, example='"train.jsonl"'
    )
    algorithm: Composition = setting("the algorithm", plugin="algorithm", converter=to_composition, example='"grpo"')
    max_steps: int | None = setting("number of steps", unit="steps", default=None, may_change="length", **at_least(1))
    num_epochs: float | None = setting(
        "number of passes over the training data, instead of max_steps",
        default=None,
        **above_zero(),
        may_change="length",
    )
    batch_size: int = setting(
        "prompts, demonstrations or preference pairs per step", example="64", **at_least(1, 100_000)
    )
    num_minibatches: int | None = setting(
        "mini-batches, each one optimizer step, that the rows of a step are split into; 1 if not given",
        default=None,
        **at_least(1),
    )
    minibatch_size: int | None = setting(
        "prompts, demonstrations or pairs per mini-batch, instead of num_minibatches", default=None, **at_least(1)
    )
    ppo_epochs: int = setting("passes over the rows of a step", default=1, **at_least(1))
    trainer: Any = setting(
        "the engine that trains the policy and computes outputs of the other models",
        plugin="trainer",
        example='{kind = "hf", lr = 1e-6}',
    )
    roles: Mapping[str, Role | Mapping[str, Role]] = setting(
        "other models by role: critic, reference, reward_model, teacher; several teachers are teachers.NAME, and the "
        "column data_source has the name of each row's teacher. Models whose scores are rewards are rewards.NAME",
        factory=dict,
    )
    critic_warmup: int = setting(
        "number of first steps in which only the critic is trained", unit="steps", default=0, **at_least(0)
    )
    generator: Any = setting("the engine that samples completions", default=None, plugin="generator")
    rollout: Rollout | None = setting("how completions are sampled for training", default=None)
    environment: EnvironmentSettings | None = setting(
        "what the policy interacts with in several turns: an environment, or tools", default=None
    )
    rewards: tuple[Reward, ...] = setting(
        "functions and kinds of rewards whose weighted sum is the reward", default=(), converter=to_rewards
    )
    gates: tuple[Gate, ...] = setting(
        "functions and kinds that must return at least 1, or the reward is 0", default=(), converter=to_gates
    )
    reward_workers: RewardWorkers = setting("how reward functions are called", factory=RewardWorkers)
    evaluate: Evaluate | None = setting("how the policy is evaluated, by its completions", default=None)
    validation: Validation | None = setting(
        "how a policy that learns from data is validated, by its loss on held-out data", default=None
    )
    checkpoint: Checkpoint = setting("when checkpoints are written", factory=Checkpoint)
    trackers: tuple[Any, ...] = setting(
        "what records the run beside its directory: wandb, tensorboard, ...",
        default=(),
        plugin="tracker",
        may_change=True,
    )
    placement: Placement = setting("where the processes of a run are", factory=Placement)
    debug: Debug = setting("what is written for debugging", factory=Debug)
    stop_when: StopWhen | None = setting("when to stop the run early", default=None)
    initial_run: RunConfig | None = setting(
        "a run that is done first, in {run}/initial_run; its model is {run}/initial_run/final", default=None
    )
    prepare_data: str | None = setting(
        "module:function that is called with (directory, seed) and writes files into {run}/prepared", default=None
    )
    num_threads: int | None = setting(
        "CPU threads of torch, divided among the ranks of a host; if not given, torch decides",
        default=None,
        may_change="rounding",
        **at_least(1, 1024),
    )
    seed: int = setting("seed of everything random", default=0, **at_least(0, 2**63 - 1))

    def __attrs_post_init__(self) -> None:
        if not re.fullmatch(r"[\w., -]{1,100}", self.name) or not self.name.strip(". "):
            need = "at most 100 letters, digits, spaces and . , - _, not only dots: it names a directory"
            raise ConfigError("name", got=repr(self.name), need=need, do="purerl train --directory sets any other path")
        check_alternatives(self, "max_steps", "num_epochs", is_required=True)
        check_alternatives(self, "num_minibatches", "minibatch_size")
        sizes = {"minibatch_size": self.minibatch_size}
        for name, role in self.roles.items():
            if isinstance(role, Role):
                sizes[f"roles.{name}.minibatch_size"] = role.minibatch_size
        for key, size in sizes.items():
            if size is not None and self.batch_size % size:
                raise ConfigError(key, got=size, need=f"a divisor of batch_size, {self.batch_size}")

    @staticmethod
    def _prepare_table(table: Mapping[str, Any]) -> dict[str, Any]:
        """`table` with the trainers of roles completed: settings that are missing are those of the run's trainer."""
        shared, roles = with_kind(table.get("trainer")), table.get("roles")
        if not isinstance(shared, Mapping) or not isinstance(roles, Mapping):
            return dict(table)
        return {**table, "roles": {name: _with_trainer(role, shared) for name, role in roles.items()}}

    @staticmethod
    def _find_missing(table: Mapping[str, Any]) -> Iterator[ConfigError]:
        return find_missing(table)

    @property
    def evaluation(self) -> Evaluate | None:
        """The section `evaluate`; if it has no limit of new tokens, with that of `rollout`."""
        if self.evaluate is None or self.evaluate.max_tokens is not None or self.rollout is None:
            return self.evaluate
        return evolve(self.evaluate, max_tokens=self.rollout.max_tokens)

    def _repr_html_(self) -> str:
        """The configuration as a notebook shows it."""
        from purerl.config.html import as_html

        return as_html(self)

    @property
    def minibatches(self) -> int:
        """The number of mini-batches of a step."""
        return self.batch_size // self.minibatch_size if self.minibatch_size else self.num_minibatches or 1


def _with_trainer(role: Any, shared: Mapping[str, Any]) -> Any:
    """The table of a role, or of several teachers, with trainers completed by `shared`."""
    if not isinstance(role, Mapping):
        return role
    trainer = role.get("trainer")
    if isinstance(trainer, Mapping):
        replaced = {ALTERNATIVES.get(name) for name in trainer}
        inherited = {name: value for name, value in shared.items() if name not in replaced}
        return {**role, "trainer": trainer if "kind" in trainer else {**inherited, **trainer}}
    return {name: part if name == "model" else _with_trainer(part, shared) for name, part in role.items()}
