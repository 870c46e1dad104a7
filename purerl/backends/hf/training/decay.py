"""Parameters that weight decay pulls toward 0: matrices of linear maps, and no others.

Weights of norms, biases, scales and parameters of a state may be far from 0, and have no reason to be near it. A row of
an embedding has a gradient only if its token occurs, but would decay in every step, so the embeddings of rare tokens
would shrink. A tied output head is the embedding, and does not decay either.

The number of dimensions does not tell them apart: the biases of experts [experts, n], the decay rates of Mamba
[channels, states] and the weights of norms of heads [heads, n] have two. So a parameter is known by the class of its
module and by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

__all__ = ["matrices"]

# Words in the name that a module gives its parameter: biases; scales; learned inputs, which are embeddings; sinks of
# attention; and of states: decay rates (A_log, time_decay) and skip connections (D).
_WORDS = "a_log|alpha|ape|beta|bias|decay|embed|embeddings?|first|gamma|lambda|latents?|norm|pos|query|scale|scaling"
_WORDS += "|sinks?|tokens?"
_OTHER_NAME = re.compile(rf"^d$|(?:^|_)(?:{_WORDS})\d*(?:_|$)")
# Names of modules that are norms, or make a bias, whatever their class is.
_OTHER_OWNER = re.compile(r"norm|bias|(?:^|[_ ])ln(?:_|\d|$)")
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def matrices(model: nn.Module) -> set[int]:
    """The ids of the parameters of `model` that are weight matrices, and no embeddings.

    >>> layer = nn.ModuleDict({"linear": nn.Linear(2, 3), "norm": nn.LayerNorm(3), "tokens": nn.Embedding(5, 2)})
    >>> layer["linear"].experts_bias = nn.Parameter(layer["linear"].weight.clone())
    >>> [name for name, p in layer.named_parameters() if id(p) in matrices(layer)]
    ['linear.weight']
    """
    return set(_named(model, is_matrix=True)) - set(_named(model, is_matrix=False))


def _named(model: nn.Module, *, is_matrix: bool) -> Iterator[int]:
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if _is_matrix(path.rpartition(".")[2], module, name, parameter) is is_matrix:
                yield id(parameter)


def _is_matrix(owner: str, module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Whether `parameter`, which `module` has by this `name`, is a matrix. `owner` is the name of the module."""
    if parameter.ndim < 2 or _OTHER_NAME.search(name.lower()):
        return False
    if isinstance(module, _LINEAR):
        return True
    names = f"{type(module).__name__} {owner}".lower()
    if isinstance(module, nn.Embedding) or _OTHER_OWNER.search(names):
        return False
    return sum(size > 1 for size in parameter.shape) > 1  # [1, 1, n] is a vector
