"""Workflows of one turn: the policy completes each prompt, and reward functions score the completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.protocols import Completion, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult
from purerl.rollouts.images import NO_IMAGES, RowImages
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

    A completion on which the engine or a reward function failed stays in its group and is masked out.
    """

    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    samples: int
    score: Score
    row_fields: RowFields
    images: RowImages = NO_IMAGES

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        self.images.store(draw.prompt.images)
        image = self.images.ids(draw.prompt.tokens, draw.prompt.images)
        requests = [
            Request(f"{draw.key}/{k}", draw.prompt.tokens, self.sampling, derive_seed(*draw.seeds, k), image=image)
            for k in range(self.samples)
        ]
        completions = await generate(requests)
        texts, results = await _score_completions(self.tokenizer, self.score, draw, completions)
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
        }
        texts = {"prompt": draw.prompt.text, "completion": text, "finish": completion.finish}
        texts |= self.images.texts(draw.prompt.images)
        return Trajectory(fields, texts | {"ground_truth": ground_truth}, result)


async def _score_completions(
    tokenizer: PreTrainedTokenizerBase, score: Score, draw: Draw, completions: Sequence[Completion]
) -> tuple[list[str], list[RewardResult]]:
    """The texts of `completions` of the prompt of `draw`, and their rewards.

    The seed of a call of a reward function depends on the key of the completion. A completion on which the engine
    failed is not scored.
    """
    texts = tokenizer.batch_decode([list(c.tokens) for c in completions], skip_special_tokens=True)
    failures = {
        completion.key: RewardResult(failure=Failure("the generator", "failed", f"{completion.error}\n", part="engine"))
        for completion in completions
        if completion.finish == "error"
    }
    inputs = [
        RewardInput(completion.key, text, draw.example, derive_seed(draw.seeds[0], "reward", completion.key))
        for completion, text in zip(completions, texts, strict=True)
        if completion.key not in failures
    ]
    scored = {source.row: result for source, result in zip(inputs, await score(inputs), strict=True)}
    return texts, [(failures | scored)[completion.key] for completion in completions]
