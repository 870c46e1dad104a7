"""Environments for TRL's `environment_factory`, as environments of purerl. They work without changes.

For example::

    class Counter:
        def reset(self, **columns) -> str | None: ...     # what it returns is shown to the model
        def add(self, number: int) -> str: ...            # every other public method is a tool
        def get_reward(self) -> float: ...                # optional

`TRLEnvironment("my_module:Counter")` is such an environment. The package trl is not needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from purerl.adapters.tool_calls import answer_calls, content_of, when_done
from purerl.envs.protocol import EndReason, Message, Observation, ToolCall
from purerl.errors import ConfigError, DataError, nearest
from purerl.plugins import locate

__all__ = ["TRLEnvironment"]

Factory = Callable[[], Any]
RewardFunction = Callable[..., Any]

_NO_TOOLS = ("reset", "get_reward")
_ONLY_IN_TRL = ("completion_ids", "trainer_state", "log_extra", "log_metric")


class TRLEnvironment:
    """An environment that TRL's GRPOTrainer accepts as `environment_factory`, for one episode.

    factory                      a class or function, or its address ``module:name``; or several by name: the column
                                 `environment` of an example then says which one is used
    reward_functions             reward functions as TRL calls them, or their addresses. They get the environment in
                                 `environments`, unlike those of the section `rewards`. Every call is about one episode
    reward_weights               a weight for each of them; 1 if not given. `get_reward` has weight 1
    max_tool_calling_iterations  number of turns whose tool calls are answered, as in TRL; if not given, it is unlimited

    The episode is over with the first turn without a tool call, with the turn after the last one whose calls are
    answered, or when a limit of the run ends it. Its reward is then the weighted sum of `get_reward` and of the reward
    functions that do not return None.

    Raises: ConfigError for a factory whose objects have no `reset`, a reward function that needs what only TRL's
    trainer has, another number of weights than of functions, and if there is no reward at all.
    """

    def __init__(
        self,
        factory: str | Factory | Mapping[str, str | Factory],
        reward_functions: Sequence[str | RewardFunction] = (),
        reward_weights: Sequence[float] = (),
        max_tool_calling_iterations: int | None = None,
    ):
        several = factory if isinstance(factory, Mapping) else {"": factory}
        self._several = isinstance(factory, Mapping)
        self._factories = {name: _load(address) for name, address in several.items()}
        self._rewards = [_load(function) for function in reward_functions]
        self._weights = [*reward_weights] or [1.0] * len(self._rewards)
        self._max_iterations = max_tool_calling_iterations
        self._messages: list[Message] = []
        self._iterations = 0
        self._example: Mapping[str, Any] = {}
        self._environment: Any = None
        self.tools: Sequence[Mapping[str, Any]] = ()
        _check_rewards(self._rewards, self._weights)
        if not self._several:
            self._create("")

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation | Awaitable[Observation]:
        """Call `reset` with the columns of the example.

        `seed` is passed too if `reset` has a parameter with this name and the example has no such column. What it
        returns is a message of the user.

        Raises: DataError if the column `environment` does not name a factory.
        """
        columns = dict(example)
        if self._several:
            self._create(columns.pop("environment", None))
        if "seed" in inspect.signature(self._environment.reset).parameters:
            columns.setdefault("seed", seed)
        self._example = example
        return when_done([self._environment.reset(**columns)], _first_observation)

    def step(self, text: str, calls: Sequence[ToolCall]) -> Observation | Awaitable[Observation]:
        self._messages.append(_assistant_message(text, calls))
        is_last = self._max_iterations is not None and self._iterations >= self._max_iterations
        if calls and not is_last:
            self._iterations += 1
            return answer_calls(calls, _tools_of(self._environment), self._next_observation)
        return self._last_observation(truncated=bool(calls))

    def end(self, reason: EndReason, text: str) -> Observation | Awaitable[Observation]:
        """The rewards of an episode that a limit of the run has ended, as TRL computes them after its limits."""
        self._messages += [_assistant_message(text, ())] if text else []
        return self._last_observation(truncated=True)

    def close(self) -> None:
        self._environment = None

    def _create(self, name: str | None) -> None:
        """Create the environment called `name`, and describe its tools."""
        if name not in self._factories:
            do = nearest(str(name), self._factories)
            raise DataError("column 'environment'", got=repr(name), need="the name of an environment", do=do)
        self._environment = self._factories[name]()
        if not callable(getattr(self._environment, "reset", None)):
            got = type(self._environment).__name__
            raise ConfigError("environment for TRL", got=got, need="a class with a method reset")
        if not self._rewards and not hasattr(self._environment, "get_reward"):
            need = "a method get_reward, or reward_functions"
            raise ConfigError("environment for TRL", got=type(self._environment).__name__, need=need)
        from transformers.utils.chat_template_utils import get_json_schema

        self.tools = [get_json_schema(method) for method in _tools_of(self._environment).values()]

    def _next_observation(self, answers: Sequence[Message]) -> Observation:
        self._messages += answers
        return Observation(messages=answers)

    def _last_observation(self, *, truncated: bool) -> Observation | Awaitable[Observation]:
        """The end of the episode with its reward. TRL calls `get_reward` by the class of the environment."""
        arguments = self._reward_arguments()
        own = getattr(self._environment, "get_reward", None)
        names = [getattr(function, "__name__", type(function).__name__) for function in self._rewards]
        values = [_call_reward(function, arguments) for function in self._rewards]
        values += [] if own is None else [own()]

        def finish(done: Sequence[Any]) -> Observation:
            single = [*map(_single, done[: len(names)]), *done[len(names) :]]
            triples = zip([*names, type(self._environment).__name__], [*self._weights, 1.0], single, strict=False)
            found = [(name, weight, float(value)) for name, weight, value in triples if value is not None]
            components = {name: sum(value for other, _, value in found if other == name) for name, _, _ in found}
            reward = sum(weight * value for _, weight, value in found) if found else None
            return Observation(reward=reward, done=True, truncated=truncated, components=components)

        return when_done(values, finish)

    def _reward_arguments(self) -> dict[str, Any]:
        columns = {name: [value] for name, value in self._example.items() if name not in ("prompt", "completion")}
        episode = {"prompts": [self._example.get("prompt")], "completions": [self._messages]}
        return columns | episode | {"environments": [self._environment]}


def _first_observation(shown: Sequence[Any]) -> Observation:
    return Observation(messages=[{"role": "user", "content": content_of(text)} for text in shown if text is not None])


def _load(value: Any) -> Any:
    return locate(value) if isinstance(value, str) else value


def _tools_of(environment: Any) -> dict[str, Callable[..., Any]]:
    """The public methods of the class of `environment`, by name, bound to it."""
    methods = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in methods if not name.startswith("_") and name not in _NO_TOOLS]
    return {name: getattr(environment, name) for name in names}


def _check_rewards(functions: Sequence[RewardFunction], weights: Sequence[float]) -> None:
    if len(weights) != len(functions):
        need = f"one for each of the {len(functions)} reward_functions"
        raise ConfigError("reward_weights", got=f"{len(weights)} weights", need=need)
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        missing = [p.name for p in parameters if p.name in _ONLY_IN_TRL and p.default is p.empty]
        if missing:
            what = f"reward function {getattr(function, '__name__', function)!r}"
            need = "a function without these arguments, which only TRL's trainer has"
            raise ConfigError(what, got=f"the arguments {', '.join(missing)}", need=need)


def _call_reward(function: RewardFunction, arguments: Mapping[str, Any]) -> Any:
    """Call `function` with those of `arguments` that it has a parameter for: all of them if it has ``**kwargs``."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in parameters})


def _single(values: Any) -> float | None:
    """The only value in what a reward function returned. Raises TypeError if it is not a list of one."""
    found = [*values]
    if len(found) != 1:
        raise TypeError(f"a reward function returned {len(found)} values for one episode")
    return found[0]


def _assistant_message(text: str, calls: Sequence[ToolCall]) -> Message:
    functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": text} | ({"tool_calls": tool_calls} if tool_calls else {})
