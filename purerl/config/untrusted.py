"""Functions that a configuration names, checked without importing them.

A module that is imported runs, so a function in a file from somebody else can do anything. Of such a function only the
source code is read: whether it exists, and its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.config.structure import to_dict
from purerl.envs.settings import functions_of, servers_of
from purerl.errors import ConfigError
from purerl.plugins import GROUPS, names, similar_module
from purerl.rewards.settings import RewardWorkers, by_name
from purerl.system.static_inspect import definition, exists, find_source, is_of_python, signature_of

__all__ = [
    "check_functions",
    "check_prepare_data",
    "functions_in",
    "imported_plugins",
    "kinds_in",
    "own_functions",
    "without_code",
]


def own_functions(config: RunConfig) -> list[str]:
    """The functions and servers outside of purerl that `config` and its initial run name, each after its key."""
    found = [f"{key} {name}" for key, name in functions_in(config) if not _is_of_purerl(name)]
    found += [f"environment {name}" for name in servers_of(config.environment)] if config.environment else []
    initial = own_functions(config.initial_run) if config.initial_run else []
    return list(dict.fromkeys([*initial, *found]))


def imported_plugins(config: RunConfig) -> list[str]:
    """The plugins of `config` that are not part of purerl. Reading its settings has imported them."""
    known = {name for group in GROUPS for name in names(group)}
    plugins = {
        name: section for name, section in to_dict(config).items() if name != "placement"
    }  # its kind is no plugin
    return sorted({kind for kind in kinds_in(plugins) if kind not in known})


def check_functions(config: RunConfig) -> None:
    """Refuse functions of Python itself: none of them is a reward, or prepares data. Nothing is imported.

    Such a function can be called with a completion, and may do anything with it: ``shutil:rmtree`` takes two arguments.

    Raises: ConfigError.
    """
    for key, name in functions_in(config):
        if is_of_python(name.partition(":")[0]):
            need = "a function that is written for this, in a module or a file of your own or of a library"
            raise ConfigError(key, got=f"{name!r}, a function of Python", need=need, do="name it as file.py:function")


def check_prepare_data(name: str, function: Any) -> None:
    """Raise ConfigError unless `function`, which is called `name`, can be called with a directory and a seed."""
    if not callable(function):
        raise _no_preparation(name, f"a value of type {type(function).__name__}")
    try:
        found = signature(function)
    except ValueError:  # it has none that can be read
        return
    try:
        found.bind(Path(), 0)
    except TypeError as error:
        raise _no_preparation(name, f"{name}{found}") from error


def _no_preparation(name: str, got: str) -> ConfigError:
    do = f"correct {name!r}: the function writes files into the directory"
    return ConfigError("prepare_data", got=got, need="a function of (directory, seed)", do=do)


def without_code(config: RunConfig) -> tuple[RunConfig, Mapping[str, Callable[..., Any]]]:
    """`config` without functions outside of purerl, except rewards; and functions in place of these, by name.

    Each of them has the parameters of the function that it replaces.

    Raises: ConfigError for a function that does not exist, and as `check_functions` and `check_prepare_data`.
    """
    check_functions(config)
    replaced = {name: _stand_in(name) for _, name in functions_in(config) if not _is_of_purerl(name)}
    evaluate, prepare_data = config.evaluate, config.prepare_data
    if prepare_data in replaced:
        check_prepare_data(prepare_data, replaced[prepare_data])
    if evaluate is not None and evaluate.answer_extractor in replaced:
        evaluate = evolve(evaluate, answer_extractor=None)
    initial, functions = without_code(config.initial_run) if config.initial_run else (None, {})
    config = evolve(
        config,
        evaluate=evaluate,
        prepare_data=None if prepare_data in replaced else prepare_data,
        # Settings of workers have no effect on functions in this process, which those in place of rewards are.
        reward_workers=RewardWorkers() if replaced else config.reward_workers,
        initial_run=initial,
    )
    rewards = by_name(config.rewards, config.gates).items()
    by_reward = {name: replaced[reward.function] for name, reward in rewards if reward.function in replaced}
    return config, {**functions, **replaced, **by_reward}


def _stand_in(name: str) -> Callable[..., Any]:
    """A function with the parameters of the function ``module:function`` or ``file.py:function``.

    If they cannot be read, they are those of a reward function of purerl. The function must not be called.

    Raises: ConfigError if there is no such module, or no such name in it.
    """

    def function(completion: str, example: Mapping[str, Any]) -> float:
        raise AssertionError(f"{name} is not imported")

    module, _, attribute = name.partition(":")
    if not exists(module):
        need, do = "package.module:name, importable from here", "check its spelling, or name a file: file.py:name"
        near = None if module.endswith(".py") else similar_module(module)
        do = f"did you mean {f'{near}:{attribute}'!r}?" if near else do
        raise ConfigError(f"cannot find {name!r}", got=f"no module {module!r}", need=need, do=do)
    path = find_source(module)
    if path is None:
        return function
    if attribute and definition(path, attribute) is None:
        need, do = "package.module:name, importable from here", "check its spelling, or name a file: file.py:name"
        raise ConfigError(f"cannot find {name!r}", got=f"module {module} without {attribute}", need=need, do=do)
    signature = signature_of(path, attribute) if attribute else None
    if signature is not None:
        function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return function


def functions_in(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(key, name) of the functions that `config` names, without those of its initial run."""
    yield from (("rewards", reward.function) for reward in config.rewards if reward.function)
    yield from (("gates", gate.function) for gate in config.gates if gate.function)
    if config.evaluate and config.evaluate.answer_extractor:
        yield "evaluate.answer_extractor", config.evaluate.answer_extractor
    if config.prepare_data:
        yield "prepare_data", config.prepare_data
    if config.rollout and config.rollout.workflow:
        yield "rollout.workflow", config.rollout.workflow.function
    if config.environment:
        yield from (("environment", name) for name in functions_of(config.environment))


def _is_of_purerl(name: str) -> bool:
    return name.partition(":")[0].partition(".")[0] == "purerl"


def kinds_in(value: Any) -> Iterator[str]:
    """Every `kind` in a table, except that of a placement, which is no plugin."""
    if isinstance(value, Mapping):
        yield from ([value["kind"]] if isinstance(value.get("kind"), str) else [])
        value = [part for name, part in value.items() if name != "placement"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from kinds_in(item)
