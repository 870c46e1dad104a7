"""Evaluation: one greedy completion of every problem, judged by the run's own rewards."""

from __future__ import annotations

from purerl.data.examples import rendered, take
from purerl.loop.complete import complete
from purerl.loop.run import Run
from purerl.protocols import Request, Sampling
from purerl.rewards.judge import judge

__all__ = ["evaluate"]


def evaluate(run: Run) -> dict[str, float]:
    """Mean reward; accuracy, the share of completions whose every component is at least 1; mean length.

    Completions whose reward cannot be told leave both means, and their share is reported.
    """
    settings = run.config.evaluate
    sampling = Sampling(0.0, settings.max_tokens, run.stop_tokens, settings.stop)
    indices = run.data.problems.indices
    problems = take(run.data.problems, indices)
    prompts = rendered(run.data.chat, run.data.problems, indices, problems)
    requests = [Request(f"eval/{k}", prompt.tokens, sampling, seed=0) for k, prompt in enumerate(prompts)]
    completed = complete(run, requests)
    found = [judge(run.rewards, text, problem) for (_, text), problem in zip(completed, problems, strict=True)]
    judged = [components for components in found if components is not None]
    metrics = {"length": sum(len(completion.tokens) for completion, _ in completed) / len(completed)}
    metrics["judged"] = len(judged) / len(found)
    if judged:
        metrics["reward"] = sum(sum(components.values()) for components in judged) / len(judged)
        metrics["accuracy"] = sum(min(components.values()) >= 1.0 for components in judged) / len(judged)
    return {f"eval/{name}": value for name, value in metrics.items()}
