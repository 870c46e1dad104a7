"""The configuration of a model, and errors while something of a model is read from a directory or from the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from purerl.errors import ConfigError, PurerlError
from purerl.models.config_file import check_model_files, explain_config
from purerl.settings import Model
from purerl.system.similar_paths import similar_path

__all__ = [
    "cannot_load",
    "check_directory",
    "config_of",
    "dtype_of",
    "file_of",
    "folder_of",
    "is_in_hf_format",
    "loading",
]


def config_of(model: Model) -> Any:
    """The configuration of `model`. Raises ConfigError if it cannot be read."""
    from transformers import AutoConfig

    with loading("model", model):
        return AutoConfig.from_pretrained(
            model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
        )


def is_in_hf_format(path: Path) -> bool:
    """Whether the directory `path` has a model in Hugging Face's format: of an architecture that transformers has.

    A trainer may export others, as `fake` does.
    """
    from transformers import CONFIG_MAPPING

    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") in CONFIG_MAPPING


def dtype_of(model: Model) -> str:
    """The dtype in which `model` is loaded; "auto" if that is set, and no configuration that can be read names one."""
    dtype = None
    if model.dtype == "auto":
        with suppress(ConfigError):  # loading the model will say why
            dtype = config_of(model).dtype
    return model.dtype if dtype is None else str(dtype).removeprefix("torch.")


@contextmanager
def loading(what: str, model: Model) -> Iterator[None]:
    """Raise ConfigError for any error of a library while `what` of `model` is loaded: its files may have any content.

    Raises: ConfigError also as `check_directory` and `check_model_files`, before the block.
    """
    from huggingface_hub.errors import StrictDataclassError

    check_directory(model)
    folder = folder_of(model)
    if folder is not None:
        check_model_files(folder)
    try:
        yield
    except PurerlError:
        raise
    except StrictDataclassError as error:  # a value in config.json; the cause says which one
        raise cannot_load(what, model, error.__cause__ or error) from error
    except Exception as error:
        raise (folder and explain_config(folder)) or cannot_load(what, model, error) from error


def folder_of(model: Model) -> Path | None:
    """The directory with the files of `model`, or with those that were downloaded from the hub; None without any."""
    if Path(model.path).is_dir():
        return Path(model.path)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        config = try_to_load_from_cache(model.path, "config.json", revision=model.revision)
        return Path(config).parent if isinstance(config, str) else None
    return None


def cannot_load(what: str, model: Model, error: BaseException) -> ConfigError:
    """The error if `what` of `model` could not be loaded because of `error`."""
    is_directory = Path(model.path).is_dir()
    where = "the directory" if is_directory else "the hub's repository"
    return ConfigError(
        f"no {what} can be loaded from {where} {model.path!r}",
        got=_in_words(error),
        need="files as written by transformers' save_pretrained",
        do=_suggestion(Path(model.path)),
    )


def file_of(model: Model, name: str) -> Path:
    """The file `name` of `model`, in its directory or downloaded. Raises: OSError if there is none."""
    if Path(model.path).is_dir():
        return Path(model.path) / name
    from transformers.utils.hub import cached_file

    path = cached_file(model.path, name, revision=model.revision, _raise_exceptions_for_missing_entries=False)
    if path is None:
        raise FileNotFoundError(name)
    return Path(path)


def _in_words(error: BaseException) -> str:
    """The first line of the message of `error`, after its class if the message alone may say nothing."""
    lines = str(error).strip().splitlines()
    is_message = bool(lines) and isinstance(error, OSError | ValueError | ImportError)
    return lines[0] if is_message else ": ".join([type(error).__name__, *lines[:1]])


def check_directory(model: Model) -> None:
    """Raise ConfigError if the path of `model` can only be a directory, and there is none.

    A name with at most one slash may be that of a model on the hub.
    """
    path = model.path
    is_local = path.startswith(("/", "./", "../", "~")) or path.endswith("/") or path.count("/") > 1
    if is_local and not Path(path).is_dir():
        near = similar_path(Path(path), _is_model)
        need = "a directory with the files of a model, or the name of a model on the hub"
        do = f"did you mean {str(near)!r}?" if near else "check model.path, which is relative to the working directory"
        raise ConfigError(f"the model {path!r} is missing", got="no such directory", need=need, do=do)


def _is_model(path: Path) -> bool:
    return any((path / name).is_file() for name in ("config.json", "final/config.json"))


def _suggestion(path: Path) -> str:
    """A suggestion in place of `path`, which may be a run directory: its trained model."""
    if (path / "final" / "config.json").is_file():
        return f"did you mean {str(path / 'final')!r}?"
    near = None if path.exists() else similar_path(path, _is_model)
    if near is not None:
        return f"did you mean the directory {str(near)!r}?"
    return "check model.path; without a network, name a local directory"
