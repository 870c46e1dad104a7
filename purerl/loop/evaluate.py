"""Evaluation: one greedy completion of every problem, judged by the run's own rewards."""

from __future__ import annotations

from purerl.data.examples import rendered, take
from purerl.loop.complete import complete
from purerl.loop.judging import judged
from purerl.loop.metrics import shares
from purerl.loop.run import Run
from purerl.protocols import Request, Sampling
from purerl.rewards.adapters import Case

__all__ = ["evaluate"]


def evaluate(run: Run, *, step: int) -> dict[str, float]:
    """Mean reward; accuracy, the share of completions whose every component is at least 1; mean length.

    Completions whose reward cannot be told, or whose reward function failed, leave both means, and the shares are
    reported. `step` is the one after which it is done. Raises RewardError where too many failed.
    """
    settings = run.config.evaluate
    sampling = Sampling(0.0, settings.max_tokens, run.stop_tokens, settings.stop)
    indices = run.data.problems.indices
    problems = take(run.data.problems, indices)
    prompts = rendered(run.data.chat, run.data.problems, indices, problems)
    requests = [Request(f"eval/{k}", prompt.tokens, sampling, seed=0) for k, prompt in enumerate(prompts)]
    completed = complete(run, requests)
    cases = [Case(one.key, text, problem) for (one, text), problem in zip(completed, problems, strict=True)]
    verdicts = judged(run, cases, step=step)
    told = [verdict.components for verdict in verdicts if verdict.reward is not None]
    metrics = {"length": sum(len(completion.tokens) for completion, _ in completed) / len(completed)}
    metrics |= shares(verdicts)
    if told:
        metrics["reward"] = sum(verdict.reward or 0.0 for verdict in verdicts) / len(told)
        metrics["accuracy"] = sum(min(components.values()) >= 1.0 for components in told) / len(told)
    return {f"eval/{name}": value for name, value in metrics.items()}
