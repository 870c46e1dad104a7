"""The devices of the tensors of `HostAdamW`, without a GPU and without megatron-core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from purerl.backends.megatron.offload import HostAdamW

OPTIONS = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-3}


class OnGPU(Tensor):
    """A tensor that may be read and copied, and cannot be computed with: as one of another device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and args[1] == torch.device("cpu"):
            return args[0].as_subclass(Tensor).clone().to(*args[1:])
        read = (Tensor.detach, Tensor.as_subclass, Tensor.clone, Tensor.copy_, Tensor.__repr__)
        if func in read or func.__name__ == "__get__":
            return super().__torch_function__(func, types, args, kwargs or {})
        raise AssertionError(f"{func} of a tensor on a GPU")


def _on_gpu(weight: Tensor, gradient: Tensor) -> OnGPU:
    found: Any = weight.clone().as_subclass(OnGPU)
    found.decoupled_grad = gradient.as_subclass(OnGPU)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_state_and_the_step_are_on_the_cpu(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    starts = [torch.randn(shape).to(dtype) for shape in ((5, 3), (4,))]
    gradients = [torch.randn(start.shape, dtype=wide) for start in starts]
    weights = [_on_gpu(*each) for each in zip(starts, gradients, strict=True)]
    groups = [
        {"params": [weight], "weight_decay": decay, **OPTIONS}
        for weight, decay in zip(weights, (0.1, 0.0), strict=True)
    ]
    offloaded = HostAdamW(groups)
    true = [torch.nn.Parameter(start.to(wide)) for start in starts]
    expected = torch.optim.AdamW(
        [{"params": [weight], "weight_decay": decay} for weight, decay in zip(true, (0.1, 0.0), strict=True)],
        fused=True,
        **OPTIONS,
    )
    for _ in range(3):
        offloaded.step()
        for weight, gradient in zip(true, gradients, strict=True):
            weight.grad = gradient.as_subclass(Tensor)
        expected.step()
    for weight, need in zip(weights, true, strict=True):
        state = offloaded.state[weight]
        assert type(weight) is OnGPU
        assert {type(tensor) for tensor in state.values()} == {Tensor}
        assert ("weight" in state) == (dtype == torch.bfloat16)
        assert torch.equal(weight.as_subclass(Tensor), need.to(dtype))
        for key, value in expected.state[need].items():
            assert torch.equal(state[key], value), key
        assert torch.equal(state.get("weight", weight.as_subclass(Tensor)), need)


def test_a_computation_with_a_tensor_on_a_gpu_is_found() -> None:
    with pytest.raises(AssertionError, match="of a tensor on a GPU"):
        torch.ones(2).add_(_on_gpu(torch.ones(2), torch.ones(2)))
