"""Warnings and log messages, taken from the terminal while something else is drawn there."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["captured_output"]


class _Handler(logging.Handler):
    def __init__(self, hear: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage().strip().partition("\n")[0])


@contextmanager
def captured_output(hear: Callable[[str], None]) -> Iterator[None]:
    """Give `hear` what Python warns of and what is logged as a warning or worse, instead of the terminal.

    Handlers that write elsewhere than to the terminal go on doing so.
    """
    terminal = {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
    root, handler = logging.getLogger(), _Handler(hear)
    loggers = [root, *(one for one in root.manager.loggerDict.values() if isinstance(one, logging.Logger))]
    muted = [(logger, one) for logger in loggers for one in logger.handlers if getattr(one, "stream", None) in terminal]
    listened = [root, *dict.fromkeys(logger for logger, _ in muted if not logger.propagate)]
    for logger, one in muted:
        logger.removeHandler(one)
    for logger in listened:
        logger.addHandler(handler)
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        for logger in listened:
            logger.removeHandler(handler)
        for logger, one in muted:
            logger.addHandler(one)
