"""``torchrun --nproc-per-node 2 -m purerl.testing.trainer MODULE``: the conformance suite, on several ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module

import torch
from torch import distributed as dist

from purerl.errors import ConfigError
from purerl.placement.world import find_world
from purerl.ranks import current_ranks
from purerl.system.loopback import loopback_variables, with_variables
from purerl.testing.trainer import check_trainer
from purerl.testing.trainer.resources import shared_directory

__all__ = ["main"]

_TIMEOUT = timedelta(seconds=120)


def main(modules: Sequence[str]) -> None:
    """Run the suite for the module in `modules`, on the ranks that torchrun has started."""
    if len(modules) != 1:
        usage = "torchrun --nproc-per-node N -m purerl.testing.trainer MODULE"
        raise ConfigError("one module is needed", got=" ".join(modules) or "nothing", do=usage)
    module = import_module(modules[0])
    if not hasattr(module, "conformance"):
        need = "a function conformance(directory) that returns the arguments of check_trainer"
        raise ConfigError(f"module {modules[0]!r}", got="no function called conformance", need=need)
    torch.set_num_threads(1)
    if (world := find_world(os.environ)) is not None:
        with with_variables(loopback_variables() if world.is_on_one_host else {}):
            dist.init_process_group(timeout=_TIMEOUT)
    with shared_directory() as directory:
        arguments = dict(module.conformance(directory))
        passed = check_trainer(arguments.pop("build"), **arguments)
    if current_ranks().is_first:
        sys.stdout.write(f"{passed} checks passed\n")
    if dist.is_initialized():
        dist.destroy_process_group()
        # A thread of gloo may still release a tensor of a sharded module. During the finalization of the interpreter
        # this has aborted a rank once, after all checks had passed. So there is none.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
