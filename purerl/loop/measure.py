"""When the policy of a run is evaluated and validated: before training, at intervals, and after the last step."""

from __future__ import annotations

from collections.abc import Sequence

from purerl.config.schema import RunConfig
from purerl.loop.run import Run
from purerl.loop.state import Clock, LoopState

__all__ = ["due", "measure", "measure_rest"]


def due(config: RunConfig, step: int, *, is_last: bool = False) -> list[str]:
    """What is due after `step`: "evaluate", "validate", both, or nothing. After the last step everything is."""
    sections = {"evaluate": config.evaluate, "validate": config.validation}
    return [name for name, section in sections.items() if section and (is_last or section.is_due(step))]


def measure(run: Run, state: LoopState, names: Sequence[str], clock: Clock) -> dict[str, float]:
    """The metrics of an evaluation of the generator's weights and of a validation of the policy, as `names` say."""
    metrics: dict[str, float] = {}
    for name in names:
        with clock(name):
            metrics |= run.evaluate(step=state.step) if name == "evaluate" else run.validate(state)
    return metrics


def measure_rest(run: Run, state: LoopState, done: Sequence[str], clock: Clock) -> dict[str, float]:
    """What an evaluation or a validation that ends the run leaves: the other one, of the same policy."""
    rest = [name for name in due(run.config, state.step, is_last=True) if name not in done]
    return measure(run, state, rest, clock)
