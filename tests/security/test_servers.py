"""A run with a server that it has started, attacked from its start to its end: no request of a stranger is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.security.intruders import Intruders
from tests.security.runs import STEPS, release, started
from tests.security.served_run import NUM_REQUESTS
from tests.security.siege import Siege, wait_until

_TOKENS = 4  # of a completion, see tests/serving/toy_engine.py


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["shared_memory", "gloo"])
def test_a_server(transfer: str, intruders: Intruders, folder: Path) -> None:
    (folder / "gate").mkdir()
    with started(folder, ["-m", "tests.security.served_run", str(folder), transfer]) as process:
        siege = Siege(process.pid, folder, intruders)
        for step in (1, 2):  # before the first weights, and after them
            wait_until(lambda step=step: (folder / f"gate/waiting-{step}").exists() or process.poll() is not None)
            siege.attack(as_rank=step > 1)
            release(folder, range(1, step + 1))
        release(folder, range(1, STEPS + 1))
        siege.attack_until_end(process)
    siege.check(process)
    assert {item for item in siege.listeners if not item.is_local} == set(), siege.describe()
    assert siege.reached("another network") == set()
    assert any(item.kind == "tcp" for item in siege.reached("another user")), siege.describe()
    results = json.loads((folder / "run/results.json").read_text())
    assert results == [[[*range(1, _TOKENS + 1), *[step] * _TOKENS]] * NUM_REQUESTS for step in range(1, STEPS + 1)]
