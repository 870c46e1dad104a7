"""Completions of the prompts of a callback, by the policy of a run."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from purerl.data.chat import Chat, TextOrMessages
from purerl.data.examples import prompts_at, rows_at
from purerl.data.prompts import prompts_as_data
from purerl.errors import ConfigError, EngineError, InputError
from purerl.evaluation.sampling import sampling_of
from purerl.evaluation.settings import Evaluate
from purerl.protocols import Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.row_images import RowImages
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import Rollout
from purerl.rollouts.single_turn import SingleTurn
from purerl.rollouts.types import Draw, Group

__all__ = ["PromptSampler", "open_prompt_sampler"]


@frozen
class PromptSampler:
    """Samples with the generator of this process, which no other rank needs.

    sampling  the parameters of a completion, unless a call gives others; None: the run has no generator
    seed      of the run
    """

    runtime: Runtime
    chat: Chat
    sampling: Sampling | None
    seed: int

    def __call__(
        self, step: int, prompts: Sequence[TextOrMessages], *, temperature: float | None, max_tokens: int | None
    ) -> list[str]:
        """A completion of each of `prompts` with the weights after `step`. Raises: see `Control.sample`."""
        if self.sampling is None or self.runtime.engine is None:
            need, do = "a generator", 'set generator = "hf", and a section evaluate'
            raise ConfigError("control.sample()", got="a run that samples nothing", need=need, do=do)
        if isinstance(prompts, str):
            raise ConfigError("control.sample()", got="a string", need="a list of prompts", do="write [prompt]")
        changes = {"temperature": temperature, "max_tokens": max_tokens}
        sampling = evolve(self.sampling, **{name: value for name, value in changes.items() if value is not None})
        draws = self._draws(step, prompts)
        self._check_lengths(draws, sampling)
        workflow = SingleTurn(
            tokenizer=self.chat.tokenizer,
            sampling=sampling,
            samples=1,
            score=_score_nothing,
            row_fields=lambda draw: {},
            images=RowImages(self.chat),
        )
        rollouts = Rollouts(self.runtime, workflow)
        rollouts.submit(draws)
        groups = {group.draw: group for group in rollouts.collect(draws=[draw.number for draw in draws])}
        return [_text_of(groups[draw.number]) for draw in draws]

    def _draws(self, step: int, prompts: Sequence[TextOrMessages]) -> list[Draw]:
        if not prompts:
            return []
        data = prompts_as_data(prompts, self.chat.prompt_format)
        examples = rows_at(data, data.indices)
        columns = zip(data.indices, examples, prompts_at(self.chat, data, data.indices, examples), strict=True)
        return [
            Draw(k, k, row, prompt, f"callback/{k}", (self.seed, "callback", step, k)) for k, row, prompt in columns
        ]

    def _check_lengths(self, draws: Sequence[Draw], sampling: Sampling) -> None:
        """Refuse a prompt that is too long for the generator, before anything is requested."""
        limit = self.runtime.engine.generator.capabilities.max_sequence_length if self.runtime.engine else None
        for draw in draws:
            length = len(draw.prompt.tokens)
            if limit is not None and length + sampling.max_tokens > limit:
                got, need = f"{length} tokens, and max_tokens {sampling.max_tokens}", f"at most {limit} tokens together"
                do = "shorten it, or pass a smaller max_tokens"
                raise InputError(f"prompt {draw.number} of control.sample()", got=got, need=need, do=do)


async def _score_nothing(inputs: Sequence[RewardInput]) -> list[RewardResult]:
    return [RewardResult() for _ in inputs]


def _text_of(group: Group) -> str:
    """The completion of the only row of `group`. Raises EngineError if the engine has failed on it."""
    failures = [group.failure, *(trajectory.result.failure for trajectory in group.trajectories)]
    for failure in filter(None, failures):
        raise EngineError(f"control.sample(): {failure.function} {failure.kind}", got=failure.traceback.strip())
    [trajectory] = group.trajectories
    return trajectory.texts["completion"]


def open_prompt_sampler(
    task: Task, engines: Engines, *, evaluate: Evaluate | None, rollout: Rollout | None, seed: int
) -> PromptSampler:
    """The sampler of a run, whose task and engines are open. It samples as in evaluations, if there are any."""
    sampling, stop_tokens = None, task.chat.stop_tokens
    if evaluate is not None:
        sampling = sampling_of(evaluate, stop_tokens)
    elif rollout is not None:
        sampling = Sampling(rollout.temperature, rollout.max_tokens, stop_tokens, rollout.stop_strings)
    return PromptSampler(engines.runtime, task.chat, sampling, seed)
