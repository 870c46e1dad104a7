"""Where the rows of a step come from: completions of the policy, demonstrations, or preference pairs.

A source is called with the state of the loop and a clock. It draws examples, advances `num_draws`, and returns the rows
and its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import evolve, frozen

from purerl.algos.algebra import Algorithm, keep_all, reads_of, select_rows
from purerl.algos.parts.shaping import overlong_penalty
from purerl.batch import collate
from purerl.data.chat import Chat, Prompt, TokenizedExample
from purerl.data.examples import DataSet, Example, indices_of_draws, prompts_at, rows_at, tokenized_at
from purerl.loop.distributions import reward_spread
from purerl.loop.metrics import reward_metrics
from purerl.loop.rewards import RunRewards, StepRewards
from purerl.loop.run import Clock, LoopState, Trajectory
from purerl.protocols import Completion, Generator, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.runner import RewardResult
from purerl.rollouts.complete import complete
from purerl.rollouts.settings import Rollout
from purerl.seeds import derive_seed

__all__ = ["Demonstrations", "Draw", "PolicyRollouts", "Preferences", "Sampler", "Source"]


class Source(Protocol):
    """Makes the rows of one step."""

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]: ...


@frozen
class Draw:
    """An example, its tokenized prompt, the number of its draw, and its index in the data set."""

    number: int
    index: int
    example: Example
    prompt: Prompt


@frozen
class Sampler:
    """Draws examples from `data`, `batch_size` per step; `teachers` are the names of several teachers."""

    data: DataSet
    chat: Chat
    batch_size: int
    seed: int
    teachers: tuple[str, ...] = ()

    def draw(self, first: int, count: int) -> list[Draw]:
        """The draws `first`, ..., `first + count - 1`."""
        return self.draws_of(indices_of_draws(self.data, self.seed, first, count), first)

    def draws_of(self, indices: Sequence[int], first: int) -> list[Draw]:
        """The examples at `indices` as the draws `first`, `first + 1`, ..."""
        examples = rows_at(self.data, indices)
        prompts = prompts_at(self.chat, self.data, indices, examples)
        return list(map(Draw, range(first, first + len(indices)), indices, examples, prompts))

    def row_fields(self, draw: Draw) -> dict[str, Any]:
        """The fields of a row that depend only on its draw."""
        teacher = {"teacher_index": self.teachers.index(draw.example["data_source"])} if self.teachers else {}
        return {"group": draw.number, "example": draw.index, **teacher}

    def answers(self, draw: Draw) -> list[TokenizedExample]:
        """The prompt of `draw` with each of its answers."""
        return tokenized_at(self.chat, self.data, draw.index, draw.example)


# --- completions of the policy -----------------------------------------------------------------------------------


@frozen
class PolicyRollouts:
    """Samples completions, computes their rewards, and keeps the groups that the algorithm selects.

    Groups that are not kept are replaced by new ones, at most `max_resample_rounds` times. If no completion has a
    reward, none is kept.
    """

    sampler: Sampler
    generator: Generator
    rewards: RunRewards
    settings: Rollout
    algorithm: Algorithm

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        kept: list[Trajectory] = []
        sampled: list[Trajectory] = []
        greedy: dict[int, RewardResult] = {}
        rewards = self.rewards.of_step(state.step + 1)
        for _ in range(1 + self.settings.max_resample_rounds):
            count = self.sampler.batch_size - _number_of_groups(kept)
            draws, state = self.sampler.draw(state.num_draws, count), evolve(state, num_draws=state.num_draws + count)
            with clock("generate"):
                requests = self._requests(draws)
                completions = complete(self.generator, self.sampler.chat.tokenizer, requests)
            with clock("reward"):
                trajectories = self._trajectories(draws, requests, completions, rewards)
            if "greedy_score" in reads_of(self.algorithm):
                with clock("generate"):
                    greedy |= self._greedy_results(draws, rewards)
            sampled += trajectories
            kept += self._selected(trajectories)
            if _number_of_groups(kept) == self.sampler.batch_size:
                break
        if all(trajectory.result.reward is None for trajectory in kept):
            kept = []
        return state, self._with_optional_fields(kept, greedy), self._metrics(sampled, kept)

    def _metrics(self, sampled: Sequence[Trajectory], kept: Sequence[Trajectory]) -> dict[str, float]:
        lengths = [sum(trajectory.fields["action"]) for trajectory in sampled]
        metrics = {"rollout/sampled": len(sampled), "rollout/tokens": sum(lengths)}
        metrics |= {"rollout/kept_fraction": len(kept) / len(sampled)}
        metrics |= reward_metrics([trajectory.result for trajectory in sampled])
        rewards, groups = [t.result.reward for t in sampled], [t.fields["group"] for t in sampled]
        metrics |= reward_spread(rewards, groups)
        if self.settings.overlong:
            penalties = self._penalties(lengths)
            metrics["reward/overlong"] = sum(penalties) / len(penalties)
        return metrics

    def _selected(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        if self.algorithm.select is keep_all:
            return [*trajectories]
        keep = select_rows(self.algorithm, collate([trajectory.fields for trajectory in trajectories])).tolist()
        return [trajectory for trajectory, is_kept in zip(trajectories, keep, strict=True) if is_kept]

    def _requests(self, draws: Sequence[Draw]) -> list[Request]:
        settings, stop_tokens = self.settings, self.sampler.chat.stop_tokens
        sampling = Sampling(settings.temperature, settings.max_tokens, stop_tokens, settings.stop_strings)
        return [
            Request(f"{draw.number}/{k}", draw.prompt.tokens, sampling, derive_seed(self.sampler.seed, draw.number, k))
            for draw in draws
            for k in range(settings.samples_per_prompt)
        ]

    def _trajectories(
        self,
        draws: Sequence[Draw],
        requests: Sequence[Request],
        completions: Sequence[tuple[Completion, str]],
        rewards: StepRewards,
    ) -> list[Trajectory]:
        samples = self.settings.samples_per_prompt
        origins = [draw for draw in draws for _ in range(samples)]
        keys, texts = [request.key for request in requests], [text for _, text in completions]
        columns = zip(origins, requests, completions, self._results(keys, origins, texts, rewards), strict=True)
        rows = enumerate(columns, start=draws[0].number * samples)
        return [
            _rollout(self.sampler.row_fields(draw) | {"row": row}, draw, request, *completed, result)
            for row, (draw, request, completed, result) in rows
        ]

    def _greedy_results(self, draws: Sequence[Draw], rewards: StepRewards) -> dict[int, RewardResult]:
        """The reward result of each draw's greedy completion by its number, penalty included."""
        first = [request for request in self._requests(draws) if request.key.endswith("/0")]
        greedy = [evolve(request, sampling=evolve(request.sampling, temperature=0.0)) for request in first]
        completions = complete(self.generator, self.sampler.chat.tokenizer, greedy)
        keys, texts = [f"{draw.number}/greedy" for draw in draws], [text for _, text in completions]
        results = self._results(keys, draws, texts, rewards)
        penalties = self._penalties([len(completion.tokens) for completion, _ in completions])
        return {
            draw.number: evolve(result, weighted_components=parts and {**parts, "length penalty": penalty})
            for draw, result, penalty in zip(draws, results, penalties, strict=True)
            for parts in [result.weighted_components]
        }

    def _results(
        self, keys: Sequence[str], draws: Sequence[Draw], texts: Sequence[str], rewards: StepRewards
    ) -> list[RewardResult]:
        """The reward results of `texts`, completions of `draws`. The seed of a call depends on its key."""
        inputs = [
            RewardInput(key, text, draw.example, derive_seed(self.sampler.seed, "reward", key))
            for key, draw, text in zip(keys, draws, texts, strict=True)
        ]
        return rewards(inputs)

    def _penalties(self, lengths: Sequence[int]) -> list[float]:
        """The penalty for the length of completions with so many tokens."""
        if self.settings.overlong is None:
            return [0.0] * len(lengths)
        buffer, factor = self.settings.overlong.buffer, self.settings.overlong.factor
        length = torch.tensor(lengths, dtype=torch.float64)
        return overlong_penalty(length, max_length=self.settings.max_tokens, buffer=buffer, factor=factor).tolist()

    def _with_optional_fields(
        self, trajectories: Sequence[Trajectory], greedy: Mapping[int, RewardResult]
    ) -> list[Trajectory]:
        """`trajectories` with the fields that only some algorithms read, if this one does."""
        names = dict.fromkeys(name for trajectory in trajectories for name in trajectory.result.weighted_components)
        fields: dict[str, Callable[[Trajectory], object]] = {
            "score": lambda t: t.result.reward or 0.0,
            "components": lambda t: [t.result.weighted_components.get(name, 0.0) for name in names],
            "greedy_score": lambda t: greedy[t.fields["group"]].reward or 0.0,
            # Without its baseline a row is masked out.
            "mask": lambda t: [m and greedy[t.fields["group"]].reward is not None for m in t.fields["mask"]],
        }
        reads = reads_of(self.algorithm)
        selected = {name: f for name, f in fields.items() if name in reads or (name == "mask" and greedy)}
        if not selected:
            return [*trajectories]
        return [evolve(t, fields={**t.fields, **{name: f(t) for name, f in selected.items()}}) for t in trajectories]


