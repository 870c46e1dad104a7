"""Checks of what an environment returns, and observations as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from purerl.data.row_images import to_image, with_places
from purerl.envs.protocol import Observation, ToolCall
from purerl.rewards.components import is_valid_number, to_components

__all__ = [
    "Declared",
    "calls_from_json",
    "checked_observation",
    "checked_tools",
    "example_as_json",
    "from_json",
    "to_json",
]

_ROLES = ("system", "user", "assistant", "tool")


@frozen
class Declared:
    """The declarations of the settings about all observations.

    has_states  each turn has a state
    players     number of players
    images      observations may have images
    """

    has_states: bool = False
    players: int = 1
    images: bool = False


def checked_observation(value: Any, declared: Declared) -> Observation:
    """`value` with plain values only, in place of those of numpy, torch and subclasses. A truncated episode is done.

    Its images are bytes of files, and there is a part ``{"type": "image"}`` for each of them in its messages.

    Raises: ValueError with what is wrong.
    """
    if not isinstance(value, Observation):
        raise ValueError(f"returned {value!r:.200}; need a purerl.envs.protocol.Observation")
    images = _checked_images(value.images, declared)
    checked = [_checked_message(message, declared) for message in _sequence("messages", value.messages)]
    messages = tuple(with_places(checked, len(images)))
    reward = _checked_reward(value.reward, declared.players)
    if not isinstance(value.components, Mapping):
        raise ValueError(f"components is {value.components!r:.200}; need a mapping of names to numbers")
    components = to_components("components", value.components)
    if "environment" in components:
        raise ValueError("components has 'environment', which is the name of the sum of all rewards; need another name")
    for name in ("done", "truncated"):
        if type(getattr(value, name)) is not bool:
            raise ValueError(f"{name} is {getattr(value, name)!r:.200}; need True or False")
    if not isinstance(value.state, str | int | None):
        raise ValueError(f"state is {value.state!r:.200}; need a string, an integer or None")
    if declared.has_states and value.state is None and not (value.done or value.truncated):
        raise ValueError("state is None; need the state in which the next turn starts, because has_states is true")
    if type(value.player) is not int or not 0 <= value.player < declared.players:
        need = f"an integer below environment.players = {declared.players}"
        raise ValueError(f"player is {value.player!r:.200}; need {need}")
    return Observation(
        messages=messages,
        reward=reward,
        done=value.done or value.truncated,
        truncated=value.truncated,
        state=_plain("state", value.state),
        score=None if value.score is None else _number("score", value.score),
        components=components,
        player=value.player,
        images=images,
    )


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{name} is {value!r:.200}; need a list of {name}")
    return value


def _checked_images(images: Any, declared: Declared) -> tuple[bytes, ...]:
    encoded = tuple(to_image(image).read() for image in _sequence("images", images))
    if encoded and not declared.images:
        raise ValueError(f"{len(encoded)} images; need none, because environment.images is false")
    return encoded


def _checked_message(message: Any, declared: Declared) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES or "content" not in message:
        raise ValueError(f"returned the message {message!r:.200}; need a role of {', '.join(_ROLES)}, and content")
    content = message["content"]
    if not isinstance(content, str) and not (declared.images and isinstance(content, list)):
        raise ValueError(f"the content of a message is {content!r:.200}; need a string")
    return _plain("a message", dict(message))


def _plain(what: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is {value!r:.200}; need what JSON can hold: {error}") from error


def _checked_reward(reward: Any, players: int) -> float | dict[int, float] | None:
    if reward is None:
        return None
    if isinstance(reward, Mapping):
        if any(type(player) is not int or not 0 <= player < players for player in reward):
            raise ValueError(f"reward is {reward!r:.200}; need rewards of players below players = {players}")
        return {player: _number("reward", value) for player, value in reward.items()}
    return _number("reward", reward)


def _number(name: str, value: Any) -> float:
    number = value.item() if getattr(value, "shape", None) == () else value
    if not is_valid_number(number):
        raise ValueError(f"{name} is {value!r:.200}; need a number that float32 can hold, or None")
    return float(number)


def checked_tools(tools: Any) -> tuple[Mapping[str, Any], ...] | None:
    """The JSON schemas of tools; None if there are none. Raises: ValueError with what is wrong.

    >>> checked_tools([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])[0]["type"]
    'function'
    """
    if not tools:
        return None
    for tool in _sequence("tools", tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name or not isinstance(function, Mapping):
            need = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
            raise ValueError(f"a tool is {tool!r:.200}; need {need}")
        if not isinstance(function.get("parameters", {}), Mapping):
            raise ValueError(f"the parameters of tool {name!r} are {function['parameters']!r:.200}; need a JSON schema")
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError(f"the names of tools are {', '.join(names)}; need different names")
    return tuple(_plain("a tool", [dict(tool) for tool in tools]))


def to_json(observation: Observation) -> dict[str, Any]:
    """`observation`, which was checked, as an object of JSON: its fields that are not the default; images in base64.

    >>> to_json(Observation(reward={1: 0.5}, done=True))
    {'reward': {'1': 0.5}, 'done': True}
    """
    fields = {name: getattr(observation, name) for name in attrs.fields_dict(Observation)}
    default = Observation()
    changed = {name: value for name, value in fields.items() if value != getattr(default, name)}
    if isinstance(observation.reward, Mapping):
        changed["reward"] = {str(player): value for player, value in observation.reward.items()}
    if observation.images:
        changed["images"] = [base64.b64encode(image).decode() for image in observation.images]
    return changed


def example_as_json(value: Any) -> Any:
    """A row of a data set as JSON: bytes, such as those of an image, are data URLs.

    >>> example_as_json({"prompt": "a", "image": {"bytes": b"b"}})
    {'prompt': 'a', 'image': {'bytes': 'data:;base64,Yg=='}}
    """
    if isinstance(value, bytes):
        return f"data:;base64,{base64.b64encode(value).decode()}"
    if isinstance(value, Mapping):
        return {name: example_as_json(item) for name, item in value.items()}
    return [example_as_json(item) for item in value] if isinstance(value, list | tuple) else value


def from_json(value: Any) -> Observation:
    """The inverse of `to_json`. Raises: ValueError for anything else."""
    known = attrs.fields_dict(Observation)
    if not isinstance(value, Mapping) or set(value) - set(known):
        raise ValueError(f"got {value!r:.200}; need an object with some of the keys {', '.join(known)}")
    fields = dict(value)
    if isinstance(fields.get("reward"), Mapping):
        fields["reward"] = {int(player): number for player, number in fields["reward"].items()}
    if "images" in fields:
        fields["images"] = [base64.b64decode(image, validate=True) for image in fields["images"]]
    return Observation(**fields)


def calls_from_json(value: Any) -> list[ToolCall]:
    """Tool calls from the objects that `attrs.asdict` gives. Raises: ValueError for anything else."""
    try:
        return [ToolCall(**call) for call in value]
    except TypeError as error:
        known = ", ".join(attrs.fields_dict(ToolCall))
        raise ValueError(f"calls are {value!r:.200}; need a list of objects with the keys {known}") from error
