"""Two ranks that meet at an address of this host: python -m tests.placement.meeting DIRECTORY ADDRESS PORT RANK."""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed as dist

from purerl.placement.join import process_group
from purerl.placement.world import World
from tests.ranks import TIMEOUT


def main(directory: str, address: str, port: str, rank: str) -> None:
    total = torch.ones(())
    with process_group(World(int(rank), 2, int(rank), address, int(port), "a test"), TIMEOUT.total_seconds()):
        dist.all_reduce(total)
        during = os.environ.get("GLOO_SOCKET_IFNAME")
    torch.save(
        {"total": total, "during": during, "after": os.environ.get("GLOO_SOCKET_IFNAME")}, f"{directory}/{rank}.pt"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
