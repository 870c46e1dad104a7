"""The ways in which an algorithm may be run: on any device, mapped over further axes, compiled."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, State, bind
from purerl.testing.laws.law import law, same
from purerl.testing.outcome import Outcome, functional, run

__all__ = ["compiled_equals_eager", "device_preserved", "vmap_equals_loop"]


@law
def device_preserved(algorithm: Algorithm, batch: TensorDict) -> None:
    """It asks its device for no value, and what comes out lies there: tried on one that holds no values."""
    state = _on_meta(algorithm.advantage.init())
    moved = algorithm._replace(advantage=algorithm.advantage._replace(init=lambda: state))
    for kind in run(moved, batch.to("meta")):
        for name, value in kind.items():
            assert value.is_meta, f"{name} lies on {value.device}, and what it is made of does not"


def _on_meta(state: State) -> State:
    return tuple(map(_on_meta, state)) if isinstance(state, tuple) else torch.as_tensor(state, device="meta")


@law
def vmap_equals_loop(algorithm: Algorithm, batch: TensorDict) -> None:
    """Batches along a further axis get what they get one after the other, gradients included."""
    batches = [batch, batch.flip(0)]
    mapped = torch.func.vmap(bind(_functional, algorithm=algorithm))(torch.stack(batches))
    for place, one in enumerate(batches):
        found = Outcome(*({name: value[place] for name, value in kind.items()} for kind in mapped))
        same(run(algorithm, one), found)


@law
def compiled_equals_eager(algorithm: Algorithm, batch: TensorDict) -> None:
    """`torch.compile` makes one graph of it all, gradients included, and that gives the same."""
    # All algorithms are the same code to it, and code that is compiled too often it gives up on.
    torch.compiler.reset()
    compiled = torch.compile(bind(_functional, algorithm=algorithm), fullgraph=True, backend="eager")
    same(run(algorithm, batch), compiled(batch))


def _functional(batch: TensorDict, *, algorithm: Algorithm) -> Outcome:
    return run(algorithm, batch, functional)
