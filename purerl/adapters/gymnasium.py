"""Gymnasium-style environments with text as observations, as environments of purerl.

For example::

    class Guess:
        def reset(self, *, seed=None, options=None) -> tuple[str, dict]: ...                   # observation, info
        def step(self, action: str) -> tuple[str, float, bool, bool, dict]: ...
        # observation, reward, terminated, truncated, info

`GymnasiumEnvironment("my_module:Guess")` is such an environment. The package gymnasium is only needed for environments
that are registered with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from purerl.adapters.packages import load
from purerl.envs.protocol import Observation, ToolCall
from purerl.errors import ConfigError, DataError
from purerl.plugins import locate
from purerl.system.nesting import read_json

__all__ = ["GymnasiumEnvironment", "last_line"]


class GymnasiumEnvironment:
    """One episode of an environment with Gymnasium's interface.

    environment  a class or function, its address ``module:name``, or the id of a registered environment, such as
                 ``Blackjack-v1`` or ``my_module:Guess-v0``
    arguments    its arguments
    parse        makes the action of the text of a turn; a function or its address. If not given, the action is the text
                 without spaces around it. If it raises ValueError, the model
                 reads the reason in its next turn, and the environment takes no step
    show         makes the text that the model reads of an observation; a function or its address. Needed for
                 observations that are not text

    An example may have the columns `seed`, an integer, and `options`, a mapping or JSON: both are passed to `reset`.
    Without a column `seed`, each sample of a prompt starts from a state of its own.

    Raises: ConfigError if there is no such environment, or gymnasium is needed and not installed.
    """

    def __init__(
        self,
        environment: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        parse: str | Callable[[str], Any] = str.strip,
        show: str | Callable[[Any], str] | None = None,
    ):
        self._environment = _create(environment, arguments or {})
        self._parse = locate(parse) if isinstance(parse, str) else parse
        self._show = locate(show) if isinstance(show, str) else show or _text_of

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        """Start an episode, with the column `seed` of the example if it has one, and otherwise with `seed`.

        Raises: DataError if the column `options` is neither a mapping nor JSON of one; ConfigError for an observation
        that is not text, without `show`.
        """
        own_seed = seed if example.get("seed") is None else int(example["seed"])
        value = example.get("options")
        try:
            options = read_json(value) if isinstance(value, str) else value
        except ValueError as error:
            raise DataError("column 'options'", got=str(error), need="a mapping, or JSON of one") from error
        if options is not None and not isinstance(options, Mapping):
            raise DataError("column 'options'", got=repr(options)[:200], need="a mapping, or JSON of one")
        observation, _ = self._environment.reset(seed=own_seed, options=options)
        return Observation(messages=self._messages(observation))

    def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        try:
            action = self._parse(text)
        except ValueError as error:
            return Observation(messages=[_message(f"Invalid action: {error}")])
        space = getattr(self._environment, "action_space", None)
        if space is not None and action not in space:
            return Observation(messages=[_message(f"Invalid action: {action!r} is not in {space}")])
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        return Observation(
            messages=self._messages(observation),
            reward=float(reward),
            done=bool(terminated or truncated),
            truncated=bool(truncated and not terminated),
        )

    def close(self) -> None:
        close = getattr(self._environment, "close", None)
        if close is not None:
            close()

    def _messages(self, observation: Any) -> list[Mapping[str, Any]]:
        return [_message(self._show(observation))]


def last_line(text: str) -> str:
    r"""The last line of a turn that is not blank, as an action. Raises ValueError if there is none.

    >>> last_line("I think that it is 7.\n7\n")
    '7'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("the answer is blank")
    return lines[-1]


def _create(environment: str | Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if not isinstance(environment, str):
        return environment(**arguments)
    if not re.search(r"-v\d+$", environment):
        return locate(environment)(**arguments)
    gymnasium = load("gymnasium", "gymnasium")
    try:
        return gymnasium.make(environment, **arguments)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        need = "the id of a registered environment, NAME-vN or module:NAME-vN"
        raise ConfigError(f"environment {environment!r} of gymnasium", got=str(error), need=need) from error


def _text_of(observation: Any) -> str:
    if not isinstance(observation, str):
        got, need = f"a value of type {type(observation).__name__}", "text"
        raise ConfigError("observation of a Gymnasium-style environment", got=got, need=need, do="set show")
    return observation


def _message(text: str) -> Mapping[str, Any]:
    return {"role": "user", "content": text}
