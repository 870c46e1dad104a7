"""Settings of the section `environment`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import fields_dict, frozen

from purerl.envs.formats import ToolFormat
from purerl.errors import ConfigError
from purerl.settings import at_least, boolean, check_strings, no_effect, one_of, server_address, setting, size_at_least

__all__ = ["EnvironmentSettings", "functions_of", "name_of_source", "servers_of", "written_fields"]


@frozen(kw_only=True)
class EnvironmentSettings:
    """The environment, or the tools, of a run with several turns.

    Exactly one source must be set: `factory`, `url`, or `tools` and `mcp`, which can be combined.
    """

    factory: str | None = setting(
        "what creates the environment of an episode: a class or function, as module:Class or file.py:function",
        default=None,
    )
    kwargs: Mapping[str, Any] = setting("arguments of each call of `factory`", factory=dict)
    tools: tuple[str, ...] = setting(
        "functions that the model can call, as module:function or file.py:function; of a class, the public methods of "
        "an object of each episode, which is closed with it if it is a context manager. An episode ends with the first "
        "turn without a call, and the reward functions score it",
        default=(),
    )
    mcp: tuple[str, ...] = setting(
        "MCP servers whose tools the model can call: a URL, or the command line of a server that communicates with "
        "stdin and stdout. ${NAME} in a URL is an environment variable, for a server that needs a key",
        default=(),
        credential="write ${NAME} in a URL for the environment variable NAME; a command line has the variables of the "
        "run, so export the one that the server reads",
    )
    url: str | None = setting(
        "a remote environment, started with purerl.envs.server.serve",
        default=None,
        credential="export PURERL_ENVIRONMENT_TOKEN, or PURERL_ENVIRONMENT_TOKEN_FILE with the name of a private file",
        **server_address(),
    )
    has_states: bool = setting(
        "whether each turn of the environment has a state, for algorithms that compare turns in the same state, such "
        "as gigpo",
        default=False,
        **boolean(),
    )
    has_scores: bool = setting(
        "whether observations have a score of the state, for algorithms that give a turn credit for its change, such "
        "as turn_credit",
        default=False,
        **boolean(),
    )
    images: bool = setting("whether observations have images, for a vision-language model", default=False, **boolean())
    players: int = setting("number of players, each with a conversation of its own", default=1, **at_least(1, 1024))
    max_turns: int = setting("maximum number of turns of an episode", unit="turns", default=8, **at_least(1))
    max_episode_tokens: int | None = setting(
        "maximum number of tokens of an episode after its prompt, of turns and of answers together; with several "
        "players, of each of them. If not given, there is no limit",
        unit="tokens",
        default=None,
        **at_least(1),
    )
    lockstep: bool = setting(
        "whether the episodes of a synchronous run, or of an evaluation, wait for each other: an engine in the process "
        "of the run samples a turn when all of them have requested it, so the run can be repeated bit for bit. false: "
        "an episode continues when its environment has answered, which is faster if answers take different times",
        default=True,
        may_change="rounding",
        **boolean(),
    )
    tool_format: Literal["auto", ToolFormat] = setting(
        "how the model writes a call of a tool; auto: as its chat template does",
        default="auto",
        **one_of("auto", *get_args(ToolFormat)),
    )
    history: Literal["append", "rerender"] = setting(
        "append: every row is the whole conversation, as it was sampled; rerender: the chat template renders each turn "
        "again, and an episode becomes several rows where it removes something, such as earlier reasoning",
        default="append",
        **one_of("append", "rerender"),
    )
    renderer: str = setting(
        "what turns messages into tokens: template, the chat template; or a model family of the package renderers, "
        "such as qwen3; auto: the package if it is installed and knows the model, otherwise the chat template",
        default="auto",
    )
    timeout: float = setting(
        "maximum duration of one call of reset, step or a tool", unit="s", default=60.0, may_change=True
    )
    run_in: str = setting(
        "where the code runs. process: in worker processes, which can be ended; thread: in threads of the run, which "
        "cannot; event_loop: in the run's event loop, for code that only awaits",
        default="process",
        may_change=True,
        **one_of("process", "thread", "event_loop"),
    )
    num_workers: int | None = setting(
        "number of worker processes; if not given, the number of cores, at most 8. With run_in = thread, the number of "
        "threads; if not given, 32",
        default=None,
        may_change=True,
        **at_least(1),
    )
    max_memory: int | None = setting(
        "maximum memory of each worker process, and of each process that it starts: a number of MiB, or a size such as "
        '"2GB" or "512MiB". If not given, there is no limit',
        unit="MiB",
        default=None,
        may_change=True,
        **size_at_least(64),
    )

    def __attrs_post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ConfigError("timeout", got=self.timeout, need="above 0, and finite")
        for name in ("tools", "mcp"):
            check_strings(name, getattr(self, name))
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(name, got=", ".join(getattr(self, name)), need="each of them once")
        _check_source(self)
        _check_effects(self)

    @property
    def is_in_event_loop(self) -> bool:
        """Whether episodes wait only for what their own code awaits in the run's event loop."""
        return self.run_in == "event_loop" and self.url is None and not self.mcp

    @property
    def gives_rewards(self) -> bool:
        """Whether it can give rewards itself; tools cannot."""
        return not (self.tools or self.mcp)


