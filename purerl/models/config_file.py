"""Files in the directory of a model, read before transformers reads them.

They may have been downloaded. A number that no model has would take all time or memory, and an index of weights may
name files in other directories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import NOTHING

from purerl.errors import ConfigError
from purerl.system.nesting import NestingError, read_json

__all__ = ["check_model_files", "explain_config"]

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

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


def check_model_files(folder: Path) -> None:
    """Refuse a model in the directory `folder` before anything else reads it.

    Raises: ConfigError for sizes in config.json that no model has, and for an index of weights that names a file
    outside of `folder`. What cannot be read here is left to transformers, except a file that is too large or nested too
    deeply.
    """
    for key, value in _sizes(_read(folder / "config.json")):
        maximum = _MAX_LAYERS if key.endswith("layers") else _MAX_SIZE
        minimum = 0 if key.endswith("head_dim") else 1  # 0 in some models with another kind of heads
        if type(value) is int and not minimum <= value <= maximum:
            raise _invalid(folder, key, value, f"a number from {minimum} to {maximum:,}")
    for index in sorted(folder.glob("*.index.json")):
        table = _read(index)
        names = table.get("weight_map") if isinstance(table, Mapping) else None
        for name in dict.fromkeys(map(str, names.values())) if isinstance(names, Mapping) else ():
            if not _is_inside(name):
                do = "do not use this model: it would read files that are not its own"
                need = f"files in {str(folder)!r}"
                raise ConfigError(f"{str(index)!r}", got=f"the file of weights {name!r:.200}", need=need, do=do)


def explain_config(folder: Path) -> ConfigError | None:
    """The error for a value in config.json with which transformers fails without a message; None if there is none.

    They are values that some other program may accept, so they are looked for only after transformers has failed.
    """
    config = _read(folder / "config.json")
    if config is not NOTHING and not isinstance(config, Mapping):
        return ConfigError(f"{str(folder / 'config.json')!r}", got=type(config).__name__, need="an object of JSON")
    for section, table in _tables(config):
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
    """What is wrong with rotary embeddings, and what is needed; None if nothing is known to be."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind, known = rope.get("rope_type", rope.get("type", "default")), {"default", *ROPE_INIT_FUNCTIONS}
    if kind not in known:
        return f"the type {kind!r}", f"one of {', '.join(sorted(known))}"
    numbers = {key: value for key, value in rope.items() if key in ("rope_theta", "factor")}
    wrong = next((key for key, value in numbers.items() if not isinstance(value, int | float)), None)
    return None if wrong is None else (f"{wrong} = {numbers[wrong]!r}", "a number")


def _sizes(config: Any) -> Iterator[tuple[str, Any]]:
    """The sizes in `config` and its sections of the decoder and of images, by key."""
    for section, table in _tables(config):
        yield from ((section + key, table[key]) for key in _SIZES if key in table)


def _tables(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(config, Mapping):
        yield "", config
        sections = ((f"{key}.", value) for key, value in config.items() if str(key).endswith("_config"))
        yield from ((key, value) for key, value in sections if isinstance(value, Mapping))


def _is_inside(name: str) -> bool:
    """Whether `name` is that of a file in a directory or in one below it, on any system. A link may be anywhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and not {":", "\0"} & {*name}


def _read(path: Path) -> Any:
    """The content of the JSON file at `path`; attrs.NOTHING if it cannot be read."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES or not path.is_file():
            got = f"{size:,} bytes" if path.is_file() else "no file"
            raise ConfigError(f"{str(path)!r}", got=got, need=f"a file of at most {_MAX_BYTES:,} bytes")
        return read_json(path.read_bytes())
    except NestingError as error:
        raise ConfigError(f"{str(path)!r}", got=str(error), need="the file of a model") from error
    except (OSError, ValueError):
        return NOTHING


def _invalid(folder: Path, key: str, got: object, need: str) -> ConfigError:
    do = "fix the file, or download it again"
    return ConfigError(f"{str(folder / 'config.json')!r}: {key}", got=f"{got!r:.100}", need=need, do=do)
