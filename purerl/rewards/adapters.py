"""Inputs of reward functions, the values that they may log, and their calling conventions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from attrs import define, field, frozen

from purerl.rewards.components import is_valid_number

__all__ = [
    "CHECKED_BY",
    "NEEDS_ONE_OF",
    "NO_RUN",
    "Call",
    "Convention",
    "LoadedReward",
    "RewardFunction",
    "RewardInput",
    "RowCheck",
    "RunLength",
    "TrainerState",
    "checked_by",
    "needs_one_of",
    "takes_up_to",
]

RewardFunction = Callable[..., Any]
RowCheck = Callable[[Mapping[str, Any]], Any]
"""Raises ValueError, KeyError or TypeError for a row that cannot be scored."""
F = TypeVar("F", bound=RewardFunction)

NEEDS_ONE_OF = "purerl_needs_one_of"
"""The attribute of a function in which `needs_one_of` stores the columns."""
CHECKED_BY = "purerl_checked_by"
"""The attribute of a function in which `checked_by` stores the check of a row."""
TAKES_UP_TO = "purerl_takes_up_to"
"""The attribute of a function in which `takes_up_to` stores the seconds."""


class RewardInput(NamedTuple):
    """A completion to score.

    row         the key of the completion, for logs
    completion  the text of the completion; of an episode of several turns, the text of the last turn
    example     the row of the data set that the prompt is from
    seed        seed of the global random generators for the call of the reward function
    messages    the conversation after the prompt, as chat messages; without them it is the completion alone
    tokens      the ids of all tokens after the prompt, with the end token
    truncated   whether the completion was cut at the maximum number of tokens, or the episode at one of its limits
    prompt      the prompt as text, after the chat template
    query       the prompt and the completion as text, with special tokens; None unless a function reads it
    step        the number of steps of training that the model had taken
    """

    row: str
    completion: str
    example: Mapping[str, Any]
    seed: int = 0
    messages: Sequence[Mapping[str, Any]] = ()
    tokens: Sequence[int] = ()
    truncated: bool = False
    prompt: str = ""
    query: str | None = None
    step: int = 0

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        """The conversation after the prompt."""
        return [*self.messages] or [{"role": "assistant", "content": self.completion}]


@frozen
class RunLength:
    """The length of the run: its number of steps, and of steps per pass over the training data; 0 outside of a run."""

    max_steps: int = 0
    steps_per_epoch: float = 0.0


NO_RUN = RunLength()


@frozen
class TrainerState:
    """The progress of a run, with the names that transformers' TrainerState has, for functions written for TRL.

    global_step       steps of training that the model had taken when it sampled the completions
    max_steps         steps of the run; 0 outside of a run
    epoch             passes over the training data at this step
    num_train_epochs  passes of the whole run
    """

    global_step: int
    max_steps: int
    epoch: float
    num_train_epochs: float


@define
class Call:
    """One call of a reward function: the number of its inputs, the length of the run, and what the function logs.

    metrics  for each input, the sum and the number of the values of each metric, by name
    columns  for each input, texts for the table of completions, by the name of their column

    Methods may be called until the return value of the function, or of its awaitable, is read.
    """

    count: int
    length: RunLength = NO_RUN
    metrics: dict[int, dict[str, tuple[float, int]]] = field(factory=dict)
    columns: dict[int, dict[str, str]] = field(factory=dict)

    def log_metric(self, name: str, value: Any, *, row: int = 0) -> None:
        """Log a number. What is not a finite number is left out."""
        number = value.item() if getattr(value, "shape", None) == () else value
        if not is_valid_number(number):
            return
        metrics, name = self.metrics.setdefault(row, {}), _cleaned(name)
        total, count = metrics.get(name, (0.0, 0))
        metrics[name] = (total + float(number), count + 1)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a value for each input. Raises ValueError if they are not as many."""
        if len(values) != self.count:
            raise ValueError(f"log_extra({column!r}, ...) got {len(values)} values for {self.count} completions")
        for row, value in enumerate(values):
            self.columns.setdefault(row, {})[_cleaned(column)] = str(value)

    def log_entries(self, row: int, entries: Mapping[str, Any]) -> None:
        """Log what a function has returned beside the reward of an input: as texts, and numbers as metrics too."""
        for name, value in entries.items():
            self.log_metric(name, value, row=row)
            self.columns.setdefault(row, {})[_cleaned(name)] = str(value)

    def trainer_state(self, inputs: Sequence[RewardInput]) -> TrainerState:
        """The progress of the run when `inputs` were sampled."""
        step, length = max(item.step for item in inputs), self.length
        epochs = [done / length.steps_per_epoch if length.steps_per_epoch else 0.0 for done in (step, length.max_steps)]
        return TrainerState(step, length.max_steps, *epochs)


def _cleaned(name: Any) -> str:
    """`name` as that of a metric: with _ in place of other characters, and with at most 100 of them."""
    return re.sub(r"[^\w .:@+/-]", "_", str(name))[:100] or "_"


class Convention(NamedTuple):
    """A calling convention of reward functions.

    name, signature    for messages
    marker_parameters  parameter names of which only functions of this convention have one; without any, every other
                       function
    max_inputs         maximum number of inputs of one call
    accepts            (signature) -> whether a function with this signature can be called
    call               (reward, inputs, call) -> the return value of its function, or an awaitable of it
    parse              (return value, call) -> one value per input
    required_columns   (parameters) -> the columns of the examples that a function with them requires
    """

    name: str
    signature: str
    marker_parameters: frozenset[str]
    max_inputs: int
    accepts: Callable[[inspect.Signature], bool]
    call: Callable[[LoadedReward, Sequence[RewardInput], Call], Any]
    parse: Callable[[Any, Call], list[Any]]
    required_columns: Callable[[Mapping[str, inspect.Parameter]], tuple[str, ...]]


class LoadedReward(NamedTuple):
    """A reward function with its name, its calling convention, and its parameters by name."""

    name: str
    function: RewardFunction
    convention: Convention
    parameters: Mapping[str, inspect.Parameter]


def needs_one_of(*columns: str) -> Callable[[F], F]:
    """Declare that a reward function needs at least one of `columns` in the examples.

    A data set without any of them is refused before a model is loaded.

    >>> @needs_one_of("answer", "solution")
    ... def reward(completion, example):
    ...     return 1.0
    >>> reward.purerl_needs_one_of
    ('answer', 'solution')
    """

    def declare(function: F) -> F:
        setattr(function, NEEDS_ONE_OF, columns)
        return function

    return declare


def checked_by(check: RowCheck) -> Callable[[F], F]:
    """Declare that a reward function fails on each row for which `check` raises an exception, for every completion.

    A data set with such a row is refused before a model is loaded. `check` gets the row with the columns that
    `needs_one_of` names.

    >>> @needs_one_of("answer")
    ... @checked_by(lambda example: int(example["answer"]))
    ... def reward(completion, example):
    ...     return float(int(example["answer"]) == len(completion))
    """

    def declare(function: F) -> F:
        setattr(function, CHECKED_BY, check)
        return function

    return declare


def takes_up_to(seconds: float) -> Callable[[F], F]:
    """Declare how long a call of a reward function may take, by limits of its own.

    A run whose `reward_workers.timeout` is shorter is refused, because the function would be terminated before its own
    limits.
    """

    def declare(function: F) -> F:
        setattr(function, TAKES_UP_TO, seconds)
        return function

    return declare
