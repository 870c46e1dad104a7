"""Two ranks that meet at an address of this host: python -m tests.placement.meeting DIRECTORY ADDRESS PORT HOSTS RANK.

With 2 as HOSTS they take each other for ranks on other hosts.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed as dist

from purerl.placement import meeting
from purerl.placement.process_group import process_group
from purerl.placement.world import World
from purerl.ranks import current_ranks
from purerl.system.run_secret import SIZE
from tests.ranks import TIMEOUT


def main(directory: str, address: str, port: str, hosts: str, rank: str) -> None:
    total = torch.ones(())
    meeting.this_host = lambda: f"host {int(rank) % int(hosts)}"
    world = World(int(rank), 2, int(rank), address, int(port), "a test")
    with process_group(world, lambda: bytes(SIZE), TIMEOUT.total_seconds()):
        dist.all_reduce(total)
        gathered = current_ranks().gather(rank * 2**15, "long values")
        during = os.environ.get("GLOO_SOCKET_IFNAME")
    after = os.environ.get("GLOO_SOCKET_IFNAME")
    torch.save(
        {"total": total, "gathered": "".join(gathered)[:: 2**15], "during": during, "after": after},
        f"{directory}/{rank}.pt",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
