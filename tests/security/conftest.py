"""The intruders, for the tests of a file, and a folder for a run that they attack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.security.intruders import Intruders, in_network, other_user
from tests.security.network import UnavailableError, other_network
from tests.security.siege import public_folder


@pytest.fixture(scope="module")
def intruders() -> Iterator[Intruders]:
    """A process of another user, and one in another network if there can be one."""
    with ExitStack() as stack:
        here = stack.enter_context(other_user())
        try:
            network = stack.enter_context(other_network())
        except UnavailableError as error:
            yield Intruders([here], None, str(error))
            return
        yield Intruders([here, stack.enter_context(in_network(network))], network)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A `public_folder`."""
    with public_folder() as path:
        yield path
