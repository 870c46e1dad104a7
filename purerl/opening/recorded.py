"""Training on the recorded completions of another run, in place of completions that the policy samples.

The draws are those of the recorded run, in their order, and again from the first one on when all have been drawn. A
group that it did not keep is not recorded and has no rows. So a run with the same settings has the same rows in each
step. Rows keep their tokens, rewards and log-probabilities `rollout_logp`. Another policy has sampled them, so only
algorithms are accepted that correct for it, see `purerl.config.reuse`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from purerl.algos.algebra import Algorithm, reads_of
from purerl.batch import FIELDS
from purerl.config.schema import RunConfig
from purerl.config.stored import read_config
from purerl.data.chat import Prompt
from purerl.errors import ConfigError
from purerl.models.tokenizer import check_same_ids
from purerl.rewards.results import RewardResult
from purerl.rollouts.settings import Rollout
from purerl.rollouts.types import Draw, Generate, Trajectory
from purerl.settings import Model
from purerl.store.rollouts import read_table, total_reward
from purerl.store.step_files import step_path, stored_steps

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["RecordedGroups", "check_recorded", "check_recorded_tokens", "recorded_files"]

_TEXTS = ("prompt", "completion", "finish", "ground_truth", "messages")
_MADE = {"attention_mask", "noise", "score", "version"}
"""Input fields that are not taken from the record: they are made again, or are those of other weights."""

_SAME = ("samples_per_prompt", "max_tokens", "temperature", "stop_strings", "workflow")
"""Settings of `rollout` that say how the recorded completions were sampled."""


def check_recorded(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse a run on recorded completions whose settings contradict the record, or whose algorithm needs more.

    Raises: RunDirectoryError if there is no such run; ConfigError.
    """
    if config.rollout is None or config.rollout.recorded is None:
        return
    path = Path(config.rollout.recorded)
    recorded, steps = read_config(path), stored_steps(path / "rollouts")
    if recorded.rollout is None or not steps:
        need = "the directory of a run with rollouts"
        raise ConfigError("rollout.recorded", got=f"{str(path)!r}, which has no rollouts", need=need)
    pairs = {name: (getattr(config, name), getattr(recorded, name)) for name in ("rewards", "gates", "environment")}
    pairs |= {f"rollout.{name}": (getattr(config.rollout, name), getattr(recorded.rollout, name)) for name in _SAME}
    for key, (value, other) in pairs.items():
        if value != other:
            need = f"{_shown(other)}, as in the recorded run, whose completions and rewards are trained on"
            do = f"use the settings of {str(path / 'config.toml')!r}"
            raise ConfigError(key, got=_shown(value), need=need, do=do)
    models = [each.full_name for each in (*config.rewards, *config.gates) if each.role is not None]
    if models:
        raise ConfigError("rewards or gates", got=", ".join(models), need="functions and kinds, with rollout.recorded")
    import pyarrow.parquet

    files = [step_path(path / "rollouts", step) for step in (steps[0], steps[-1])]
    columns = {name for file in files for name in pyarrow.parquet.read_schema(file).names}
    reads = [name for name in reads_of(algorithm) if FIELDS[name].is_input and name not in _MADE]
    missing = [name for name in reads if name not in columns or name == "components"]
    missing += ["image"] if "image" in columns else []
    if missing:
        got = f"recorded rows from which it cannot read {', '.join(missing)}"
        raise ConfigError(f"algorithm {config.algorithm}", got=got, need="an algorithm that does without, or sampling")


def _shown(value: Any) -> str:
    names = [each.full_name for each in value if hasattr(each, "full_name")] if isinstance(value, tuple) else []
    return ", ".join(names) or repr(value)


def recorded_files(rollout: Rollout | None, directory: Path) -> list[str]:
    """The rollouts that a run in `directory` trains on; none, if it samples. Raises: ConfigError."""
    if rollout is None or rollout.recorded is None:
        return []
    path = Path(rollout.recorded)
    if path.resolve() == directory.resolve():
        need = "the directory of another run"
        raise ConfigError("rollout.recorded", got=f"{str(path)!r}, the directory of this run", need=need)
    return [str(step_path(path / "rollouts", step)) for step in stored_steps(path / "rollouts")]


