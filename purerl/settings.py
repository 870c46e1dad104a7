"""Fields of settings classes, which describe and validate themselves; and `Model`, a section that several packages use.

This module and all modules called `settings` import no torch, so that a mistake is reported quickly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import NOTHING, Attribute, field, fields_dict, frozen

from purerl.errors import ConfigError, nearest
from purerl.system.credentials import IS_CHECKED, find_credential, is_server_address

__all__ = [
    "Model",
    "NoEffectError",
    "above_zero",
    "at_least",
    "between",
    "boolean",
    "check_alternatives",
    "check_strings",
    "count",
    "in_section",
    "missing",
    "names_setting",
    "no_effect",
    "one_of",
    "refuse_credentials",
    "server_address",
    "setting",
    "size_at_least",
    "switch",
    "to_mib",
    "to_model",
    "with_key",
]


_VARIABLE = "leave it out, and give it to the code or the server that needs it by an environment variable"


def setting(
    help: str,
    *,
    unit: str = "",
    need: str = "",
    valid: Callable[[Any], bool] | None = None,
    plugin: str = "",
    inline: bool = False,
    short: Any = False,
    may_change: bool | str = False,
    read: Callable[[Any], Any] | None = None,
    options: Iterable[Any] = (),
    credential: str = _VARIABLE,
    hidden: bool = False,
    example: str = "",
    **kwargs: Any,
) -> Any:
    """An attrs field with a description. Other arguments are those of `attrs.field`.

    need, valid  what a value must be, in words and as a function; a value for which `valid` is false or raises
                 TypeError is refused. None is always allowed if it is the default
    plugin       the field holds the Config of a plugin of this group
    inline       its kind and settings are written beside the other fields of the class, which no Config may have
    short        a string in place of the whole section is the value of this field; with `list`, its only element
    may_change   whether a run may continue with another value, see `purerl.config.continuing`: True, or a condition:
                 "rounding": yes, results change only by rounding; "end": yes, it decides only when the run ends;
                 "length": if it grows and no past learning rate depends on it
    read         converts other ways to write the value
    options      the values that are valid, if they are few
    credential   what to do in place of a password, key or token in the value, which is refused
    hidden       an invalid value is not shown, because it may be a credential
    example      a value as it is written in TOML, for the message that the setting is missing
    """

    def check(_: Any, attribute: Attribute, value: Any) -> None:
        if value is None and attribute.default is None:
            return
        refuse_credentials(attribute.name, value, do=credential)
        try:
            is_valid = valid is None or valid(value)
        except TypeError:
            is_valid = False
        if not is_valid:
            do = None if attribute.default in (NOTHING, None) else f"leave it out for {attribute.default}"
            got = "a value that is not shown" if hidden else repr(value)
            raise ConfigError(attribute.name, got=got, need=need, do=do)

    metadata = {"help": help, "unit": unit, "need": need, "short": short, "may_change": may_change, IS_CHECKED: True}
    metadata |= ({"plugin": plugin} if plugin else {}) | ({"inline": True} if inline else {})
    metadata |= ({"read": read} if read else {}) | ({"example": example} if example else {})
    metadata |= {"options": (*options,)} if options else {}
    return field(metadata=metadata, validator=check, **kwargs)


def count(help: str, default: int = 1, *, minimum: int = 1, **options: Any) -> Any:
    """A `setting` that is an integer from `minimum` on, and that may change while a run continues, up to rounding."""
    return setting(help, default=default, **{"may_change": "rounding", **at_least(minimum), **options})


def switch(help: str, *, default: bool | None = False) -> Any:
    """A `setting` that is true or false, and that may change while a run continues, up to rounding."""
    return setting(help, default=default, may_change="rounding", **boolean())


def refuse_credentials(name: str, value: Any, *, do: str = _VARIABLE) -> None:
    """Raise ConfigError if the setting `name` with `value` contains a password, key or token. It is not shown."""
    if found := find_credential(name, value):
        need = "no passwords, keys and tokens in settings, which are written to files, logs and trackers"
        raise ConfigError(found, got="a credential, which is not shown here", need=need, do=do)


# Each of these gives `need` and `valid` of a field: setting(..., **at_least(1)).


def at_least(minimum: float, maximum: float = math.inf) -> dict[str, Any]:
    """A number from `minimum` to `maximum`; an integer if `minimum` is one."""
    kinds = (int,) if isinstance(minimum, int) else (int, float)
    kind = "an integer" if isinstance(minimum, int) else "a number"
    need = f"{kind}, at least {minimum:g}" if maximum == math.inf else f"{kind} from {minimum:g} to {maximum:g}"
    return {"need": need, "valid": lambda value: type(value) in kinds and minimum <= value <= maximum}


def between(low: float, high: float) -> dict[str, Any]:
    """A number from `low` to `high`."""
    return at_least(float(low), float(high))


def above_zero() -> dict[str, Any]:
    """A finite number above 0."""
    return {"need": "a finite number above 0", "valid": lambda value: 0 < value < math.inf}


def boolean() -> dict[str, Any]:
    """True or false."""
    return {"need": "true or false", "valid": lambda value: type(value) is bool, "options": (True, False)}


def server_address() -> dict[str, Any]:
    """The URL of a server, to which paths are appended."""
    need = "a URL that starts with http:// or https://, without a user, a password, a query and a fragment"
    return {"need": need, "valid": is_server_address}


def one_of(*choices: Any) -> dict[str, Any]:
    """One of `choices`."""
    need = "one of: " + ", ".join(map(str, choices))
    return {"need": need, "valid": lambda value: value in choices, "options": choices}


def check_strings(name: str, strings: Iterable[str]) -> None:
    """Raise ConfigError if one of `strings` is empty."""
    if not all(strings):
        raise ConfigError(name, got="an empty string", need="strings of at least one character", do="leave it out")


def check_alternatives(config: object, *names: str, is_required: bool = False) -> None:
    """Raise ConfigError if more than one of the settings `names` is set, or none and `is_required`.

    Their default is None; every other value is set, also 0.
    """
    values = {name: value for name in names if (value := getattr(config, name)) is not None}
    if len(values) > 1 or (is_required and not values):
        got = ", ".join(f"{name} = {value}" for name, value in values.items()) or "none of them"
        need = "exactly one of them" if is_required else "at most one of them"
        do = "leave one of them out; an empty value, KEY=, removes one" if values else f"set {names[0]}"
        raise ConfigError(" or ".join(names), got=got, need=need, do=do)


def missing(key: str, need: str, example: str = "") -> ConfigError:
    """The error for the setting `key`, which has to be set; `example` is a value as it is written in TOML."""
    *sections, name = key.split(".")
    where = f" in [{'.'.join(sections)}]" if sections else ""
    return ConfigError(f"{key} is missing", need=need, do=f"write {name} = {example}{where}" if example else None)


class NoEffectError(ConfigError):
    """A setting that has no effect beside the others. `key` is its dotted key.

    A value that only a recipe has chosen gives way if it has lost its effect: see `purerl.config.origins`.
    """

    key: str = ""

    def at(self, key: str) -> NoEffectError:
        """The same error, about the setting `key`."""
        self.key = key
        return self


def no_effect(key: str, value: object, need: str, do: str | None = None) -> NoEffectError:
    """The error for the setting `key`, which needs `need` to have an effect. `do` is to leave it out by default.

    A `value` that is attrs.NOTHING is not in the message.
    """
    got = None if value is NOTHING else repr(value)
    return NoEffectError(f"{key} has no effect", got=got, need=need, do=do or f"leave {key} out").at(key)


@contextmanager
def in_section(key: str, cls: type) -> Iterator[None]:
    """Add the key of a section of the class `cls` to a ConfigError that the block raises."""
    try:
        yield
    except ConfigError as error:
        raise with_key(key, error, cls) from error


def with_key(key: str, error: ConfigError, cls: type) -> ConfigError:
    """`error`, which concerns the section `key` of the class `cls`, with this key.

    A message that starts with the name of a field, or with `kind` or `modifiers` of a plugin, continues the key.
    """
    message = str(error)
    joint = "." if names_setting(error, cls) else ": " if message[:1].strip() else ""
    message = f"{key}{joint}{message}" if key else message
    if isinstance(error, NoEffectError):
        return NoEffectError(message).at(f"{key}.{error.key}" if key else error.key)
    return ConfigError(message)


def names_setting(error: ConfigError, cls: type) -> bool:
    """Whether the message of `error` starts with a setting of the class `cls`, or with `kind` or `modifiers`."""
    first = str(error).partition("\n")[0].partition(" ")[0].rstrip(":").partition(".")[0]
    return first in {"kind", "modifiers", *fields_dict(cls)}


_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


def to_mib(value: Any) -> Any:
    """A size with a unit in MiB; every other value is returned unchanged.

    >>> to_mib("2GB"), to_mib("1.5 GiB"), to_mib(512)
    (1907, 1536, 512)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\w+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        return value
    return int(float(match[1]) * _UNITS[match[2]]) // 2**20