def _number_of_groups(trajectories: Sequence[Trajectory]) -> int:
    return len({trajectory.fields["group"] for trajectory in trajectories})


def _rollout(
    fields: Mapping[str, Any], draw: Draw, request: Request, completion: Completion, text: str, result: RewardResult
) -> Trajectory:
    before, after = len(request.tokens), len(completion.tokens)
    fields = {
        **fields,
        "tokens": [*request.tokens, *completion.tokens],
        "action": [False] * before + [True] * after,
        # A row without a reward, or without tokens, stays in its group and is masked out.
        "mask": [False] * before + [result.reward is not None] * after,
        "reward": [0.0] * (before + after - 1) + [result.reward or 0.0],
        "rollout_logp": [0.0] * before + [*completion.logp],
        "version": [0] * before + [*completion.version],
        "temperature": request.sampling.temperature,
        "truncated": completion.finish == "length",
    }
    texts = {"prompt": draw.prompt.text, "completion": text, "finish": completion.finish}
    return Trajectory(fields, texts | {"ground_truth": find_ground_truth(draw.example)}, result)


# --- demonstrations and preferences ------------------------------------------------------------------------------


@frozen
class Demonstrations:
    """One row for each demonstration."""

    sampler: Sampler

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        state, draws = _next_draws(self.sampler, state)
        return state, self.rows(draws), {}

    def rows(self, draws: Sequence[Draw]) -> list[Trajectory]:
        """The rows of `draws`."""
        pairs = [(draw, answer) for draw in draws for answer in self.sampler.answers(draw)]
        return [Trajectory(_example(self.sampler, draw, answer, draw.number)) for draw, answer in pairs]


@frozen
class Preferences:
    """Two rows for each pair: the prompt with the chosen answer, and with the rejected one."""

    sampler: Sampler

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        state, draws = _next_draws(self.sampler, state)
        return state, self.rows(draws), {}

    def rows(self, draws: Sequence[Draw]) -> list[Trajectory]:
        """The rows of `draws`."""
        return [
            Trajectory(_example(self.sampler, draw, answer, 2 * draw.number + k) | {"chosen": k == 0})
            for draw in draws
            for k, answer in enumerate(self.sampler.answers(draw))
        ]


def _next_draws(sampler: Sampler, state: LoopState) -> tuple[LoopState, list[Draw]]:
    draws = sampler.draw(state.num_draws, sampler.batch_size)
    return evolve(state, num_draws=state.num_draws + len(draws)), draws


def _example(sampler: Sampler, draw: Draw, answer: TokenizedExample, row: int) -> dict[str, Any]:
    fields = {"tokens": answer.tokens, "action": answer.action, "row": row, "temperature": 1.0}
    return sampler.row_fields(draw) | fields
