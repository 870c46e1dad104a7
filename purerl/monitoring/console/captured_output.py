"""Capture warnings and log messages while a live view is drawn in the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["captured_output"]


class _CallbackHandler(logging.Handler):
    def __init__(self, callback: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        self._callback(record.getMessage().strip().partition("\n")[0])


@contextmanager
def captured_output(callback: Callable[[str], None]) -> Iterator[None]:
    """Pass Python warnings and log records of level WARNING or higher to `callback` instead of the terminal.

    `callback` gets the first line of each message. Handlers that do not write to the terminal are left in place.
    """
    terminal = {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
    root, capture = logging.getLogger(), _CallbackHandler(callback)
    loggers = [root, *(entry for entry in root.manager.loggerDict.values() if isinstance(entry, logging.Logger))]
    removed = [
        (logger, handler)
        for logger in loggers
        for handler in logger.handlers
        if getattr(handler, "stream", None) in terminal
    ]
    captured = [root, *dict.fromkeys(logger for logger, _ in removed if not logger.propagate)]
    for logger, handler in removed:
        logger.removeHandler(handler)
    for logger in captured:
        logger.addHandler(capture)
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        for logger in captured:
            logger.removeHandler(capture)
        for logger, handler in removed:
            logger.addHandler(handler)
