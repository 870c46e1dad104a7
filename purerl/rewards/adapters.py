"""How a reward function is called: purerl's own way, verl's, or TRL's, told apart by the names of its parameters.

A function written for either library works here unchanged. What it returns is read the way that library reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from purerl.errors import ConfigError

__all__ = [
    "CONVENTIONS",
    "Convention",
    "LoadedReward",
    "RewardFunction",
    "RewardInput",
    "as_reward",
    "columns_of",
    "is_async",
    "load_reward",
    "name_of",
    "needs_one_of",
    "one_of",
]

RewardFunction = Callable[..., Any]
F = TypeVar("F", bound=RewardFunction)

_MANY = 2**31
_ONE_OF = "purerl_needs_one_of"


class RewardInput(NamedTuple):
    """One completion to be judged: the key of its row, its text, and the example that it answers."""

    row: str
    completion: str
    example: Mapping[str, Any]


class Convention(NamedTuple):
    """A way of calling reward functions.

    name, signature   for people
    marks             parameters that a function of this kind has, and no other
    most              cases of one call
    call              (function, cases) -> what the function returns, or an awaitable of it
    read              (what was returned, number of cases) -> one value for each case
    columns           (function) -> columns of the example that it cannot do without
    """

    name: str
    signature: str
    marks: frozenset[str]
    most: int
    call: Callable[[RewardFunction, Sequence[RewardInput]], Any]
    read: Callable[[Any, int], list[Any]]
    columns: Callable[[RewardFunction], tuple[str, ...]]


class LoadedReward(NamedTuple):
    """A reward function, its name, and how it is called."""

    name: str
    function: RewardFunction
    convention: Convention


def load_reward(name: str) -> LoadedReward:
    """The function that ``module:function`` or ``file.py:function`` names, ready to be called.

    Raises: ConfigError where there is none, or one that follows no convention.
    """
    from purerl.plugins import locate

    if name.startswith("__main__:"):
        do = "give the function itself, rewards=[function], or name its file, file.py:function"
        raise ConfigError(f"reward {name!r}", got="a name that means another module in every process", do=do)
    return as_reward(name, locate(name))


def name_of(function: RewardFunction) -> str:
    """How a run's configuration names a reward function that was given as an object."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def as_reward(name: str, function: RewardFunction) -> LoadedReward:
    """`function` with its convention. Raises ConfigError for what is no function, or follows none.

    >>> as_reward("mine", lambda completion, example: 1.0).convention.name
    'purerl'
    >>> as_reward("theirs", lambda prompts, completions, **columns: []).convention.name
    'TRL'
    """
    if not callable(function):
        raise ConfigError(f"reward {name!r}", got=type(function).__name__, need="a function (completion, example)")
    parameters = _parameters(function)
    convention = next(one for one in CONVENTIONS if one.marks <= set(parameters))
    _, second, *_ = (*parameters, "", "")
    if convention is PURERL and second in _TRUTHS:
        got, need = f"a function ({', '.join(parameters)})", f"{PURERL.signature}, with the whole row as example"
        raise ConfigError(f"reward {name!r}", got=got, need=need, do=f"read example[{second!r}]")
    if not _takes(function, convention):
        got = f"a function ({', '.join(parameters)})"
        need = "one of: " + "; ".join(f"{one.signature} ({one.name})" for one in CONVENTIONS)
        raise ConfigError(f"reward {name!r}", got=got, need=need)
    return LoadedReward(name, function, convention)


_TRUTHS = ("ground_truth", "answer", "solution", "label", "target", "gold")
"""What a parameter is called by those who expect the right answer there, and not a row."""


def columns_of(as_reward: LoadedReward) -> tuple[str, ...]:
    """The columns of the examples that `as_reward` cannot do without, as far as its parameters tell."""
    return as_reward.convention.columns(as_reward.function)


def needs_one_of(*columns: str) -> Callable[[F], F]:
    """Mark a reward function as one that cannot do without one at least of these columns of the examples.

    Data without any of them are then refused before a model is loaded.

    >>> @needs_one_of("answer", "solution")
    ... def reward(completion, example):
    ...     return 1.0
    >>> one_of(as_reward("reward", reward))
    ('answer', 'solution')
    """

    def mark(function: F) -> F:
        setattr(function, _ONE_OF, columns)
        return function

    return mark


