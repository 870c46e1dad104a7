"""The calling conventions of reward functions: those of purerl, verl and TRL.

The names of the parameters determine the convention. Functions for verl and TRL work without changes, and their return
values have the same meaning as in these libraries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from purerl.errors import ConfigError
from purerl.plugins import locate, names

__all__ = [
    "CONVENTIONS",
    "Convention",
    "LoadedReward",
    "RewardFunction",
    "RewardInput",
    "alternative_columns",
    "as_reward",
    "declared_seconds",
    "is_async",
    "load_reward",
    "name_of",
    "needs_one_of",
    "required_columns",
    "takes_up_to",
]

RewardFunction = Callable[..., Any]
F = TypeVar("F", bound=RewardFunction)

_UNLIMITED = 2**31
_NEEDS_ONE_OF = "purerl_needs_one_of"
_TAKES_UP_TO = "purerl_takes_up_to"


class RewardInput(NamedTuple):
    """A completion to score.

    row         the key of the completion, for logs
    completion  the text of the completion; of an episode of several turns, the text of the last turn
    example     the row of the data set that the prompt is from
    seed        seed of the global random generators for the call of the reward function
    messages    the conversation after the prompt, as chat messages; without them it is the completion alone
    """

    row: str
    completion: str
    example: Mapping[str, Any]
    seed: int = 0
    messages: Sequence[Mapping[str, Any]] = ()

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        """The conversation after the prompt."""
        return [*self.messages] or [{"role": "assistant", "content": self.completion}]


class Convention(NamedTuple):
    """A calling convention of reward functions.

    name, signature    for messages
    marker_parameters  parameter names that only functions of this convention have
    max_inputs         maximum number of inputs of one call
    call               (reward, inputs) -> the return value of its function, or an awaitable of it
    parse              (return value, number of inputs) -> one value per input
    required_columns   (function) -> the columns of the examples that the function requires
    """

    name: str
    signature: str
    marker_parameters: frozenset[str]
    max_inputs: int
    call: Callable[[LoadedReward, Sequence[RewardInput]], Any]
    parse: Callable[[Any, int], list[Any]]
    required_columns: Callable[[RewardFunction], tuple[str, ...]]


class LoadedReward(NamedTuple):
    """A reward function with its name, its calling convention, and its parameters by name."""

    name: str
    function: RewardFunction
    convention: Convention
    parameters: Mapping[str, inspect.Parameter]


def load_reward(name: str) -> LoadedReward:
    """Load the reward function ``module:function`` or ``file.py:function``.

    Raises: ConfigError if there is no such function, or if it follows no convention.
    """
    if name in names("reward"):
        do = f"write it as a table, {{kind = {name!r}}}"
        raise ConfigError(f"reward {name!r}", got="a kind", need="a function, as module:function", do=do)
    if name.startswith("__main__:"):
        got = "a function in __main__, which is another module in a worker process"
        do = "pass the function itself, rewards=[function], or name its file, file.py:function"
        raise ConfigError(f"reward {name!r}", got=got, do=do)
    return as_reward(name, locate(name))


def name_of(function: RewardFunction) -> str:
    """The name of a reward function that was passed as an object, as it is written in the configuration of a run."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def as_reward(name: str, function: RewardFunction) -> LoadedReward:
    """Detect the convention of `function`. Raises ConfigError if it is not callable or follows no convention.

    >>> as_reward("length", lambda completion, example: 1.0).convention.name
    'purerl'
    >>> as_reward("trl_reward", lambda prompts, completions, **columns: []).convention.name
    'TRL'
    """
    if not callable(function):
        raise ConfigError(f"reward {name!r}", got=type(function).__name__, need="a function (completion, example)")
    parameters = _parameters(function)
    convention = next(convention for convention in CONVENTIONS if convention.marker_parameters <= set(parameters))
    got = f"a function ({', '.join(parameters)})"
    _, second, *_ = (*parameters, "", "")
    if convention is PURERL and second in _GROUND_TRUTH_NAMES:
        need = f"{PURERL.signature}; `example` is the complete row of the data set"
        raise ConfigError(f"reward {name!r}", got=got, need=need, do=f"read example[{second!r}]")
    if not _has_signature(function, convention):
        need = "one of: " + "; ".join(f"{convention.signature} ({convention.name})" for convention in CONVENTIONS)
        raise ConfigError(f"reward {name!r}", got=got, need=need)
    return LoadedReward(name, function, convention, parameters)


_GROUND_TRUTH_NAMES = ("ground_truth", "answer", "solution", "label", "target", "gold")
"""Names of a second parameter that show that the function expects the ground truth instead of the row."""


def required_columns(reward: LoadedReward) -> tuple[str, ...]:
    """The columns of the examples that `reward` requires, as far as its parameters show."""
    return reward.convention.required_columns(reward.function)


def needs_one_of(*columns: str) -> Callable[[F], F]:
    """Declare that a reward function needs at least one of `columns` in the examples.

    A data set without any of them is refused before a model is loaded.

    >>> @needs_one_of("answer", "solution")
    ... def reward(completion, example):
    ...     return 1.0
    >>> alternative_columns(as_reward("reward", reward))
    ('answer', 'solution')
    """

    def declare(function: F) -> F:
        setattr(function, _NEEDS_ONE_OF, columns)
        return function

    return declare


