"""Exhausted memory, descriptors and processes as a user sees them: one message, and no traceback."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
import typer

from purerl.opening.inputs import prepare
from purerl.system.exhausted import explain_exhausted
from purerl_cli.output import report_errors


@contextmanager
def _few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open_files() -> None:
    with _few_descriptors():
        opened = []
        try:
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _import() -> None:
    with suppress(ValueError), _few_descriptors():
        try:
            _open_files()
        except OSError as error:
            raise ImportError("cannot import it") from error


def _start_thread() -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")  # as CPython raises it

    refuse(threading)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_open_files, "too few file descriptors\n  got:  OSError: [Errno 24]"),
        (_import, "do:   raise the limit: ulimit -n 65536"),
        (lambda: bytearray(2**62), "too little memory\n  got:  MemoryError"),
        (lambda: torch.empty(2**55), "too little memory\n  got:  RuntimeError"),
        (_start_thread, "no more processes or threads"),
    ],
)
def test_what_is_exhausted_is_one_message(
    function: Callable[[], object], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, report_errors(debug=False):
        function()
    error = capsys.readouterr().err
    assert (caught.value.exit_code, text in error, "Traceback" in error) == (1, True, False), error


def exhausts_memory(folder: Path, seed: int) -> None:
    bytearray(2**62)


def test_exhausted_memory_is_not_the_fault_of_what_prepares_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), report_errors(debug=False):
        prepare(f"{__name__}:exhausts_memory", 0, tmp_path)
    assert "too little memory\n  got:  MemoryError" in capsys.readouterr().err
    assert not (tmp_path / "prepared").exists()


def test_another_error_is_not_explained() -> None:
    assert explain_exhausted(ValueError("out of memory")) is None
    assert explain_exhausted(OSError(2, "no such file")) is None
    with pytest.raises(RuntimeError), report_errors(debug=False):
        raise RuntimeError("a bug")