def one_of(as_reward: LoadedReward) -> tuple[str, ...]:
    """The columns of which `as_reward` needs one, as `needs_one_of` marked it; none where it did not."""
    return getattr(as_reward.function, _ONE_OF, ())


def is_async(function: RewardFunction) -> bool:
    """Whether calling `function` gives something to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _parameters(function: RewardFunction) -> Mapping[str, inspect.Parameter]:
    """Its parameters by name; none where Python cannot tell, as for some functions written in C."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _takes(function: RewardFunction, convention: Convention) -> bool:
    """Whether `function` can be called with two arguments, ours, or with those that the others' have by name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        if convention is PURERL:
            signature.bind("", {})
        elif convention is VERL:
            signature.bind(**_accepted(function, dict.fromkeys(_VERL)))
    except TypeError:
        return False
    return True


def _accepted(function: RewardFunction, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that `function` has a parameter for: all, where it takes any name."""
    parameters = _parameters(function)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


# --- purerl ------------------------------------------------------------------------------------------------------


def _call_ours(function: RewardFunction, cases: Sequence[RewardInput]) -> Any:
    return function(cases[0].completion, cases[0].example)


def _read_ours(returned: Any, count: int) -> list[Any]:
    if isinstance(returned, Mapping) and not returned:
        raise TypeError("returned {}; needed is one number at least, or None where no reward can be told")
    return [returned]


def _no_columns(function: RewardFunction) -> tuple[str, ...]:
    return ()


# --- verl --------------------------------------------------------------------------------------------------------

_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")


def _call_verl(function: RewardFunction, cases: Sequence[RewardInput]) -> Any:
    _, completion, example = cases[0]
    arguments = {
        "data_source": example["data_source"],
        "solution_str": completion,
        "ground_truth": example["reward_model"]["ground_truth"],
        "extra_info": example.get("extra_info") or {},
    }
    return function(**_accepted(function, arguments))


def _read_verl(returned: Any, count: int) -> list[Any]:
    """Of a mapping only `score` is the reward: the rest is what verl writes into its own logs."""
    return [returned["score"] if isinstance(returned, Mapping) and "score" in returned else returned]


def _columns_verl(function: RewardFunction) -> tuple[str, ...]:
    return ("data_source", "reward_model")


# --- TRL ---------------------------------------------------------------------------------------------------------


def _call_trl(function: RewardFunction, cases: Sequence[RewardInput]) -> Any:
    """Every column of the examples is a list; a conversation's completion is one, of one message."""
    prompts = [case.example["prompt"] for case in cases]
    completions = [
        case.completion if isinstance(prompt, str) else [{"role": "assistant", "content": case.completion}]
        for case, prompt in zip(cases, prompts, strict=True)
    ]
    names = dict.fromkeys(name for case in cases for name in case.example if name not in ("prompt", "completion"))
    columns = {name: [case.example.get(name) for case in cases] for name in names}
    return function(**_accepted(function, {**columns, "prompts": prompts, "completions": completions}))


def _read_trl(returned: Any, count: int) -> list[Any]:
    """None says that the function is not about this row: it has no part in the row's sum."""
    values = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if len(values) != count:
        raise TypeError(f"returned {returned!r:.200}; needed is a list of {count}, numbers or None")
    return [{} if value is None else value for value in values]


def _columns_trl(function: RewardFunction) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = ("prompts", "completions")
    wanted = (one for one in _parameters(function).values() if one.kind in kinds and one.default is one.empty)
    return ("prompt", *(one.name for one in wanted if one.name not in own))


VERL = Convention(
    "verl", f"({', '.join(_VERL)})", frozenset({"solution_str"}), 1, _call_verl, _read_verl, _columns_verl
)
TRL = Convention(
    "TRL", "(prompts, completions, **columns)", frozenset({"completions"}), _MANY, _call_trl, _read_trl, _columns_trl
)
PURERL = Convention("purerl", "(completion, example)", frozenset(), 1, _call_ours, _read_ours, _no_columns)
CONVENTIONS = (VERL, TRL, PURERL)
"""In the order in which they are tried: the last is for every function of two arguments."""
