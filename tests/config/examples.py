"""Configurations and plugins to test with; this module is itself a plugin, and so are two classes in it."""

from __future__ import annotations

from typing import Any, Literal

from attrs import Attribute, field, frozen, validators

from purerl.errors import ConfigError


@frozen
class Config:
    """The Config of the plugin that this module is."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)


def build(config: Config) -> tuple[str, Config]:
    """What it makes."""
    return "module", config


class Nested:
    """A plugin that is a class, with its Config inside."""

    @frozen
    class Config:
        """Its Config."""

        slots: int = 8

    @staticmethod
    def build(config: Any) -> tuple[str, Any]:
        """What it makes."""
        return "nested", config


@frozen
class OutsideConfig:
    """The Config of `Outside`."""

    slots: int = 16


class Outside:
    """A plugin that is a class, with its Config outside."""

    Config = OutsideConfig

    @staticmethod
    def build(config: OutsideConfig) -> tuple[str, OutsideConfig]:
        """What it makes."""
        return "outside", config


class WithoutBuild:
    """No plugin: nothing makes one."""

    Config = OutsideConfig


class WithKind:
    """No plugin: its Config has a field that is taken."""

    @frozen
    class Config:
        """Its Config."""

        kind: str = "mine"

    @staticmethod
    def build(config: Any) -> Any:
        """What it makes."""
        return config


@frozen
class Lonely:
    """No plugin's Config."""


def _even(instance: Any, attribute: Attribute, value: int) -> None:
    if value % 2:
        raise ConfigError(attribute.name, got=value, need="an even number")


@frozen
class Part:
    """A section."""

    size: int = field(default=2, validator=_even)
    count: int = field(default=1, validator=validators.ge(1))
    rate: float = 0.5
    most: float | None = None
    on: bool = False
    word: str = "a"
    mode: Literal["fast", "slow", 3] = "fast"
    words: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)

    def __attrs_post_init__(self) -> None:
        if self.rate is not None and self.rate > 1:
            raise ConfigError("a rate over 1 is none", got=self.rate)


@frozen
class Whole:
    """A configuration with everything in it."""

    name: str = field(metadata={"help": "how it is called"})
    part: Part = Part()
    other: Part | None = None
    engine: Any = field(default=None, metadata={"plugin": "trainer"})
    engines: tuple[Any, ...] = field(default=(), metadata={"plugin": "trainer"})
    parts: tuple[Part, ...] = ()
    before: Whole | None = None