def size_at_least(minimum: int) -> dict[str, Any]:
    """A number of at least `minimum` MiB, which may be written as a size with a unit."""
    need = f'a number of MiB, at least {minimum}, or a size such as "2GB"'

    def read(value: Any) -> Any:
        number = to_mib(value)
        if isinstance(number, str):
            raise ConfigError("", got=repr(value), need=need)
        return number

    return {**at_least(minimum), "need": need, "converter": to_mib, "read": read}


_DTYPES = ("auto", "float32", "bfloat16", "float64", "float16")


@frozen
class Model:
    """Sources of the configuration, the weights and the tokenizer of a model.

    In settings a string stands for the model with that path.
    """

    path: str = setting("a local directory in Hugging Face's format, or the name of a model on the hub", short=True)
    revision: str | None = setting("branch, tag or commit on the hub", default=None)
    trust_remote_code: bool = setting("run the Python code that comes with the model", default=False, **boolean())
    dtype: str = setting(
        "of the weights: float32, bfloat16 or float64; float16 only for models that are not trained; auto: as in the "
        "files",
        default="float32",
    )
    attention: str | None = setting(
        "transformers' attention implementation: sdpa, eager, flash_attention_2, ...; if not set, the one that "
        "transformers chooses for the model: sdpa if it supports it, otherwise eager",
        default=None,
        may_change="rounding",
    )
    fingerprint: str = setting(
        "how a run notices that the files of a model have changed since it started; sampled: digests of parts of large "
        "files; full: of all bytes",
        default="sampled",
        **one_of("sampled", "full"),
    )

    def __attrs_post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ConfigError("dtype", got=repr(self.dtype), do=nearest(str(self.dtype), _DTYPES))


def to_model(value: str | Model) -> Model:
    """A path as the model that it stands for."""
    return Model(value) if isinstance(value, str) else value
