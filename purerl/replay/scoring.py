"""Recorded completions, scored again by other reward functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen

from purerl.algos.algebra import Algorithm, reads_of
from purerl.batch import with_fields
from purerl.config.paths import resolve_paths
from purerl.data.examples import DataSet, read_examples, rows_at
from purerl.data.open import file_digests
from purerl.errors import ConfigError, DataError
from purerl.models.tokenizer import load_tokenizer
from purerl.opening.task import check_rows, open_runner
from purerl.replay.recording import Recording
from purerl.rewards.adapters import RewardInput, RunLength
from purerl.rewards.check import check_rewards
from purerl.rewards.results import components_of
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward
from purerl.seeds import derive_seed
from purerl.settings import Model
from purerl.store.directory import unlocked
from purerl.types import TensorDict

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Scorer", "open_scorer"]


@frozen
class Scorer:
    """Scores the completions of a step with `runner`.

    data            the prompts of the run
    seed            of the run
    samples         completions of each prompt
    has_components  whether the algorithm reads the field `components`
    tokenizer       of the run; None unless a function reads `RewardInput.query`
    failures        the number of completions without a reward, by the function that failed and what happened
    """

    runner: RewardRunner
    data: DataSet
    seed: int
    samples: int
    has_components: bool
    tokenizer: Any
    failures: Counter[str] = field(factory=Counter)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rollouts that are read."""
        return ("prompt", "completion", "finish", "tokens", "action", "row", "group", "example", "truncated", "version")

    def __call__(self, table: pa.Table, batch: TensorDict) -> TensorDict:
        """`batch` with the rewards of `runner`. A completion without one is masked out, as in a run."""
        columns = table.select([*self.columns]).to_pydict()
        scored = [row for row, finish in enumerate(columns["finish"]) if finish != "error"]
        results = self.runner.run(self._inputs(columns, scored))
        self.failures.update(f"{each.failure.function} {each.failure.kind}" for each in results if each.failure)
        rewards, has_reward = torch.zeros(len(table)), torch.zeros(len(table), dtype=torch.bool)
        rewards[scored] = torch.tensor([result.reward or 0.0 for result in results])
        has_reward[scored] = torch.tensor([result.reward is not None for result in results])
        action = batch["action"]
        is_last = action & (action.flip(-1).cumsum(-1).flip(-1) == 1)
        fields = {"mask": action & has_reward[:, None], "reward": rewards[:, None] * is_last}
        if self.has_components:
            components = torch.tensor(components_of(results, self.runner.components))
            fields["components"] = torch.full((len(table), components.shape[-1]), torch.nan)
            fields["components"][scored] = components
        return with_fields(batch.exclude("components", "score", "greedy_score"), **fields)

    def _inputs(self, columns: dict[str, list[Any]], rows: Sequence[int]) -> list[RewardInput]:
        """The inputs of reward functions for `rows`, as when they were sampled."""
        examples = rows_at(self.data, [columns["example"][row] for row in rows])
        tokens = [columns["tokens"][row][len(columns["action"][row]) - sum(columns["action"][row]) :] for row in rows]
        ends = self.tokenizer.batch_decode(tokens, skip_special_tokens=False) if self.tokenizer else [None] * len(rows)
        inputs = []
        for row, example, ids, end in zip(rows, examples, tokens, ends, strict=True):
            group, prompt = columns["group"][row], columns["prompt"][row]
            key = f"{group}/{columns['row'][row] - group * self.samples}"
            inputs.append(
                RewardInput(
                    row=key,
                    completion=columns["completion"][row],
                    example=example,
                    seed=derive_seed(self.seed, "reward", key),
                    tokens=ids,
                    truncated=columns["truncated"][row],
                    prompt=prompt,
                    query=None if end is None else prompt + end,
                    step=max(columns["version"][row], default=0),
                )
            )
        return inputs


@contextmanager
def open_scorer(recording: Recording, rewards: Sequence[Reward], algorithm: Algorithm) -> Iterator[Scorer]:
    """A scorer of `recording` with `rewards` in place of the run's own. Its gates stay.

    Functions run in worker processes, as in a run. `algorithm` is the one of the replay.

    Raises: ConfigError for rewards that cannot be called, or that are models, and for episodes; DataError if the data
    of the run have changed.
    """
    config = resolve_paths(evolve(recording.config, rewards=tuple(rewards)), recording.path)
    if config.environment is not None or (config.rollout is not None and config.rollout.workflow is not None):
        got = "episodes of an environment" if config.environment else "rows of a workflow"
        need = "completions of one turn, which reward functions can score again"
        raise ConfigError("--reward", got=got, need=need, do="leave --reward out")
    models = [each.full_name for each in (*config.rewards, *config.gates) if each.role is not None]
    if models:
        need = "functions and kinds: a replay loads no model"
        raise ConfigError("rewards and gates of the replay", got=", ".join(models), need=need)
    check_rewards(config.rewards, config.gates, config.reward_workers, {})
    facts = unlocked(recording.path).facts
    digests, recorded = file_digests(config.data.files), facts.get("files", {})
    changed = [path for path, digest in digests.items() if recorded and digest not in recorded.values()]
    if changed:
        need = "the prompts of the run, with which reward functions compare completions"
        raise DataError("the data of the run have changed", got=", ".join(changed), need=need, do="restore them")
    data = read_examples(config.data.files, "prompts", columns=config.data.columns)
    runner = open_runner(config.rewards, config.gates, config.reward_workers)
    check_rows(runner, [data])
    steps_per_epoch = facts.get("examples", data.num_rows) / config.batch_size
    runner.length = RunLength(facts.get("max_steps", 0), steps_per_epoch)
    tokenizer = load_tokenizer(Model(str(unlocked(recording.path).tokenizer))) if runner.reads_query else None
    samples = config.rollout.samples_per_prompt if config.rollout else 1
    with runner:
        yield Scorer(runner, data, config.seed, samples, "components" in reads_of(algorithm), tokenizer)
