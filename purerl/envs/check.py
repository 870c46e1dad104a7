"""Checks of the section `environment` before anything starts."""

from __future__ import annotations

import ast
import inspect
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from inspect import Signature
from pathlib import Path
from typing import Any

from purerl.envs.mcp_tools import variables_of
from purerl.envs.schema import tool_schema
from purerl.envs.settings import EnvironmentSettings
from purerl.envs.signatures import METHODS, OPTIONAL_METHODS, check_kwargs, check_method, check_methods
from purerl.envs.sources import tool_functions
from purerl.errors import ConfigError
from purerl.plugins import locate
from purerl.rewards.loading import is_async, readable_signature
from purerl.settings import no_effect
from purerl.system.installation import install_command
from purerl.system.static_inspect import definition, find_source, signature_of

__all__ = ["check_environment_settings"]


def check_environment_settings(
    settings: EnvironmentSettings, *, num_rewards: int | None = None, not_imported: Collection[str] = ()
) -> None:
    """Refuse environments and tools that cannot be used, and settings without effect. Nothing is started.

    num_rewards   the number of reward functions of the run; None: it is not checked
    not_imported  names of functions and classes of which only the source code is read

    Raises: ConfigError.
    """
    if settings.max_memory is not None and sys.platform != "linux":
        raise no_effect("max_memory", settings.max_memory, "Linux, which limits the memory of a process")
    if settings.factory is not None and settings.factory in not_imported:
        _check_factory_source(settings.factory, settings.kwargs)
    elif settings.factory is not None:
        _check_factory(settings, settings.factory)
    if settings.tools or settings.mcp:
        for name in settings.tools:
            if name in not_imported:
                _check_tool_source(name)
        _check_tools(settings, [name for name in settings.tools if name not in not_imported])
        if num_rewards == 0:
            need = "a reward function, because tools give no rewards"
            raise ConfigError("rewards", got="none", need=need, do="set rewards")


def _located(key: str, name: str, settings: EnvironmentSettings) -> Callable[..., Any]:
    if name.startswith("__main__:") and settings.run_in == "process":
        got = f"{name!r}, in __main__, which is another module in a worker process"
        raise ConfigError(key, got=got, do="name its file, file.py:function")
    found = locate(name)
    if not callable(found):
        raise ConfigError(f"{key} {name!r}", got=type(found).__name__, need="a class or a function")
    return found


def _check_factory(settings: EnvironmentSettings, name: str) -> None:
    factory: Any = _located("factory", name, settings)
    if inspect.isclass(factory):
        optional = {method: getattr(factory, method) for method in OPTIONAL_METHODS if hasattr(factory, method)}
        methods: dict[str, Any] = {method: getattr(factory, method, None) for method in METHODS} | optional
        check_methods(name, [method for method, function in methods.items() if callable(function)])
        _check_run_in(settings, {f"{name}.{method}": function for method, function in methods.items()})
        for method, function in methods.items():
            if signature := readable_signature(function):
                check_method(name, method, signature)
    if signature := readable_signature(factory):
        check_kwargs(name, signature, settings.kwargs)


def _check_run_in(settings: EnvironmentSettings, functions: dict[str, Callable[..., Any]]) -> None:
    blocking = [name for name, function in functions.items() if not is_async(function)]
    if settings.run_in == "event_loop" and blocking:
        got = f"{blocking[0]}, which is not a coroutine and would block the event loop"
        raise ConfigError("run_in = event_loop", got=got, need="only async functions", do="leave run_in out")
    if settings.run_in == "thread" and not blocking:
        raise no_effect("run_in", settings.run_in, "functions that block; all are async", "set run_in = event_loop")


def _check_tools(settings: EnvironmentSettings, tools: Sequence[str]) -> None:
    located = {name: _located("tools", name, settings) for name in tools}
    functions = {f"{name} {one.__name__}": one for name in located for one in tool_functions(name)}
    names: dict[str, str] = {}
    for where, function in functions.items():
        schema_name = tool_schema(function)["function"]["name"]
        if schema_name in names:
            got = f"{schema_name!r} twice: {names[schema_name]} and {where}"
            raise ConfigError("tools", got=got, need="tools with different names")
        names[schema_name] = where
    for name in tools:
        if not tool_functions(name):
            raise ConfigError(f"tools {name!r}", got="a class without public methods", need="at least one")
    if len(tools) == len(settings.tools):
        _check_run_in(settings, functions)
    for server in settings.mcp:
        _check_server(server)


def _check_server(server: str) -> None:
    if find_spec("mcp") is None:
        do = install_command("mcp")
        raise ConfigError(f"mcp {server!r}", got="the package mcp is not installed", do=do)
    for name in variables_of(server):
        if not os.environ.get(name):
            got, do = f"no environment variable {name}", f"export {name}=..."
            raise ConfigError(f"mcp {server!r}", got=got, need="the variable in the URL", do=do)
    if server.startswith(("http://", "https://")):
        return
    try:
        command = shlex.split(server)
    except ValueError as error:
        raise ConfigError(f"mcp {server!r}", got=str(error), need="a URL, or a command line") from error
    if not command or shutil.which(command[0]) is None:
        got = f"no program {command[0] if command else ''!r}"
        raise ConfigError(f"mcp {server!r}", got=got, need="a URL, or the command line of a program that is installed")


def _check_factory_source(name: str, kwargs: Mapping[str, Any]) -> None:
    """Check the class or function `name`, which creates an environment, and `kwargs`. Raises ConfigError."""
    path, attribute, node = _found(name)
    if not isinstance(node, ast.ClassDef):
        if path.is_file() and (signature := signature_of(path, attribute)):
            check_kwargs(name, signature, kwargs)
    elif not node.bases and not node.keywords and not node.decorator_list:
        methods = _methods(node)
        check_methods(name, methods)
        for method in METHODS:
            if signature := signature_of(path, f"{attribute}.{method}"):
                check_method(name, method, signature)
        signature = signature_of(path, f"{attribute}.__init__") if "__init__" in methods else Signature()
        if signature is not None:
            without_self = list(signature.parameters.values())[1:]
            check_kwargs(name, signature.replace(parameters=without_self), kwargs)


def _check_tool_source(name: str) -> None:
    """Check the function `name`, or the public methods of the class `name`. Raises ConfigError."""
    _, _, node = _found(name)
    if isinstance(node, ast.ClassDef):
        methods = [method for key, method in _methods(node).items() if not key.startswith("_")]
        if not methods and not node.bases:
            raise ConfigError(f"tools {name!r}", got="a class without public methods", need="at least one")
        for method in methods:
            _check_tool(method, skipped=1)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        _check_tool(node, skipped=0)


def _found(name: str) -> tuple[Path, str, ast.stmt | None]:
    module, _, attribute = name.partition(":")
    path = find_source(module)
    return path or Path(), attribute, definition(path, attribute) if path and attribute else None


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def _check_tool(node: ast.FunctionDef | ast.AsyncFunctionDef, *, skipped: int) -> None:
    """Check the parameters of a tool from the one with the number `skipped` on."""
    if node.decorator_list:
        return
    if not ast.get_docstring(node):
        raise ConfigError(f"the tool {node.name!r} has no description", need="a docstring that says what it does")
    for parameter in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][skipped:]:
        if parameter.annotation is None:
            what = f"the parameter {parameter.arg!r} of the tool {node.name!r}"
            raise ConfigError(what, need="a type hint, such as str")
