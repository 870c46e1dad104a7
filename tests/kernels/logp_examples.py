"""Arguments of `token_outputs` for tests, and what a path computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from purerl.kernels.logp import OUTPUTS

__all__ = [
    "FLOATS",
    "SELECTIONS",
    "SHAPES",
    "TILE",
    "LargestTensor",
    "choices_for",
    "example",
    "subsets",
    "value_and_gradient",
]

TILE = 5 * 6
"""Elements of a tile of the weight: in `example`, five of its 17 rows."""

SHAPES = [
    dict(scale=1.0, softcap=None),
    dict(scale=0.25, softcap=None),
    dict(scale=1.0, softcap=2.0),
    dict(scale=3.0, softcap=5.0),
]
FLOATS = OUTPUTS[:-1]


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """All subsets that are not empty."""
    return [subset for size in range(1, len(names) + 1) for subset in combinations(names, size)]


SELECTIONS = {
    **{f"{'+'.join(names)}-of-choices": (names, {"choices": 3}) for names in subsets(FLOATS)},
    **{f"{'+'.join(names)}-of-top-k": (names, {"k": 3}) for names in subsets(OUTPUTS)},
}


def example(
    dtype: torch.dtype = torch.float64, *, n: int = 11, d: int = 6, v: int = 17, bias: bool = True, seed: int = 0
) -> list:
    """hidden, weight, bias, tokens, temperature."""
    random = torch.Generator().manual_seed(seed)
    hidden, weight, offset = (
        torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in ((n, d), (v, d), (v,))
    )
    tokens = torch.randint(0, v, (n,), generator=random)
    temperature = 0.5 + torch.rand(n, generator=random, dtype=torch.float64).to(dtype)
    return [hidden, weight, offset if bias else None, tokens, temperature]


def choices_for(arguments: list, k: int = 3) -> Tensor:
    """[n, k] ids. Every second row holds its token, and every third row repeats an id."""
    tokens, v = arguments[3], len(arguments[1])
    choices = torch.randint(0, v, (len(tokens), k), generator=torch.Generator().manual_seed(1))
    choices[::2, 0] = tokens[::2]
    choices[::3, -1] = choices[::3, 0]
    return choices


def value_and_gradient(function, arguments: list, used: Sequence[str] | None = None, **keywords) -> dict[str, Tensor]:
    """All outputs, and the gradients of a weighted sum of the outputs `used`; by default, of all float outputs."""
    leaves = [t.clone().requires_grad_() if t is not None and i < 3 else t for i, t in enumerate(arguments)]
    results = function(*leaves, **keywords)
    used = [name for name in results if name in FLOATS] if used is None else used
    loss = sum(
        (
            (1 + FLOATS.index(name)) * torch.linspace(-1, 2, x.numel(), dtype=x.dtype, device=x.device).view_as(x) * x
        ).sum()
        for name, x in results.items()
        if name in used
    )
    named = {f"gradient {i}": leaf for i, leaf in enumerate(leaves[:3]) if leaf is not None}
    gradients = torch.autograd.grad(loss, list(named.values())) if used else ()
    return {name: x.detach() for name, x in results.items()} | dict(zip(named, gradients, strict=False))


class LargestTensor(TorchDispatchMode):
    """The largest number of elements of a tensor that an operation returns, by dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements[tensor.dtype] = max(self.elements.get(tensor.dtype, 0), tensor.numel())
        return result
