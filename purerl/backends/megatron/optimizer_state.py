"""The state of Megatron's optimizers in a checkpoint: moments, and copies of weights in float32, by their parameter.

Every optimizer is described in the same way, whole or divided among data ranks, so a checkpoint can be resumed with
another mesh. Megatron's own description of divided ones is not used: megatron-core 0.16 warns that it "can lead to data
corruption", and does lose elements of parameters whose sizes are no multiple of 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from purerl.backends.megatron.offload import HostAdamW
from purerl.backends.megatron.optimizer import is_divided, parts_of

# pyright: reportMissingImports=false

__all__ = ["describe", "restore", "set_steps", "steps_of"]

_KEYS = ("exp_avg", "exp_avg_sq", "weight")


def describe(optimizer: Any, weights: Mapping[str, Any], *, is_loading: bool) -> dict[str, Any]:
    """Megatron's descriptions of the state of each parameter that `weights` describes. Collective.

    is_loading  whether the values are only the memory to read into
    """
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor

    described = {id(each.data): each for each in nested_values(weights) if isinstance(each.data, Tensor)}
    found = {}
    for number, (part, parameter) in enumerate(_parameters(optimizer)):
        for key in _keys(parameter):
            value = (
                torch.empty_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))
                if is_loading
                else _whole(part, parameter, key)
            )
            name = f"optimizer.{key}"
            found[f"{number}.{key}"] = make_sharded_optimizer_tensor(described[id(parameter)], value, prefix=name)
    return found


@torch.no_grad()
def restore(optimizer: Any, loaded: Mapping[str, Tensor]) -> None:
    """Copy what was read into the places that `describe` has described."""
    for number, (part, parameter) in enumerate(_parameters(optimizer)):
        own, start, stop = _own(part, parameter)
        for key in _keys(parameter) if stop > start else ():
            own[key].copy_(loaded[f"{number}.{key}"].flatten()[start:stop].view_as(own[key]))


def _parameters(optimizer: Any) -> Iterator[tuple[Any, Tensor]]:
    """Each parameter with its optimizer, in the same order on the ranks that divide it."""
    for part in parts_of(optimizer):
        if is_divided(part):
            yield from ((part, parameter) for buffer in part.buffers for parameter in buffer.params)
        elif hasattr(part, "float16_groups"):
            groups = (*part.float16_groups, *part.fp32_from_fp32_groups)
            yield from ((part, parameter) for group in groups for parameter in group)
        else:
            yield from ((part, parameter) for parameter in part.get_parameters())


def _keys(parameter: Tensor) -> tuple[str, ...]:
    """The tensors of a parameter. One in float32 or float64 is its own weight, which the model has saved."""
    return _KEYS if parameter.dtype == torch.bfloat16 else _KEYS[:2]


def _own(part: Any, parameter: Tensor) -> tuple[dict[str, Tensor], int, int]:
    """The tensors that this rank has, and the first and the last but one of the elements that they are for."""
    start, stop, main = 0, parameter.numel(), parameter
    if is_divided(part):
        if parameter not in part.model_param_group_index_map:
            return {}, 0, 0
        span = part._get_model_param_range_map(parameter)["param"]  # noqa: SLF001 - nothing public says it
        group, index = part.model_param_group_index_map[parameter]
        start, stop, main = span.start, span.end, part.optimizer.param_groups[group]["params"][index]
    elif parameter.dtype == torch.bfloat16 and not isinstance(part.optimizer, HostAdamW):
        main = parameter.main_param  # pyright: ignore[reportAttributeAccessIssue]
    return {"weight": main, **part.optimizer.state[main]}, start, stop


def _whole(part: Any, parameter: Tensor, key: str) -> Tensor:
    """The tensor `key`, as large as the parameter, from the data ranks that divide it."""
    own, start, stop = _own(part, parameter)
    if not is_divided(part):
        return own[key]
    whole = torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32)).flatten()
    if stop > start:
        whole[start:stop] = own[key].flatten()
    dist.all_reduce(whole, group=part.data_parallel_group)
    return whole.view(parameter.shape)


def steps_of(optimizer: Any) -> int:
    """The number of optimizer steps that were not skipped."""
    counts = [0]
    for part in parts_of(optimizer):
        groups = [] if part.optimizer is None else part.optimizer.param_groups
        states = [] if part.optimizer is None else part.optimizer.state.values()
        counts += [int(each["step"]) for each in (*groups, *states) if "step" in each]
    return max(counts)


def set_steps(optimizer: Any, steps: int) -> None:
    """Set that number: torch's AdamW has it beside each moment, others in each group."""
    for part in parts_of(optimizer):
        if isinstance(part.optimizer, (torch.optim.AdamW, HostAdamW)):
            for state in part.optimizer.state.values():
                state["step"] = torch.tensor(float(steps))
        elif part.optimizer is not None:
            for group in part.optimizer.param_groups:
                group["step"] = steps
