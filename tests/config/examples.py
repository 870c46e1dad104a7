"""Settings classes and plugins for tests. This module is itself a plugin, and so are two classes in it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from attrs import Attribute, field, frozen, validators

from purerl.errors import ConfigError


@frozen
class Config:
    """The Config of this module as a plugin."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)


def build(config: Config) -> tuple[str, Config]:
    """The plugin's builder."""
    return "module", config


class Nested:
    """A plugin that is a class, and defines its Config."""

    @frozen
    class Config:
        """The Config of `Nested`."""

        slots: int = 8

    @staticmethod
    def build(config: Any) -> tuple[str, Any]:
        """The plugin's builder."""
        return "nested", config


@frozen
class OutsideConfig:
    """The Config of `Outside`."""

    slots: int = 16


class Outside:
    """A plugin that is a class, with a Config that is defined outside of it."""

    Config = OutsideConfig

    @staticmethod
    def build(config: OutsideConfig) -> tuple[str, OutsideConfig]:
        """The plugin's builder."""
        return "outside", config


@frozen
class NamedConfig:
    """The Config of `Named`, which it names, as one in another module does."""

    PLUGIN: ClassVar[str] = "tests.config.examples:Named"

    slots: int = 32


class Named:
    """A plugin whose Config names it."""

    Config = NamedConfig

    @staticmethod
    def build(config: NamedConfig) -> tuple[str, NamedConfig]:
        """The plugin's builder."""
        return "named", config


class Extending:
    """A plugin whose Config extends that of another one."""

    @frozen
    class Config(NamedConfig):
        """The Config of `Extending`."""

    @staticmethod
    def build(config: Any) -> tuple[str, Any]:
        """The plugin's builder."""
        return "extending", config


class WithoutBuild:
    """Not a plugin: it has no builder."""

    Config = OutsideConfig


class WithKind:
    """Not a plugin: its Config has a field called kind."""

    @frozen
    class Config:
        """The Config of `WithKind`."""

        kind: str = "mine"

    @staticmethod
    def build(config: Any) -> Any:
        """The builder."""
        return config


@frozen
class NoPluginConfig:
    """Not the Config of a plugin."""


def _even(instance: Any, attribute: Attribute, value: int) -> None:
    if value % 2:
        raise ConfigError(attribute.name, got=value, need="an even number")


@frozen
class Section:
    """A section with a field of every scalar type."""

    size: int = field(default=2, validator=_even)
    count: int = field(default=1, validator=validators.ge(1))
    rate: float = 0.5
    limit: float | None = None
    enabled: bool = False
    word: str = "a"
    mode: Literal["fast", "slow", 3] = "fast"
    words: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)

    def __attrs_post_init__(self) -> None:
        if self.rate is not None and self.rate > 1:
            raise ConfigError("sizes do not fit", got=self.rate)


@frozen
class Settings:
    """A configuration with sections, plugins, lists of them, and another configuration."""

    name: str = field(metadata={"help": "its name"})
    section: Section = Section()
    optional: Section | None = None
    engine: Any = field(default=None, metadata={"plugin": "trainer"})
    engines: tuple[Any, ...] = field(default=(), metadata={"plugin": "trainer"})
    sections: tuple[Section, ...] = ()
    inner: Settings | None = None
