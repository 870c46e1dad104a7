"""What all tests need: one torch thread, the default SIGINT handler, and a good order when they run in parallel."""

import signal
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # two, beside other work, take up to eight times as long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that no core waits for one at the end; and tests that share a fixture in one process."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        shared = sorted(f"{one.baseid}::{one.argname}" for *_, one in fixtures if one.scope in ("module", "package"))
        if shared:
            item.add_marker(pytest.mark.xdist_group(shared[0]))


@pytest.fixture(autouse=True)
def _default_sigint() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored. Python then installs no handler, and Ctrl-C does nothing."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
