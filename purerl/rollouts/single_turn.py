"""Workflows of one turn: the policy completes each prompt, and reward functions score the completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.protocols import Completion, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.row_images import NO_IMAGES, RowImages
from purerl.rollouts.types import Draw, Generate, Score, Trajectory
from purerl.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["RowFields", "SingleTurn"]

RowFields = Callable[[Draw], Mapping[str, Any]]
"""The fields of a row that depend only on its draw."""


@frozen(kw_only=True)
class SingleTurn:
    """A workflow: `samples` completions of the prompt, a row for each of them.

    A completion on which the engine or a reward function failed stays in its group and is masked out. `reads_query`
    says whether reward functions read `RewardInput.query`.
    """

    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    samples: int
    score: Score
    row_fields: RowFields
    images: RowImages = NO_IMAGES
    reads_query: bool = False

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        self.images.store(draw.prompt.images)
        image = self.images.ids(draw.prompt.tokens, draw.prompt.images)
        requests = [
            Request(f"{draw.key}/{k}", draw.prompt.tokens, self.sampling, derive_seed(*draw.seeds, k), image=image)
            for k in range(self.samples)
        ]
        completions = await generate(requests)
        texts, results = await self._score(draw, completions)
        ground_truth = find_ground_truth(draw.example)
        columns = zip(requests, completions, texts, results, strict=True)
        return [self._trajectory(draw, k, *column, ground_truth) for k, column in enumerate(columns)]

    def _trajectory(
        self,
        draw: Draw,
        k: int,
        request: Request,
        completion: Completion,
        text: str,
        result: RewardResult,
        ground_truth: str | None,
    ) -> Trajectory:
        before, after = len(draw.prompt.tokens), len(completion.tokens)
        row = draw.number * self.samples + k
        fields = {
            **self.row_fields(draw),
            "row": row,
            "tokens": [*draw.prompt.tokens, *completion.tokens],
            "action": [False] * before + [True] * after,
            # A row without a reward, or without tokens, stays in its group and is masked out.
            "mask": [False] * before + [result.reward is not None] * after,
            "reward": [0.0] * (before + after - 1) + [result.reward or 0.0],
            "rollout_logp": [0.0] * before + [*completion.logp],
            "version": [0] * before + [*completion.version],
            "temperature": self.sampling.temperature,
            "truncated": completion.finish == "length",
            **({"image": [*request.image, *[0] * after]} if request.image else {}),
            **({} if completion.routes is None else {"routes": completion.routes}),
        }
        texts = {"prompt": draw.prompt.text, "completion": text, "finish": completion.finish}
        texts |= self.images.texts(draw.prompt.images)
        return Trajectory(fields, texts | {"ground_truth": ground_truth}, result)

    async def _score(self, draw: Draw, completions: Sequence[Completion]) -> tuple[list[str], list[RewardResult]]:
        """The texts of `completions` of the prompt of `draw`, and their rewards.

        The seed of a call of a reward function depends on the key of the completion. A completion on which the engine
        failed is not scored.
        """
        texts = self._decode(completions, skip_special_tokens=True)
        queries = self._decode(completions, skip_special_tokens=False) if self.reads_query else [None] * len(texts)
        inputs = [
            _reward_input(draw, completion, text, query)
            for completion, text, query in zip(completions, texts, queries, strict=True)
            if completion.finish != "error"
        ]
        scored = {source.row: result for source, result in zip(inputs, await self.score(inputs), strict=True)}
        return texts, [scored.get(completion.key) or _failure_of(completion) for completion in completions]

    def _decode(self, completions: Sequence[Completion], *, skip_special_tokens: bool) -> list[str]:
        tokens = [[*completion.tokens] for completion in completions]
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=skip_special_tokens)


def _reward_input(draw: Draw, completion: Completion, text: str, query: str | None) -> RewardInput:
    return RewardInput(
        row=completion.key,
        completion=text,
        example=draw.example,
        seed=derive_seed(draw.seeds[0], "reward", completion.key),
        tokens=completion.tokens,
        truncated=completion.finish == "length",
        prompt=draw.prompt.text,
        query=None if query is None else draw.prompt.text + query,
        step=max(completion.version, default=0),
    )


def _failure_of(completion: Completion) -> RewardResult:
    return RewardResult(failure=Failure("the generator", "failed", f"{completion.error}\n", part="engine"))
