"""Files in the directory of a model, read before transformers reads them.

They may have been downloaded. A number that no model has would take all time or memory, and an index of weights may
name files in other directories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from purerl.errors import ConfigError
from purerl.system.nesting import read_json

__all__ = ["check_model_files", "explain_config", "read_object"]

_MAX_BYTES = 2**26
"""Of a configuration or an index. That of the largest models has some MiB."""

_SIZES = (
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 10_000

_ROPE_OF_IMAGES = ("axial", "mrope")
"""Rotary embeddings that models with images define themselves."""

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


def check_model_files(folder: Path) -> None:
    """Refuse a model in the directory `folder` before anything else reads it.

    Raises: ConfigError as `read_object`, for sizes in config.json that no model has, and for an index of weights that
    names a file outside of `folder`.
    """
    config = folder / "config.json"
    for key, value in _sizes(read_object(config)) if config.exists() else ():
        maximum = _MAX_LAYERS if key.endswith("layers") else _MAX_SIZE
        minimum = 0 if key.endswith("head_dim") else 1  # 0 in some models with another kind of heads
        if type(value) is int and not minimum <= value <= maximum:
            raise _invalid(folder, key, value, f"a number from {minimum} to {maximum:,}")
    for index in sorted(folder.glob("*.index.json")):
        names = read_object(index).get("weight_map")
        if not isinstance(names, Mapping):
            raise ConfigError(f"{str(index)!r}", got="no object weight_map", need="the file of each weight, by name")
        for name in dict.fromkeys(map(str, names.values())):
            if not _is_inside(name):
                do = "do not use this model: it would read files that are not its own"
                need = f"files in {str(folder)!r}"
                raise ConfigError(f"{str(index)!r}", got=f"the file of weights {name!r:.200}", need=need, do=do)


def read_object(path: Path) -> Mapping[str, Any]:
    """The object in the JSON file at `path`.

    Raises: OSError if it cannot be read; ConfigError if it is no object, too large or nested too deeply.
    """
    size = path.stat().st_size
    if size > _MAX_BYTES or not path.is_file():
        got = f"{size:,} bytes" if path.is_file() else "no regular file"
        raise ConfigError(f"{str(path)!r}", got=got, need=f"a file of at most {_MAX_BYTES:,} bytes")
    try:
        value = read_json(path.read_bytes())
    except ValueError as error:
        raise _no_object(path, str(error)) from error
    if not isinstance(value, dict):
        raise _no_object(path, f"{value!r:.40}")
    return value


def _no_object(path: Path, got: str) -> ConfigError:
    do = "fix the file, or download it again"
    return ConfigError(f"{str(path)!r}", got=got, need="an object of JSON, as transformers writes it", do=do)


def explain_config(folder: Path) -> ConfigError | None:
    """The error for a value in config.json with which transformers fails without a message; None if there is none.

    They are values that some other program may accept, so they are looked for only after transformers has failed.
    """
    path = folder / "config.json"
    for section, table in _tables(read_object(path)) if path.exists() else ():
        for key in ("dtype", "torch_dtype"):
            dtype = table.get(key)
            if dtype is not None and str(dtype).removeprefix("torch.") not in _DTYPES:
                return _invalid(folder, section + key, dtype, f"one of {', '.join(_DTYPES)}")
        for key in ("rope_parameters", "rope_scaling"):
            rope = table.get(key)
            if isinstance(rope, Mapping) and (problem := _problem_of_rope(rope)):
                return _invalid(folder, section + key, *problem)
    return None


def _problem_of_rope(rope: Mapping[str, Any]) -> tuple[object, str] | None:
    """The problem of rotary embeddings, and what they need; None if none is known."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = rope.get("rope_type", rope.get("type", "default"))
    known = {"default", *ROPE_INIT_FUNCTIONS, *_ROPE_OF_IMAGES}
    if kind not in known:
        return f"the type {kind!r}", f"one of {', '.join(sorted(known))}"
    numbers = {key: value for key, value in rope.items() if key in ("rope_theta", "factor")}
    wrong = next((key for key, value in numbers.items() if not isinstance(value, int | float)), None)
    return None if wrong is None else (f"{wrong} = {numbers[wrong]!r}", "a number")


def _sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The sizes in `config` and its sections of the decoder and of images, by key."""
    for section, table in _tables(config):
        yield from ((section + key, table[key]) for key in _SIZES if key in table)


def _tables(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", config
    sections = ((f"{key}.", value) for key, value in config.items() if key.endswith("_config"))
    yield from ((key, value) for key, value in sections if isinstance(value, Mapping))


def _is_inside(name: str) -> bool:
    """Whether `name` is that of a file in a directory or in one below it, on any system. A link may be anywhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and not {":", "\0"} & {*name}


def _invalid(folder: Path, key: str, got: object, need: str) -> ConfigError:
    do = "fix the file, or download it again"
    return ConfigError(f"{str(folder / 'config.json')!r}: {key}", got=f"{got!r:.100}", need=need, do=do)
