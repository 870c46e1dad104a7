"""Control over a run for its callbacks: stop, evaluate, save, log a metric, and sample completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import define, field

from purerl.data.chat import TextOrMessages
from purerl.errors import ConfigError
from purerl.loop.callbacks.prompt_sampler import PromptSampler
from purerl.loop.state import STOP
from purerl.monitoring.metric_meanings import RESERVED_PREFIXES

__all__ = ["Control", "Requests"]

Record = Mapping[str, Any]


class Requests(NamedTuple):
    """Requests of callbacks as plain data, which rank 0 sends to all ranks.

    metrics   are added to the record of the step; the one called `STOP` ends the run
    evaluate  evaluate and validate the policy after this step
    save      write a checkpoint of this step
    """

    metrics: Mapping[str, float]
    evaluate: bool = False
    save: bool = False


@define(eq=False)
class Control:
    """Control over a run: the second argument of its callbacks, on rank 0, during the call.

    `stop`, `evaluate`, `save` and `log` are requests: all ranks carry them out after the callback has returned, at the
    same place. Those of `on_step` and `on_evaluation` belong to the step of the record. When `on_checkpoint` is called,
    this step is complete, so its requests belong to the next step.

    step  the number of the step
    """

    step: int
    _record: Record = field(alias="record")
    _read_past: Callable[[], Sequence[Record]] = field(alias="read_past")
    _sampler: PromptSampler = field(alias="sampler")
    _can_evaluate: bool = field(alias="can_evaluate")
    _requests: Requests = field(alias="requests")

    @property
    def requests(self) -> Requests:
        """The requests so far."""
        return self._requests

    def stop(self) -> None:
        """End the run after this step, as after its last one: it is evaluated, saved and exported."""
        self._add(STOP, 1.0)

    def evaluate(self) -> None:
        """Evaluate and validate the policy after this step, as far as that has not been done.

        Raises: ConfigError if the run has neither a section ``evaluate`` nor a section ``validation``.
        """
        if not self._can_evaluate:
            need = "a section evaluate or validation"
            raise ConfigError("control.evaluate()", got="a run without evaluations", need=need, do="add one of them")
        self._requests = self._requests._replace(evaluate=True)

    def save(self) -> None:
        """Write a checkpoint of this step. Before the first step there is nothing to save, and nothing happens."""
        self._requests = self._requests._replace(save=True)

    def log(self, name: str, value: float) -> None:
        """Add a metric to the record of this step, and so to metrics.jsonl, to trackers and to the report.

        NaN and infinity are recorded as null.

        Raises: ConfigError for a name that the record has, or that begins as those of evaluations and times, and for a
        value that is no number.
        """
        what, do = f"control.log({name!r}, ...)", "choose another name, such as callback/NAME"
        if not isinstance(name, str) or not name or name.startswith(RESERVED_PREFIXES):
            need = f"a name that does not begin with {', '.join(RESERVED_PREFIXES)}"
            raise ConfigError(what, got=repr(name), need=need, do=do)
        if name in self._record or name in self._requests.metrics or name == STOP:
            raise ConfigError(what, got="a metric that this step has", need="a name of your own", do=do)
        try:
            self._add(name, float(value))
        except (TypeError, ValueError) as error:
            raise ConfigError(what, got=repr(value), need="a number") from error

    def _add(self, name: str, value: float) -> None:
        self._requests = self._requests._replace(metrics={**self._requests.metrics, name: value})

    def history(self, name: str) -> dict[int, float]:
        """The values of the metric `name` by step, up to this record; steps without a value are left out.

        They are read from metrics.jsonl, so a callback that decides by them decides in the same way in a run that is
        resumed.
        """
        records = [*(record for record in self._read_past() if record["step"] < self.step), self._record]
        return {record["step"]: record[name] for record in records if record.get(name) is not None}

    def sample(
        self, prompts: Sequence[TextOrMessages], *, temperature: float | None = None, max_tokens: int | None = None
    ) -> list[str]:
        """A completion of each of `prompts` by the current policy, without special tokens.

        A text is a message of the user if the prompts of the run are chat messages. The model answers alone: without
        the environment of the run. The generator of rank 0 samples while the other ranks wait. Seeds depend on those of
        the run, on the step and on the position in `prompts`; no other result of the run changes.

        temperature, max_tokens  if not given, those of the section ``evaluate``, or without one of ``rollout``

        Raises: ConfigError for a run without a generator; InputError for a prompt that is too long; DataError for one
        that is empty; EngineError if the generator fails.
        """
        return self._sampler(self.step, prompts, temperature=temperature, max_tokens=max_tokens)