def check_recorded_tokens(rollout: Rollout | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a policy whose `tokenizer` has other ids than the recorded run. Raises: ConfigError."""
    if rollout is not None and rollout.recorded is not None:
        recorded = Model(str(Path(rollout.recorded) / "tokenizer"))
        check_same_ids(tokenizer, recorded, "recorded run")


@frozen
class _Location:
    """The file of a group, and its rows there."""

    step: int
    rows: tuple[int, ...]


@define
class RecordedGroups:
    """The recorded groups of the run in the directory `path`: a workflow, and what draws them.

    One file is in memory at a time, because groups are drawn in their order.
    """

    path: Path
    seed: int
    _loaded: tuple[int, list[dict[str, Any]]] = field(default=(-1, []), init=False, repr=False)

    @cached_property
    def groups(self) -> Mapping[int, _Location]:
        """All recorded groups, by the number of their draw, which is the label of their rows."""
        found = {}
        for step in stored_steps(self.path / "rollouts"):
            labels = read_table(self.path / "rollouts", step, ["group"])["group"].to_pylist()
            order = sorted(range(len(labels)), key=labels.__getitem__)
            found |= {n: _Location(step, tuple(rows)) for n, rows in groupby(order, key=labels.__getitem__)}
        return found

    @cached_property
    def _numbers(self) -> range:
        """The draws of the recorded run: whole batches, the last of which may end with groups that were not kept.

        A run that started from a checkpoint of another one begins with its first group.
        """
        first = 0 if stored_steps(self.path / "rollouts")[0] == 1 else min(self.groups)
        config = read_config(self.path)
        batch_size = (config.rollout and config.rollout.gen_batch_size) or config.batch_size
        return range(first, first + math.ceil((max(self.groups) + 1 - first) / batch_size) * batch_size)

    @cached_property
    def _max_rows(self) -> int:
        return max(len(group.rows) for group in self.groups.values())

    def draw(self, first: int, count: int) -> list[Draw]:
        """The draws `first`, ..., `first + count - 1`: their numbers say which groups they are."""
        numbers = range(first, first + count)
        return [Draw(n, 0, {}, Prompt("", []), key=str(n), seeds=(self.seed, n)) for n in numbers]

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        """The rows of the recorded group of `draw`: none, if the recorded run did not keep it. Nothing is generated."""
        group = self.groups.get(self._numbers[draw.number % len(self._numbers)])
        if group is None:
            return []
        rows = self._rows_of(group.step)
        episodes = [*dict.fromkeys(rows[row].get("episode", row) for row in group.rows)]
        first = draw.number * self._max_rows
        labels = [first + episodes.index(rows[row].get("episode", row)) for row in group.rows]
        return [
            _trajectory(rows[row], group=draw.number, row=first + k, episode=labels[k])
            for k, row in enumerate(group.rows)
        ]

    def _rows_of(self, step: int) -> list[dict[str, Any]]:
        if self._loaded[0] != step:
            self._loaded = step, read_table(self.path / "rollouts", step).to_pylist()
        return self._loaded[1]


def _trajectory(recorded: Mapping[str, Any], **labels: int) -> Trajectory:
    """The recorded row, with the labels that it has in this run."""
    fields = {name: value for name, value in recorded.items() if name in FIELDS and FIELDS[name].is_input}
    fields = {name: value for name, value in fields.items() if name not in _MADE} | {
        name: label for name, label in labels.items() if name in recorded
    }
    reward = total_reward(recorded)
    values = {name.removeprefix("reward/"): value for name, value in recorded.items() if name.startswith("reward/")}
    components = {name: value for name, value in values.items() if value is not None}
    result = RewardResult() if reward is None else RewardResult(components, {"recorded": reward})
    return Trajectory(fields, {name: recorded[name] for name in _TEXTS if name in recorded}, result)
