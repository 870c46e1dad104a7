"""Needs of all tests: a GPU only if they are marked, one torch thread, quick collections, the default handlers of
signals, a good order in parallel, and a sound machine.
"""

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
import torch

from purerl.system.garbage import gc_frozen
from tests.collection import one_after_another
from tests.forks import WORKERS
from tests.machine import MACHINE_TESTS, faults, reset_signals
from tests.soak import count_interruptions, pytest_terminal_summary  # noqa: F401 -- a fixture, and a hook

_SESSION = ExitStack()

hypothesis.settings.register_profile("tests", deadline=None)  # on a busy machine an example may take any time
hypothesis.settings.load_profile("tests")
torch.set_num_threads(1)  # two, beside other work, take up to eight times as long


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=20, help="number of SIGKILLs in the tests marked soak")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests of each, in a random order")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those of ``-m gpu``: most tests compare with what a CPU computes."""
    reset_signals()
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, which would visit what is imported again and again and free nothing."""
    gc.disable()
    try:
        with one_after_another(Path(__file__).parent.rglob("test_*.py")):
            return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no core waits for one at the end. On an unsound machine one test fails."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if (seed := config.getoption("shuffle")) is not None:
        rng = random.Random(seed)
        places = {path: rng.random() for path in {item.path: None for item in items}}
        items.sort(key=lambda item: (places[item.path], str(item.path), rng.random()))
    if faults():
        for item in items:
            if item.path.name != MACHINE_TESTS:
                item.add_marker(pytest.mark.skip(reason=f"see tests/{MACHINE_TESTS}: {faults()[0]}"))


def pytest_collection_finish() -> None:
    """Let collections ignore what exists now: the libraries have a million objects, and were a fifth of the time.

    Runs do so too. In this block they know that it has been done.
    """
    _SESSION.enter_context(gc_frozen())


@pytest.fixture(autouse=True)
def _default_sigint() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored. Python then installs no handler, and Ctrl-C does nothing."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests need not survive a power failure. Tests that files are flushed replace `os.fsync` themselves."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def unformatted_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not format configurations of models.

    transformers formats each configuration that it reads, for a message that it does not print. That is a fifth of the
    time in which a small model is loaded.
    """
    if configuration := sys.modules.get("transformers.configuration_utils"):
        monkeypatch.setattr(configuration.PreTrainedConfig, "__repr__", object.__repr__)


@pytest.fixture(autouse=True)
def nothing_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store no results that follow from configurations of models: a test may have replaced code that computes them."""
    from purerl.models import cache

    monkeypatch.setattr(cache, "user_folder", _no_folder)


def _no_folder() -> Path:
    raise OSError


@pytest.fixture(autouse=True)
def short_weight_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check updates of weights with few tokens, except in tests of the check. It was a seventh of the time of runs."""
    checks = sys.modules.get("purerl.opening.weight_check")
    if checks and request.path.name != "test_weight_check.py":
        monkeypatch.setattr(checks, "_NEW", 2)


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of rewards and environments, unless the test is marked: see `tests.forks`."""
    if not request.node.get_closest_marker("started_workers") and "purerl.system.workers.processes" in sys.modules:
        monkeypatch.setattr(sys.modules["purerl.system.workers.processes"], "subprocess", WORKERS.subprocess)


def pytest_unconfigure() -> None:
    """Let the interpreter free everything when it ends, or libraries complain about leaks."""
    _SESSION.close()
