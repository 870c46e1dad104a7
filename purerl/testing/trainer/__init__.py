"""A conformance suite for `purerl.protocols.Trainer`: any engine, any optimizer, any number of ranks.

In one process, from a test:

    check_trainer(build, vocab_size=64, logits=logits, optimizer=partial(torch.optim.SGD, lr=0.1))

On several ranks, from the command line:

    torchrun --nproc-per-node 2 -m purerl.testing.trainer MODULE

where MODULE has a function ``conformance(directory)`` that returns the arguments of `check_trainer` as a dict, `build`
included. `directory` is empty and shared by all ranks, for example for a model that rank 0 writes. The command prints
"N checks passed" at the end, or exits with an error.

Trainers are compared with the reference in `purerl.testing.trainer.reference`. Micro-batches, padding, shared prefixes,
chunks and shards must not change a result. `CHECKS` has every check, a function of a `Case`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from purerl.protocols import Trainer
from purerl.testing.suite import run_check
from purerl.testing.trainer.checks import CHECKS
from purerl.testing.trainer.reference import Build, Case, Logits

__all__ = ["CHECKS", "check_trainer"]


def check_trainer(
    build: Build,
    *,
    vocab_size: int,
    logits: Logits,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
    variants: Sequence[Build] = (),
    tolerance: float = 1e-9,
    load: Callable[[Path], Trainer] | None = None,
) -> int:
    """Raise AssertionError unless `build` makes a conforming trainer; return the number of checks that passed.

    The message has the name of the check, the value and the expected value, and the rule, also if the trainer raises an
    exception. Each check has to detect its planted errors: docs/reference/planted_errors.md.

    build        makes a trainer of a policy that computes logp and entropy, the same one every time. It computes in
                 float64, so that `tolerance` is tight; its learning rate is constant, and it does not clip
    vocab_size   number of token ids, at least 9
    logits       (weights, tokens [rows, time]) -> [rows, time, vocab_size]: the model, written plainly and
                 differentiable in `weights`, which are those of `Trainer.weights` in the memory of the CPU
    optimizer    parameters -> a torch optimizer that does with a gradient what a step of the trainer does. It should
                 depend on the scale of the gradient (AdamW does if eps is not small), or a wrong scale is not detected
    variants     make the same trainer with other settings that must not change a result, such as the token budget of a
                 micro-batch
    tolerance    relative and absolute, of scores, metrics and weights
    load         makes a trainer of a model that a trainer has exported. By default, transformers loads it, as it can if
                 the export is in Hugging Face's format

    With an initialized process group it is collective: every rank calls it with the same arguments.
    """
    case = Case(build, vocab_size, logits, optimizer, variants, tolerance, load)
    for check in CHECKS:
        run_check(check, case)
    return len(CHECKS)
