"""The numbers of rows and tokens that the engines of a run work on at a time."""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.config.requirements import Requirements
from purerl.envs.settings import EnvironmentSettings
from purerl.rollouts.settings import Rollout
from purerl.system.memory_use import Workload

__all__ = ["Lengths", "workload_of"]

_PROMPT_TOKENS, _COMPLETION_TOKENS = 512, 512


@frozen(kw_only=True)
class Lengths:
    """Tokens of a row, where the configuration does not limit them; None: what `workload_of` assumes."""

    prompt: int | None = None
    completion: int | None = None


def workload_of(
    needs: Requirements,
    rollout: Rollout | None,
    environment: EnvironmentSettings | None,
    *,
    ranks: int,
    lengths: Lengths,
    max_prompt_tokens: int | None,
    stages_checkpoints: bool = False,
) -> tuple[Workload, list[str]]:
    """The largest rows of a step, and what had to be assumed about them, a sentence each."""
    prompt, assumed = lengths.prompt or max_prompt_tokens, []
    if prompt is None:
        prompt = _PROMPT_TOKENS
        assumed.append(f"prompts of {prompt} tokens, because data.max_prompt_tokens is not set (--prompt-tokens)")
    turns = environment.max_turns if environment and rollout else 1
    if rollout is None:
        completion = lengths.completion or _COMPLETION_TOKENS
        if lengths.completion is None:
            assumed.append(f"answers of {completion} tokens, because the data were not read (--completion-tokens)")
    else:
        completion = rollout.max_tokens * turns
        limit = environment.max_episode_tokens if environment else None
        completion = min(completion, limit or completion)
    samples = rollout.samples_per_prompt if rollout else _rows_of_example(needs.algorithm)
    workload = Workload(
        rows=needs.schedule.batch_size * samples,
        group_size=samples,
        minibatches=needs.schedule.minibatches,
        prompt_tokens=prompt,
        completion_tokens=completion,
        ranks=ranks,
        turns=turns,
        stages_checkpoints=stages_checkpoints,
    )
    return workload, assumed


def _rows_of_example(algorithm: Algorithm) -> int:
    """The rows of a demonstration, of a preference pair, or of a labeled completion."""
    reads = {name for objective in algorithm.objectives for name in objective.reads}
    return 1 if reads.isdisjoint({"chosen", "mismatched"}) else 2
