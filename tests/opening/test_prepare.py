"""Preparing data: a file system that refuses to write, and functions that fail."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from purerl.errors import RunDirectoryError, RunError
from purerl.opening.inputs import prepare
from purerl.system.files import translate_os_errors


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can have more than 1,000 bytes, as if there were no space for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_text(folder: Path, seed: int) -> None:
    (folder / "text").write_text("x" * 10_000)


def write_weights(folder: Path, seed: int) -> None:
    save_file({"a": torch.zeros(2**16)}, folder / "model.safetensors")


def write_checkpoint(folder: Path, seed: int) -> None:
    torch.save({"a": torch.zeros(2**16)}, folder / "model.pt")


def write_vocabulary(folder: Path, seed: int) -> None:
    from tests.data.made import tokenizer

    tokenizer().save_pretrained(folder)


def write_table(folder: Path, seed: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"a": [*range(100_000)]}), folder / "rows.parquet")


@pytest.mark.parametrize("function", [write_text, write_weights, write_checkpoint, write_vocabulary, write_table])
def test_file_that_cannot_be_written_is_an_error_of_the_run_directory(
    function: Callable[..., None], tmp_path: Path, full_disk: None
) -> None:
    got = "inline_container" if function is write_checkpoint else "File too large"
    expected = pytest.raises(RunDirectoryError, match=f"cannot be written\n  got:  .*{got}.*\n  need: .* free space")
    with expected, translate_os_errors(tmp_path):
        prepare(f"{__name__}:{function.__name__}", 0, tmp_path)
    assert not (tmp_path / "prepared").exists()


def fail(folder: Path, seed: int) -> None:
    raise KeyError("column")


def test_exception_of_the_function_is_a_failed_run(tmp_path: Path) -> None:
    text = f"prepare_data '{__name__}:fail' failed\n  got:  KeyError: 'column'\n  do:   fix the function"
    with pytest.raises(RunError, match=re.escape(text)), translate_os_errors(tmp_path):
        prepare(f"{__name__}:fail", 0, tmp_path)
