"""RewardWorkers completions for a run: failures are written down, shown once, and stop the run where they are many."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from textwrap import indent

from purerl.errors import RewardError
from purerl.loop.run import Run
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure, shorten
from purerl.rewards.runner import RewardResult

__all__ = ["check_failures", "judged", "told"]

_WRITTEN = 20
_LONGEST_COMPLETION = 2000

_LOG = logging.getLogger(__name__)


def judged(run: Run, cases: Sequence[RewardInput], *, step: int) -> list[RewardResult]:
    """A verdict for each of `cases`, in their order; `step` is the one that they are for.

    Raises: RewardError where more than `reward_workers.max_failure_rate` of them failed, with the first traceback.
    """
    verdicts = run.judge(cases)
    failed = [(case, one.failure) for case, one in zip(cases, verdicts, strict=True) if one.failure]
    if failed:
        _written(run, failed, step)
    do = "mend the function, or raise reward_workers.timeout or reward_workers.max_failure_rate; the run resumes"
    check_failures(verdicts, run.config.reward_workers.max_failure_rate, do=do)
    return verdicts


def check_failures(verdicts: Sequence[RewardResult], most: float, *, do: str) -> None:
    """Raises RewardError where more than the share `most` of `verdicts` are failures, with the first traceback."""
    failures = [verdict.failure for verdict in verdicts if verdict.failure]
    if len(failures) > most * len(verdicts):
        what = f"reward functions failed on too many completions; the first:\n{told(failures[0])}"
        raise RewardError(what, got=f"{len(failures)} of {len(verdicts)}", need=f"at most {most:g} of them", do=do)


def _written(run: Run, failed: Sequence[tuple[RewardInput, Failure]], step: int) -> None:
    """Log failures into the run directory, so many for each call; the run's first is also shown as a warning."""
    first = failed[0][1]
    if not run.place.failures.exists():
        path = str(run.place.failures)
        _LOG.warning("a reward function failed; the row is masked out; more in %s\n%s", path, told(first))
    for case, failure in failed[:_WRITTEN]:
        record = {"step": step, "row": case.row, "function": failure.function, "kind": failure.kind}
        completion = shorten(case.completion, _LONGEST_COMPLETION)
        run.place.log_failure(record | {"traceback": failure.traceback, "completion": completion})


def told(failure: Failure) -> str:
    """A failure as it is shown: which function, what happened, and where."""
    return indent(f"{failure.function} {failure.kind}\n{failure.traceback}".rstrip(), "  | ")
