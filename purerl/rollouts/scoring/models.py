"""Rewards that models compute in the processes of a run: classifiers, and judges.

The models of `roles.rewards` score all completions of a step together, before rows are selected and advantages are
computed. The score of each is a component of the reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet
from purerl.rewards.outcomes import Failure
from purerl.rewards.routing import applies, routes_of
from purerl.rewards.settings import Gate, Reward, by_name
from purerl.rollouts.episode_rows import episodes_of
from purerl.rollouts.failures import MissingSample, missing_samples
from purerl.rollouts.scoring.rows import Scores, ScoringModel, failed, open_rows, with_scores
from purerl.rollouts.types import Group, Trajectory

__all__ = ["ModelRewards", "OnMissing"]

OnMissing = Callable[[MissingSample], object]
"""Called with each sample that a model could not score."""


@frozen
class ModelRewards:
    """Adds the scores of `models` to the rewards of groups.

    models         by their names in `roles.rewards`
    rewards        all rewards of the run: functions, and models
    gates          all gates of the run
    prompt_format  of the data, as the policy reads it
    """

    models: Mapping[str, ScoringModel] = field(factory=dict)
    rewards: Sequence[Reward] = ()
    gates: Sequence[Gate] = ()
    prompt_format: PromptFormat = "text"

    def __call__(self, groups: Sequence[Group], data: DataSet, samples: int, on_missing: OnMissing) -> list[Group]:
        """`groups` of `samples` each, whose examples are rows of `data`, with the scores of all models. Collective.

        A model scores the rows that one of its rewards or gates applies to. Of several rows of an episode the last one
        is scored, which has the whole conversation. A row that a model cannot score has no reward, and is masked out.
        """
        if not self.models or not groups:
            return [*groups]
        rows = [row for group in groups for row in group.trajectories]
        scored = {id(row): row for row in rows}
        episodes = [episode for episode in episodes_of(rows) if _is_scored(episode[-1])]
        for episode, new in zip(episodes, self._with_scores(episodes, data), strict=True):
            scored.update((id(old), row) for old, row in zip(episode, new, strict=True))
        after = [evolve(g, trajectories=tuple(scored[id(row)] for row in g.trajectories)) for g in groups]
        for old, new in zip(groups, after, strict=True):
            known = {missing.name for missing in missing_samples(old, samples)}
            for missing in missing_samples(new, samples):
                if missing.name not in known:
                    on_missing(missing)
        return after

    def _with_scores(self, episodes: Sequence[Sequence[Trajectory]], data: DataSet) -> Iterator[list[Trajectory]]:
        """The rows of each of `episodes`."""
        opened = open_rows([episode[-1] for episode in episodes], data, self.prompt_format)
        scores: list[dict[str, Scores]] = [{} for _ in episodes]
        failures: dict[int, Failure] = {}
        for name, model in self.models.items():
            uses = [reward for reward in by_name(self.rewards, self.gates).values() if reward.role == name]
            readers = [[use for use in uses if applies(routes_of(use), row.example)] for row in opened]
            numbers = [k for k, used in enumerate(readers) if used and k not in failures]
            for k, result in zip(numbers, model([opened[k] for k in numbers]), strict=True):
                if isinstance(result, Failure):
                    failures[k] = result
                else:
                    scores[k] |= {use.full_name: result for use in readers[k]}
        rewards, gates = ({each.full_name: each for each in section} for section in (self.rewards, self.gates))
        for k, episode in enumerate(episodes):
            if k in failures:
                yield [failed(row, failures[k]) for row in episode]
            else:
                yield with_scores(episode, scores[k], rewards, gates) if scores[k] else [*episode]


def _is_scored(row: Trajectory) -> bool:
    """Whether there is something to score, and no function has failed on it or returned that it has no reward."""
    has_reward = row.result.reward is not None or bool(row.result.by_function)
    return any(row.fields["action"]) and row.result.failure is None and has_reward