def _check_source(settings: EnvironmentSettings) -> None:
    given = {"factory": settings.factory, "tools or mcp": settings.tools or settings.mcp, "url": settings.url}
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        got, need = ", ".join(names) or "none of them", "exactly one of them"
        raise ConfigError("factory, tools, mcp or url", got=got, need=need, do="see docs/how-to/environments.md")


def _check_effects(settings: EnvironmentSettings) -> None:
    """Refuse settings that have no effect with the source, or with `run_in`."""
    default = {name: field.default for name, field in fields_dict(EnvironmentSettings).items()} | {"kwargs": {}}
    has_tools = bool(settings.tools or settings.mcp)
    needs: dict[str, tuple[bool, str]] = {
        "kwargs": (settings.factory is not None, "a factory, which is called with them"),
        "run_in": (settings.url is None, "an environment that runs here; its server decides where its code runs"),
        "num_workers": (settings.url is None and settings.run_in != "event_loop", "worker processes or threads"),
        "max_memory": (settings.url is None and settings.run_in == "process", "worker processes: run_in = process"),
        "has_states": (not has_tools, "an environment; tools have no states"),
        "has_scores": (not has_tools, "an environment; tools have no scores"),
        "players": (not has_tools, "an environment; tools have one player"),
        "images": (not has_tools, "an environment; tools return text"),
    }
    for name, (has_effect, need) in needs.items():
        value = getattr(settings, name)
        if value != default[name] and not has_effect:
            raise no_effect(name, value, need)


def functions_of(settings: EnvironmentSettings) -> tuple[str, ...]:
    """The names of the Python functions and classes that `settings` name."""
    return (*((settings.factory,) if settings.factory else ()), *settings.tools)


def servers_of(settings: EnvironmentSettings) -> tuple[str, ...]:
    """The URLs and command lines of servers that `settings` name."""
    return (*((settings.url,) if settings.url else ()), *settings.mcp)


def name_of_source(settings: EnvironmentSettings) -> str:
    """The name of the environment in messages.

    >>> name_of_source(EnvironmentSettings(tools=("tools.py:add", "tools.py:now")))
    'tools.py:add, tools.py:now'
    """
    return settings.factory or settings.url or ", ".join((*settings.tools, *settings.mcp))


def written_fields(settings: EnvironmentSettings) -> tuple[str, ...]:
    """The fields that the rows of this environment have, beyond those of rows of one turn.

    >>> written_fields(EnvironmentSettings(factory="game.py:Game", has_states=True))
    ('turn', 'episode', 'anchor')
    """
    anchor = ("anchor",) if settings.has_states else ()
    progress = ("progress",) if settings.has_scores else ()
    return ("turn", "episode", *anchor, *progress, *(("role",) if settings.players > 1 else ()))
