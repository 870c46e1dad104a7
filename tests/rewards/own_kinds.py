"""Kinds of rewards as a package outside of purerl has them. Worker processes import this module."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import at_least, setting


@frozen(kw_only=True)
class Config:
    target: int = setting("length at which the reward is 1", default=3, **at_least(1))


def build(config: Config) -> Any:
    return lambda completion, example: len(completion) / config.target


class Logged:
    """Logs into a file when it is built, called and closed."""

    @frozen(kw_only=True)
    class Config:
        log: str = setting("the file")
        fails: bool = setting("whether it cannot be closed", default=False)

    @staticmethod
    def build(config: Logged.Config) -> Any:
        _log(config.log, "built")
        return _Closable(config)


class LoggedAsync:
    """The same with an async function."""

    @frozen(kw_only=True)
    class Config:
        log: str = setting("the file")

    @staticmethod
    def build(config: LoggedAsync.Config) -> Any:
        _log(config.log, "built")
        return _AsyncClosable(config)


class Broken:
    """Cannot be built."""

    @frozen(kw_only=True)
    class Config:
        resource: str = setting("what it needs")

    @staticmethod
    def build(config: Broken.Config) -> Any:
        raise RuntimeError(f"no resource {config.resource}")


@frozen
class _Closable:
    config: Logged.Config

    def __call__(self, completion: str, example: Mapping[str, Any]) -> float:
        _log(self.config.log, completion)
        return 1.0

    def close(self) -> None:
        _log(self.config.log, "closed")
        if self.config.fails:
            raise OSError("the resource is gone")


@frozen
class _AsyncClosable:
    config: LoggedAsync.Config

    async def __call__(self, completion: str, example: Mapping[str, Any]) -> float:
        await asyncio.sleep(0)
        _log(self.config.log, completion)
        return 1.0

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        _log(self.config.log, "closed")


def _log(path: str, text: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class Batched:
    """A function in TRL's convention, which reads a column and needs a library."""

    @frozen(kw_only=True)
    class Config:
        library: str = setting("a library that it needs", default="json")

    @staticmethod
    def build(config: Batched.Config) -> Any:
        def number_of_rows(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str]) -> list[float]:
            return [float(len(completions))] * len(completions)

        return number_of_rows

    @staticmethod
    def check(config: Batched.Config) -> None:
        if config.library != "json":
            raise ConfigError("library", got=f"{config.library!r}, which is not installed", need="json")

    @staticmethod
    def columns(config: Batched.Config) -> Sequence[str | tuple[str, ...]]:
        return ["prompt", ("answer", "solution")]


class WithWeight:
    """Not a kind: one of its settings has the name of a setting of every reward."""

    @frozen
    class Config:
        weight: int = 1

    @staticmethod
    def build(config: WithWeight.Config) -> None:
        return None


class ForMath:
    """For rows of some data sources."""

    @frozen
    class Config:
        pass

    @staticmethod
    def build(config: ForMath.Config) -> Any:
        return lambda completion, example: float(example["data_source"].startswith("math_"))

    @staticmethod
    def data_sources(config: ForMath.Config) -> Sequence[str]:
        return ["math_*"]
