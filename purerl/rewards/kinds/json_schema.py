"""A reward for completions that are JSON and valid under the JSON Schema of their row.

    r = 1                    if the completion is JSON that is valid under the schema
        partial * |V| / |N|  if it is another object
        0                    otherwise

N are the names of the properties in the schema and in the object, and V those that are in both with a valid value. So
a property that is missing, invalid or unknown lowers the reward, and only an answer that is valid has the reward 1.
Nested objects are one property.

The column `schema` has the schema as text, because a column of a Parquet file has the same fields in all rows. The
whole completion must be JSON: text around it and a code fence make it invalid, and so do a name that occurs twice in an
object, NaN, and a number that no float can hold. The keyword `format` has no effect, as the standard permits. A
reference to a schema that is in another file is a failure of the reward: nothing is downloaded.

Source: JSON Schema, draft 2020-12 unless `$schema` names another draft, as checked by the package jsonschema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.rewards.adapters import RowCheck
from purerl.settings import setting
from purerl.system.installation import install_command

__all__ = ["Config", "JsonSchema", "build", "check", "columns", "read_strict_json", "row_check"]


@frozen(kw_only=True)
class Config:
    """Settings of the kind `json_schema`."""

    partial: float = setting(
        "largest reward of an object that is not valid; 0: no partial credit",
        default=0.0,
        need="at least 0 and below 1",
        valid=lambda value: 0 <= value < 1,
    )


@frozen
class JsonSchema:
    """The reward function of the kind `json_schema`."""

    partial: float

    def __call__(self, completion: str, example: Mapping[str, Any]) -> float:
        validator = _schema_of(example)
        try:
            answer = read_strict_json(completion)
            errors = [*validator.iter_errors(answer)]
        except (ValueError, RecursionError):
            return 0.0
        if not errors:
            return 1.0
        if not isinstance(answer, Mapping) or not self.partial:
            return 0.0
        schema = validator.schema
        known = {*schema.get("properties", ())} if isinstance(schema, Mapping) else set()
        invalid = {error.absolute_path[0] for error in errors if error.absolute_path}
        return self.partial * len((known & {*answer}) - invalid) / max(len(known | {*answer}), 1)


def read_strict_json(text: str) -> Any:
    """The value of a JSON text.

    Raises: ValueError if it is no JSON, a name occurs twice in an object, or a number cannot be held by a float;
    RecursionError if it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_int=_integer, parse_constant=_refuse)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)


def _integer(text: str) -> int:
    _finite(text)
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text:.100} is no number")


def _schema_of(example: Mapping[str, Any]) -> Any:
    """The validator of the schema in the column `schema`. Raises: KeyError, TypeError or ValueError."""
    text = example["schema"]
    if not isinstance(text, str):
        raise TypeError(f"the column schema has {type(text).__name__}, and not the JSON text of a schema")
    return _validator(text)


@lru_cache(1024)  # the rows of a group have one schema
def _validator(text: str) -> Any:
    from jsonschema import Draft202012Validator, SchemaError  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from jsonschema.validators import validator_for  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from jsonschema_specifications import REGISTRY  # pyright: ignore[reportMissingImports]

    schema = read_strict_json(text)
    if not isinstance(schema, (Mapping, bool)):
        raise TypeError(f"the column schema has {text!r:.200}, which is no JSON Schema")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the column schema has no JSON Schema: {error.message:.200}") from error
    return kind(schema, registry=REGISTRY)  # without it, other files would be downloaded


def build(config: Config) -> JsonSchema:
    """The reward function with the settings `config`."""
    return JsonSchema(config.partial)


def check(config: Config) -> None:
    """Raise ConfigError if the package jsonschema is not installed."""
    if find_spec("jsonschema") is None:
        raise ConfigError("kind", got="'json_schema'", need="the package jsonschema", do=install_command("json"))


def columns(config: Config) -> list[Any]:
    """The columns that the reward reads."""
    return ["schema"]


def row_check(config: Config) -> RowCheck:
    """The check that the schema of a row can be used."""
    return _schema_of
