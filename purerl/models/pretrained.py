"""The configuration of a model, and errors while something of a model is read from a directory or from the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from purerl.errors import ConfigError
from purerl.settings import Model

__all__ = ["cannot_load", "config_of", "dtype_of", "loading"]


def config_of(model: Model) -> Any:
    """The configuration of `model`. Raises ConfigError if it cannot be read."""
    from transformers import AutoConfig

    with loading("model", model):
        return AutoConfig.from_pretrained(
            model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
        )


def dtype_of(model: Model) -> str:
    """The dtype in which `model` is loaded; "auto" if that is set, and no configuration that can be read names one."""
    dtype = None
    if model.dtype == "auto":
        with suppress(ConfigError):  # loading the model will say why
            dtype = config_of(model).dtype
    return model.dtype if dtype is None else str(dtype).removeprefix("torch.")


@contextmanager
def loading(what: str, model: Model, *others: type[Exception]) -> Iterator[None]:
    """Raise ConfigError for an error of transformers, or one of `others`, while `what` of `model` is loaded."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except ConfigError:
        raise
    except StrictDataclassError as error:  # a value in config.json; the cause says which one
        raise cannot_load(what, model, error.__cause__ or error) from error
    except (OSError, ValueError, ImportError, *others) as error:
        raise cannot_load(what, model, error) from error


def cannot_load(what: str, model: Model, error: BaseException) -> ConfigError:
    """The error if `what` of `model` could not be loaded because of `error`."""
    where = "the directory" if Path(model.path).is_dir() else "the hub's repository"
    return ConfigError(
        f"no {what} can be loaded from {where} {model.path!r}",
        got=str(error).strip().splitlines()[0],
        need="files as written by transformers' save_pretrained",
        do=_suggestion(Path(model.path)),
    )


def _suggestion(path: Path) -> str:
    """A suggestion in place of `path`, which may be a run directory: its trained model."""
    if (path / "final" / "config.json").is_file():
        return f"did you mean {str(path / 'final')!r}?"
    return "check model.path; without a network, name a local directory"
