"""``torchrun tests/placement/user_script.py DIRECTORY``: a script of a user with a reward function of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from attrs import evolve
from torch import distributed as dist

import purerl
from purerl.errors import ConfigError
from tests.loop.small import fake


def length(completion, example):
    return len(completion) / 4


def main(directory: Path) -> None:
    config = fake(max_steps=2, evaluate=None)
    try:
        purerl.train(evolve(config, rewards=()), settings={"placement.ranks": 3}, rewards=[length], directory=directory)
    except ConfigError as error:
        print(str(error).splitlines()[1])  # noqa: T201
    summary = purerl.train(evolve(config, rewards=()), rewards=[length], directory=directory)
    print(f"{summary.steps} steps, group initialized: {dist.is_initialized()}")  # noqa: T201
    dist.init_process_group("gloo")  # of the script: purerl uses it, and leaves it as it is
    own = directory.with_name("own-group")
    summary = purerl.train(evolve(config, rewards=()), rewards=[length], directory=own)
    print(f"{summary.steps} steps, group of the script: {dist.is_initialized()}")  # noqa: T201
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
