"""Failures of environments: an exception that has a `Failure`, and how it is made."""

from __future__ import annotations

from collections.abc import Sequence

from purerl.rewards.outcomes import INTERNAL_FILES, Failure, failure_of_exception, shorten

__all__ = ["ENVIRONMENT_FILES", "CallTimeoutError", "EnvironmentFailure", "died", "raised", "timed_out"]

ENVIRONMENT_FILES = (
    *INTERNAL_FILES,
    *(f"purerl/envs/{name}.py" for name in ("calls", "episode", "hosts", "pool", "sources", "tools", "worker")),
)
"""Files whose frames are removed from tracebacks, because they only call the code of environments."""


class EnvironmentFailure(Exception):  # noqa: N818 -- it is the failure of a sample, not an error of the run
    """An environment or a tool has failed, so the sample is missing. `failure` says which, what happened, and where."""

    def __init__(self, failure: Failure):
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return f"{self.failure.function} {self.failure.kind}\n{self.failure.traceback}"


class CallTimeoutError(Exception):
    """A call has not ended within `seconds`; `stack` is where it was, most recent call last.

    `is_running`: it cannot be canceled, and may still use its arguments.
    """

    def __init__(self, seconds: float, stack: str, *, is_running: bool):
        super().__init__(seconds, stack)
        self.seconds, self.stack, self.is_running = seconds, stack, is_running


def raised(name: str, error: BaseException) -> EnvironmentFailure:
    """The environment `name` has raised `error`."""
    if isinstance(error, CallTimeoutError):
        return timed_out(name, error.seconds, f"most recent call last:\n{error.stack}" if error.stack else "")
    return EnvironmentFailure(failure_of_exception(name, error, internal_files=ENVIRONMENT_FILES))


def timed_out(name: str, seconds: float, stack: str = "") -> EnvironmentFailure:
    """A call of the environment `name` took longer than `seconds`; `stack` says where it was."""
    text = f"took longer than {seconds:g} seconds" + (f"; {stack}" if stack else "\n")
    return EnvironmentFailure(Failure(name, "timed out", shorten(text)))


def died(name: str, sentences: Sequence[str]) -> EnvironmentFailure:
    """The failure of the environment `name` whose process has ended."""
    return EnvironmentFailure(Failure(name, "died", shorten("; ".join(sentences) + "\n")))
