"""Pages of files: what is released is read again, and what was written stays."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from purerl.system.mapped_memory import release_mapped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages were written")

PAGES = 64
CONTENT = bytes(range(256)) * (PAGES * mmap.PAGESIZE // 256)


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[mmap.mmap]:
    """A file, mapped as safetensors maps it: what is written changes the memory and not the file."""
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        assert memory[:] == CONTENT
        yield memory


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def resident(address: int) -> int:
    """Resident KiB of the mapping that starts at `address`."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1])


def test_pages_are_released_and_read_again(mapped: mmap.mmap) -> None:
    address = address_of(mapped)
    assert resident(address) * 1024 == len(CONTENT)
    assert release_mapped([address + 5000]) == len(CONTENT)
    assert resident(address) == 0
    assert mapped[:] == CONTENT


def test_memory_that_was_written_stays(mapped: mmap.mmap) -> None:
    mapped[7] = 1
    assert release_mapped([address_of(mapped)]) == 0
    assert resident(address_of(mapped)) * 1024 == len(CONTENT)
    assert mapped[7] == 1


def test_memory_without_a_file_stays() -> None:
    with mmap.mmap(-1, len(CONTENT), flags=mmap.MAP_PRIVATE) as memory:
        assert not any(memory[:: mmap.PAGESIZE])  # read, not written
        assert release_mapped([address_of(memory)]) == 0


def test_only_the_files_of_the_addresses_are_released(mapped: mmap.mmap) -> None:
    assert release_mapped([]) == 0
    assert release_mapped([1]) == 0
    assert resident(address_of(mapped)) * 1024 == len(CONTENT)
