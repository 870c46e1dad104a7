"""Laws of execution: on any device, under `torch.func.vmap`, and compiled."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, State, bind
from purerl.testing.laws.law import assert_same, law
from purerl.testing.outcome import Outcome, functional_gradients, run

__all__ = ["compiled_equals_eager", "device_preserved", "vmap_equals_loop"]


@law
def device_preserved(algorithm: Algorithm, batch: TensorDict) -> None:
    """The algorithm runs on the meta device, and all its results are on the meta device.

    The meta device has no values, so an operation that needs a value on the CPU fails there. On a GPU such an operation
    waits for the device. Common violations: `.item()`, a branch on a tensor, a tensor that is created without `device`.
    """
    state = _to_meta(algorithm.advantage.init())
    meta_algorithm = algorithm._replace(advantage=algorithm.advantage._replace(init=lambda: state))
    for part in run(meta_algorithm, batch.to("meta")):
        for name, value in part.items():
            assert value.is_meta, f"{name}: got a tensor on {value.device}, expected one on the batch's device, meta"


def _to_meta(state: State) -> State:
    return tuple(map(_to_meta, state)) if isinstance(state, tuple) else torch.as_tensor(state, device="meta")


@law
def vmap_equals_loop(algorithm: Algorithm, batch: TensorDict) -> None:
    """`torch.func.vmap` over a stack of batches gives the results and gradients of a loop over the batches.

    With `vmap`, one call evaluates many batches. Common violations: a loop over groups, a branch on a value, an
    operation on axis 0 instead of the row axis.
    """
    batches = [batch, batch.flip(0)]
    stacked = torch.func.vmap(bind(_run_functional, algorithm=algorithm))(torch.stack(batches))
    orders = [torch.arange(len(batch)), torch.arange(len(batch)).flip(0)]
    for index, (single, order) in enumerate(zip(batches, orders, strict=True)):
        actual = Outcome(*({name: value[index] for name, value in part.items()} for part in stacked))
        assert_same(run(algorithm, single), actual, rows=order)


@law
def compiled_equals_eager(algorithm: Algorithm, batch: TensorDict) -> None:
    """`torch.compile(fullgraph=True)` accepts the algorithm and gives the results and gradients of eager mode.

    The backend is `eager`, so this tests tracing and not code generation. Common violations: a branch on a value,
    another graph break, a branch on `torch.compiler.is_compiling()`.
    """
    # torch.compile counts the recompilations of `_run_functional` over all algorithms and stops compiling at a limit.
    torch.compiler.reset()
    compiled = torch.compile(bind(_run_functional, algorithm=algorithm), fullgraph=True, backend="eager")
    assert_same(run(algorithm, batch), compiled(batch))


def _run_functional(batch: TensorDict, *, algorithm: Algorithm) -> Outcome:
    return run(algorithm, batch, functional_gradients)