def alternative_columns(reward: LoadedReward) -> tuple[str, ...]:
    """The columns of which `reward` needs at least one, as declared with `needs_one_of`; empty without it."""
    return getattr(reward.function, _NEEDS_ONE_OF, ())


def takes_up_to(seconds: float) -> Callable[[F], F]:
    """Declare how long a call of a reward function may take, by limits of its own.

    A run whose `reward_workers.timeout` is shorter is refused, because the function would be terminated before its own
    limits.
    """

    def declare(function: F) -> F:
        setattr(function, _TAKES_UP_TO, seconds)
        return function

    return declare


def declared_seconds(reward: LoadedReward) -> float:
    """How long a call of `reward` may take, as declared with `takes_up_to`; 0 without it."""
    return getattr(reward.function, _TAKES_UP_TO, 0.0)


def is_async(function: RewardFunction) -> bool:
    """Whether `function` is an async function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _parameters(function: RewardFunction) -> Mapping[str, inspect.Parameter]:
    """The parameters by name. Empty if Python cannot inspect the function, as for some functions in C."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _has_signature(function: RewardFunction, convention: Convention) -> bool:
    """Whether `function` can be called with the arguments of `convention`. TRL functions take any columns."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        if convention is PURERL:
            signature.bind("", {}, **_select_messages(signature.parameters, []))
        elif convention is VERL:
            signature.bind(**_select_arguments(signature.parameters, dict.fromkeys(_VERL_PARAMETERS)))
    except TypeError:
        return False
    return True


def _select_arguments(parameters: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The `arguments` that have a parameter: all of them if there is ``**kwargs``."""
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


# --- purerl ------------------------------------------------------------------------------------------------------


def _call_purerl(reward: LoadedReward, inputs: Sequence[RewardInput]) -> Any:
    [item] = inputs
    return reward.function(item.completion, item.example, **_select_messages(reward.parameters, item.conversation))


def _select_messages(parameters: Collection[str], messages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The argument `messages`, if there is a parameter of this name."""
    return {"messages": messages} if "messages" in parameters else {}


def _parse_purerl(returned: Any, count: int) -> list[Any]:
    if isinstance(returned, Mapping) and not returned:
        raise TypeError("returned {}; need at least one number, or None if there is no reward")
    return [returned]


def _required_columns_purerl(function: RewardFunction) -> tuple[str, ...]:
    return ()


# --- verl --------------------------------------------------------------------------------------------------------

_VERL_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


def _call_verl(reward: LoadedReward, inputs: Sequence[RewardInput]) -> Any:
    example = inputs[0].example
    arguments = {
        "data_source": example["data_source"],
        "solution_str": inputs[0].completion,
        "ground_truth": example["reward_model"]["ground_truth"],
        "extra_info": example.get("extra_info") or {},
    }
    return reward.function(**_select_arguments(reward.parameters, arguments))


def _parse_verl(returned: Any, count: int) -> list[Any]:
    """Only `score` of a mapping is the reward. verl logs the other entries."""
    return [returned["score"] if isinstance(returned, Mapping) and "score" in returned else returned]


def _required_columns_verl(function: RewardFunction) -> tuple[str, ...]:
    return ("data_source", "reward_model")


# --- TRL ---------------------------------------------------------------------------------------------------------


def _call_trl(reward: LoadedReward, inputs: Sequence[RewardInput]) -> Any:
    """Pass every column of the examples as a list. A completion of a conversation is a list of messages."""
    examples = [item.example for item in inputs]
    prompts = [example["prompt"] for example in examples]
    completions = [
        item.completion if isinstance(prompt, str) else item.conversation
        for item, prompt in zip(inputs, prompts, strict=True)
    ]
    names = dict.fromkeys(name for example in examples for name in example if name not in ("prompt", "completion"))
    columns = {name: [example.get(name) for example in examples] for name in names}
    arguments = {**columns, "prompts": prompts, "completions": completions}
    return reward.function(**_select_arguments(reward.parameters, arguments))


def _parse_trl(returned: Any, count: int) -> list[Any]:
    """None means that the function does not apply to this row. It adds no component to the reward of the row."""
    values = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if len(values) != count:
        raise TypeError(f"returned {returned!r:.200}; need a list of {count}, numbers or None")
    return [{} if value is None else value for value in values]


def _required_columns_trl(function: RewardFunction) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [p.name for p in _parameters(function).values() if p.kind in kinds and p.default is p.empty]
    return ("prompt", *(name for name in required if name not in ("prompts", "completions")))


VERL = Convention(
    name="verl",
    signature=f"({', '.join(_VERL_PARAMETERS)})",
    marker_parameters=frozenset({"solution_str"}),
    max_inputs=1,
    call=_call_verl,
    parse=_parse_verl,
    required_columns=_required_columns_verl,
)
TRL = Convention(
    name="TRL",
    signature="(prompts, completions, **columns)",
    marker_parameters=frozenset({"completions"}),
    max_inputs=_UNLIMITED,
    call=_call_trl,
    parse=_parse_trl,
    required_columns=_required_columns_trl,
)
PURERL = Convention(
    name="purerl",
    signature="(completion, example)",
    marker_parameters=frozenset(),
    max_inputs=1,
    call=_call_purerl,
    parse=_parse_purerl,
    required_columns=_required_columns_purerl,
)
CONVENTIONS = (VERL, TRL, PURERL)
"""All conventions, in the order in which they are tried. The last one matches every function of two arguments."""
