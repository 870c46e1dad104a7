"""The files that a run reads: they are checked before a run is discarded, and prepared by the run itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from purerl.config.check import INITIAL_RUN
from purerl.config.paths import is_created_by_run
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.config.user_code import code_digests
from purerl.data.columns import ExampleType
from purerl.data.examples import read_examples
from purerl.errors import PurerlError, RunError
from purerl.evaluation.settings import Evaluate, Validation
from purerl.models.tokenizer import load_tokenizer
from purerl.opening.recorded import check_recorded, recorded_files
from purerl.plugins import locate
from purerl.store.checkpoint import saved_steps
from purerl.store.code import check_code
from purerl.store.directory import RunDirectory
from purerl.system.exhausted import explain_exhausted
from purerl.system.files import as_os_error, atomic_directory
from purerl.system.phases import phase

__all__ = ["check_files", "check_inputs", "checked_code", "created_files", "data_files", "prepare"]


@phase("preparing the data")
def prepare(function: str | None, seed: int, directory: Path) -> None:
    """Call the function `prepare_data` with this name, once, to fill ``{run}/prepared``.

    Raises: RunError for an exception of the function, except one of the file system, or for exhausted memory.
    """
    path = directory / "prepared"
    if function is None or path.exists():
        return
    with atomic_directory(path) as folder:
        try:
            locate(function)(folder, seed)
        except PurerlError:
            raise
        except Exception as error:
            if as_os_error(error) is not None or explain_exhausted(error) is not None:  # such as a full disk
                raise
            got, do = f"{type(error).__name__}: {error}", "fix the function; --debug prints the traceback"
            raise RunError(f"prepare_data {function!r} failed", got=got, do=do) from error


def check_inputs(config: RunConfig, needs: Mapping[str, Requirements]) -> None:
    """Read the data and tokenizers of `config` and its initial run, except those that the run itself creates.

    `needs` is the result of `check`. Raises: DataError and ConfigError, before an existing run is discarded.
    """
    for part, each in ((config.initial_run, needs.get(INITIAL_RUN)), (config, needs[""])):
        if part is None or each is None:
            continue
        check_files(part, each)
        for model in dict.fromkeys(each.all_models().values()):
            if not is_created_by_run(model.path):
                load_tokenizer(model)


def checked_code(
    config: RunConfig, functions: Mapping[str, Callable[..., Any]], directory: RunDirectory, *, is_accepted: bool
) -> dict[str, str]:
    """The digest of each file of the user's code. Raises: as `check_code`, if it was edited since a checkpoint."""
    code = code_digests(config, functions)
    check_code(directory.path, code, saved_steps(directory.checkpoints), is_accepted=is_accepted)
    return code


@phase("reading the data")
def check_files(config: RunConfig, needs: Requirements) -> None:
    """Read the data files of `config`, except those that the run itself creates.

    Raises: DataError; as `check_recorded` for a run on recorded completions.
    """
    check_recorded(config, needs.algorithm)
    for file, example_type in _named_files(config, needs):
        if not is_created_by_run(file):
            read_examples([file], example_type, columns=config.data.columns)


def created_files(config: RunConfig, needs: Requirements) -> list[str]:
    """The data files of `config` that the run itself creates."""
    return [file for file, _ in _named_files(config, needs) if is_created_by_run(file)]


def _named_files(config: RunConfig, needs: Requirements) -> list[tuple[str, ExampleType]]:
    """The data files of `config`, each with what it is used for."""
    learned = [*config.data.files, *_held_out(config.validation)]
    return [
        *((file, needs.example_type) for file in learned),
        *((file, "prompts") for file in _problems(config.evaluate)),
    ]


def data_files(config: RunConfig, directory: Path) -> list[str]:
    """The data files that a run of `config` in `directory` reads. Raises: ConfigError as `recorded_files`."""
    return [
        *config.data.files,
        *_problems(config.evaluate),
        *_held_out(config.validation),
        *recorded_files(config.rollout, directory),
    ]


def _problems(settings: Evaluate | None) -> list[str]:
    return [*settings.data.values()] if settings else []


def _held_out(settings: Validation | None) -> list[str]:
    return [*settings.data] if settings else []
