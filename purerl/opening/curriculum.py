"""Draws of a curriculum: the prompts of draws that are in flight, and how often each prompt has been solved.

The prompt of a draw is a function of its number, the seed, and what was known when it was drawn. So the state holds the
prompts of draws that may be needed again: a run that is resumed samples those in flight once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from itertools import cycle, islice
from typing import Any

import torch
from attrs import asdict, define, field

from purerl.algos.estimators.difficulty import prompt_value
from purerl.algos.parts.rows import row_mean
from purerl.batch import collate
from purerl.data.curriculum import BANDS, bands_of, draw_position, importance_weights, is_retired, probabilities
from purerl.data.curriculum_settings import Curriculum
from purerl.data.examples import prompts_at, rows_at
from purerl.opening.draws import Sampler
from purerl.rollouts.episode_rows import results_of_episodes
from purerl.rollouts.filtering import named_components
from purerl.rollouts.types import Draw, Group, Trajectory

__all__ = ["CurriculumSampler", "Progress"]


@define
class Progress:
    """The state of a curriculum.

    solved, attempts  of each prompt, in the order of the indices of the data, decayed
    decided           the position and the weight of each draw that has not been trained
    queue             positions of the prompts that the next draws repeat
    is_focused        whether the last step repeated prompts
    """

    solved: torch.Tensor
    attempts: torch.Tensor
    decided: dict[int, tuple[int, float]] = field(factory=dict)
    queue: list[int] = field(factory=list)
    is_focused: bool = False


@define
class CurriculumSampler:
    """Draws examples as `sampler` does, but chooses them by `settings`."""

    sampler: Sampler
    settings: Curriculum
    batch_size: int
    _progress: Progress = field(init=False)
    _indices: list[int] = field(init=False)
    _position: dict[int, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._indices = self.sampler.data.indices
        self._position = {index: position for position, index in enumerate(self._indices)}
        zeros = torch.zeros(len(self._indices), dtype=torch.float64)
        self._progress = Progress(zeros, zeros.clone())

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the state, of plain values, for a checkpoint."""
        return deepcopy(asdict(self._progress, recurse=False))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with a `state` of a checkpoint; from the start if it is empty."""
        if state:
            self._progress = Progress(**deepcopy(dict(state)))

    def draw(self, first: int, count: int) -> list[Draw]:
        """The draws `first`, ..., `first + count - 1`. One that has been decided before is the same again."""
        progress, numbers = self._progress, range(first, first + count)
        if any(number not in progress.decided for number in numbers):
            self._decide([number for number in numbers if number not in progress.decided])
        indices = [self._indices[progress.decided[number][0]] for number in numbers]
        data = self.sampler.data
        examples = rows_at(data, indices)
        prompts = prompts_at(self.sampler.chat, data, indices, examples)
        columns = zip(numbers, indices, examples, prompts, strict=True)
        seed = self.sampler.seed
        return [Draw(number, *rest, key=str(number), seeds=(seed, number)) for number, *rest in columns]

    def _decide(self, numbers: Sequence[int]) -> None:
        progress, data = self._progress, self.sampler.data
        seed = self.sampler.seed if data.order_seed is None else data.order_seed
        probability = probabilities(self.settings, progress.solved, progress.attempts)
        weight, cumulative = importance_weights(probability), probability.cumsum(0)
        for number in numbers:
            position = progress.queue.pop(0) if progress.queue else draw_position(cumulative, seed, number)
            progress.decided[number] = position, float(weight[position])

    def row_fields(self, draw: Draw) -> dict[str, Any]:
        """The fields of a row that depend only on its draw."""
        fields = self.sampler.row_fields(draw)
        if self.settings.is_weighted:
            fields["draw_weight"] = self._progress.decided[draw.number][1]
        return fields

    def observe(self, groups: Sequence[Group]) -> None:
        """Count the attempts in `groups`, which a step has taken. Rows without a reward are no attempts."""
        progress = self._progress
        for group in sorted(groups, key=lambda group: group.draw):
            rewards = [result.reward for result in results_of_episodes(group.trajectories)]
            scores = [reward for reward in rewards if reward is not None]
            if scores and group.draw in progress.decided:
                position = progress.decided[group.draw][0]
                solved = sum(score >= self.settings.solved_at for score in scores)
                progress.solved[position] = self.settings.decay * progress.solved[position] + solved
                progress.attempts[position] = self.settings.decay * progress.attempts[position] + len(scores)

    def end_step(self, rows: Sequence[Trajectory], waiting: Collection[int]) -> dict[str, float]:
        """Forget the draws that are not `waiting`, choose prompts to repeat from `rows`, and return metrics."""
        progress = self._progress
        progress.decided = {
            number: progress.decided[number] for number in sorted(waiting) if number in progress.decided
        }
        if self.settings.focus:
            progress.is_focused = not progress.is_focused and bool(rows)
            progress.queue = self._most_valuable(rows) if progress.is_focused else []
        return self._metrics()

    def _most_valuable(self, rows: Sequence[Trajectory]) -> list[int]:
        """The prompts of `rows` with the largest `prompt_value`, in turn, for a whole step."""
        correct = torch.tensor(named_components(rows, "correctness")) >= 0.5
        batch = collate([row.fields for row in rows])
        mask = batch["mask"]
        value = prompt_value(row_mean(batch["rollout_logp"], mask), correct, batch["group"], mask.any(-1))
        of_prompt: dict[int, float] = {}
        for row, number in zip(rows, value.tolist(), strict=True):
            position = self._position[row.fields["example"]]
            of_prompt[position] = max(number, of_prompt.get(position, 0.0))
        best = sorted(of_prompt, key=lambda position: (-of_prompt[position], position))[: self.settings.focus]
        return [*islice(cycle(best), self.batch_size)]

    def _metrics(self) -> dict[str, float]:
        progress, settings = self._progress, self.settings
        retired = is_retired(settings, progress.solved, progress.attempts)
        metrics = {"curriculum/tried": int((progress.attempts > 0).sum()), "curriculum/retired": int(retired.sum())}
        if settings.by == "bands":
            count = torch.bincount(bands_of(settings, progress.solved, progress.attempts)[~retired], minlength=3)
            metrics |= {f"curriculum/{name}": int(number) for name, number in zip(BANDS, count, strict=True)}
        if settings.focus:
            metrics["curriculum/repeats_next"] = float(bool(progress.queue))
        return {name: float(value) for name, value in metrics.items()}
