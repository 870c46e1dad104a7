"""The age of sampled tokens: how many updates lie between the weights that sampled them and those that they train."""

from __future__ import annotations

from purerl.errors import EngineError
from purerl.types import TensorDict

__all__ = ["check_ages", "staleness_metrics"]


def staleness_metrics(batch: TensorDict, step: int) -> dict[str, float]:
    """The age of the tokens that the step after `step` trains on, in updates: mean and maximum over action tokens."""
    if "version" not in batch.keys() or not bool(batch["action"].any()):
        return {}
    age = step - batch["version"][batch["action"]]
    return {"rollout/staleness": age.double().mean().item(), "rollout/staleness_max": age.max().item()}


def check_ages(batch: TensorDict, step: int, max_staleness: int | None) -> None:
    """Refuse tokens for the step after `step` that are older than `max_staleness`; None: any.

    Raises: EngineError.
    """
    age = staleness_metrics(batch, step).get("rollout/staleness_max", 0)
    if max_staleness is not None and age > max_staleness:
        raise EngineError(
            f"tokens of step {step + 1} were sampled with weights that are {age:g} updates old",
            need=f"at most {max_staleness} (rollout.max_staleness)",
            do="see the logs of the generator; a workflow of yours may not return completions of earlier steps",
        )
