"""The state of an optimizer as tensors with names, for a checkpoint.

    optimizer.KEY.PARAMETER     a tensor that belongs to a parameter
    optimizer.KEY               a value of one element that is the same for all parameters, such as `step`
    optimizer.group:N:KEY       a value of group N that differs from its default, such as an estimated step size
    optimizer.class:ADDRESS     says that the optimizer is not AdamW

KEY may begin with ``number:``, a number of Python, or ``host:``, a tensor in the memory of the host although the
parameter is on another device. What is None is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from purerl.backends.hf.training.rounding import REMAINDER
from purerl.backends.hf.weights.checkpoint import Kind
from purerl.errors import CheckpointError, InputError

__all__ = ["OPTIMIZER", "load_state", "state_like", "state_of"]

OPTIMIZER = "optimizer."
"""Prefix of the names of the state of an optimizer in a checkpoint."""

_GROUP, _CLASS, _NUMBER, _HOST = "group:", "class:", "number:", "host:"
_OF_ADAMW = ("exp_avg", "exp_avg_sq")
_CONSTANT = ("params", "lr", "initial_lr", "weight_decay")


# --- writing -------------------------------------------------------------------------------------------------------


def state_of(optimizer: Any, trained: Mapping[str, Tensor], address: str | None = None) -> dict[str, Tensor]:
    """The state of `optimizer` by the names of the parameters `trained`; empty if it has none yet.

    `address` is that of its class, None for AdamW.

    Raises: InputError for state that is neither a tensor nor a number, or that belongs to no parameter.
    """
    if not optimizer.state:
        return {}
    named = {parameter: name for name, parameter in trained.items()}
    values: dict[str, dict[str, Tensor]] = {}
    for parameter, state in optimizer.state.items():
        if parameter not in named:
            raise _not_stored("state", "a value that belongs to no parameter")
        for key, value in state.items():
            if value is not None:
                mark, tensor = _tensor(key, value, parameter.device)
                values.setdefault(mark + key, {})[named[parameter]] = tensor
    parts = [_shared(key, own, len(named)) for key, own in values.items()]
    marker = {f"{OPTIMIZER}{_CLASS}{address}": torch.zeros(())} if address else {}
    return {**marker, **{name: tensor for part in parts for name, tensor in part.items()}, **_of_groups(optimizer)}


def _tensor(key: str, value: Any, device: torch.device | None) -> tuple[str, Tensor]:
    """The mark of `value`, and a tensor that holds it."""
    if isinstance(value, Tensor):
        return (_HOST if device is not None and value.device != device else ""), value.detach()
    for kind, dtype in ((bool, torch.bool), (int, torch.int64), (float, torch.float64)):
        if isinstance(value, kind):
            return _NUMBER, torch.tensor(value, dtype=dtype)
    raise _not_stored(key, type(value).__name__)


def _not_stored(key: str, got: str) -> InputError:
    need, do = "tensors and numbers of each parameter", "use another optimizer: this one cannot be resumed"
    return InputError(f"the optimizer's {key!r} cannot be stored in a checkpoint", got=got, need=need, do=do)


def _shared(key: str, values: Mapping[str, Tensor], parameters: int) -> dict[str, Tensor]:
    """`values` by their names in a checkpoint: one tensor if it is a single element and the same for all parameters."""
    first = next(iter(values.values()))
    is_single = len(values) == parameters and all(x.ndim == 0 and x.dtype == first.dtype for x in values.values())
    if is_single and bool((torch.stack([*values.values()]) == first).all()):
        return {f"{OPTIMIZER}{key}": first.cpu()}
    return {f"{OPTIMIZER}{key}.{name}": value for name, value in values.items()}


def _of_groups(optimizer: Any) -> dict[str, Tensor]:
    """The values of groups that have changed."""
    tensors = {}
    for index, (group, defaults) in enumerate(_groups(optimizer)):
        for key, value in group.items():
            if isinstance(value, Tensor | int | float) and _has_changed(key, value, defaults):
                mark, tensor = _tensor(key, value, None)
                tensors[f"{OPTIMIZER}{_GROUP}{index}:{mark}{key}"] = tensor
    return tensors


def _has_changed(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    return key not in _CONSTANT and (isinstance(value, Tensor) or key not in defaults or value != defaults[key])


def _groups(optimizer: Any) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """The groups of `optimizer`, or of its parts, each with its defaults."""
    for part in getattr(optimizer, "parts", (optimizer,)):
        for group in part.param_groups:
            yield group, part.defaults


# --- reading -------------------------------------------------------------------------------------------------------


def state_like(
    trained: Mapping[str, Tensor], kinds: Mapping[str, Kind], address: str | None = None
) -> dict[str, Tensor]:
    """Tensors with the names, shapes and dtypes of the state in a checkpoint with tensors of these `kinds`.

    What a checkpoint of AdamW must have is known; of another optimizer it is what the checkpoint has.

    Raises: CheckpointError if it has the state of an optimizer of another class, or of other parameters.
    """
    stored = {name: kind for name, kind in kinds.items() if name.startswith(OPTIMIZER)}
    saved = [name.removeprefix(OPTIMIZER + _CLASS) for name in stored if name.startswith(OPTIMIZER + _CLASS)]
    if stored and saved != ([address] if address else []):
        do = "set the optimizer of the checkpoint, or start from the exported model of its run"
        got, need = f"the state of {saved[0] if saved else 'AdamW'}", address or "AdamW"
        raise CheckpointError("the checkpoint has another optimizer", got=got, need=need, do=do)
    if not stored:
        return {}
    if address is None:
        moments = {f"{OPTIMIZER}{key}.{name}": p.detach() for name, p in trained.items() for key in _OF_ADAMW}
        remainders = {name: kind for name, kind in stored.items() if name.startswith(f"{OPTIMIZER}{REMAINDER}.")}
        return {
            f"{OPTIMIZER}step": torch.zeros(()),
            **moments,
            **{name: _target(name, kind, trained) for name, kind in remainders.items()},
        }
    return {name: _target(name, kind, trained) for name, kind in stored.items()}


def _target(name: str, kind: Kind, trained: Mapping[str, Tensor]) -> Tensor:
    """A tensor for the values of `name`. It is divided among ranks as the parameter, if it has the same shape."""
    dtype, shape = kind
    owner = _owner(name)
    if owner and owner not in trained:
        got = "no such parameter in the model"
        raise CheckpointError(f"the checkpoint has {name!r}", got=got, need="the same model")
    if owner and trained[owner].shape == shape and _HOST not in name:
        return torch.empty_like(trained[owner].detach(), dtype=dtype)
    return torch.empty(shape, dtype=dtype)


def _owner(name: str) -> str:
    """The parameter that the state `name` belongs to; empty if it belongs to all, or to a group."""
    rest = name.removeprefix(OPTIMIZER)
    return "" if rest.startswith((_GROUP, _CLASS)) else rest.partition(".")[2]


def load_state(optimizer: Any, trained: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Let `optimizer` continue from what `state_of` returned, which is in `loaded` beside other tensors."""
    optimizer.state.clear()
    for group, defaults in _groups(optimizer):
        group.update({key: value for key, value in defaults.items() if key not in _CONSTANT})
    stored = {name.removeprefix(OPTIMIZER): tensor for name, tensor in loaded.items() if name.startswith(OPTIMIZER)}
    if not stored:
        return
    groups = [group for group, _ in _groups(optimizer)]
    states: dict[str, dict[str, Any]] = {name: {} for name in trained}
    for name, tensor in stored.items():
        if name.startswith(_GROUP):
            _, index, key = name.split(":", 2)
            groups[int(index)][key.removeprefix(_NUMBER)] = _value(key, tensor, tensor.device)
        elif not name.startswith(_CLASS):
            key, _, owner = name.partition(".")
            for parameter in (owner,) if owner else trained:
                plain = key.removeprefix(_NUMBER).removeprefix(_HOST)
                states[parameter][plain] = _value(key, tensor, trained[parameter].device)
    optimizer.state.update({trained[name]: state for name, state in states.items()})


def _value(key: str, tensor: Tensor, device: torch.device) -> Any:
    """The value of `tensor`, on the device where it was. One for all parameters is copied for each of them."""
    if key.startswith(_NUMBER):
        return tensor.item()
    if key.startswith(_HOST):
        return tensor.to("cpu", copy=True)
    return tensor.to(device, copy=tensor.ndim == 0)
