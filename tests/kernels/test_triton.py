"""Triton kernels equal the reference, in value and gradient.

On a GPU they are compiled. Without one they run in Triton's interpreter, in a process with TRITON_INTERPRET=1:
`test_triton_interpreter.py` runs this file in such a process.
"""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from torch import Tensor

from purerl.kernels import accelerators, recurrence
from purerl.kernels import logp as kernel
from purerl.kernels.logp import chunked, fused, token_outputs
from purerl.kernels.logp import reference as logp_reference
from purerl.kernels.recurrence import fused as fused_recurrence
from purerl.kernels.recurrence import reference
from tests.kernels.logp_examples import FLOATS, SHAPES, choices_for, example, subsets, value_and_gradient

pytest.importorskip("triton")

IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
INTERPRETER = pytest.param(
    "cpu",
    id="interpreter",
    marks=pytest.mark.skipif(not IN_INTERPRETER, reason="needs TRITON_INTERPRET=1; see test_triton_interpreter.py"),
)
CUDA = pytest.param(
    "cuda",
    id="cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(IN_INTERPRETER or not torch.cuda.is_available(), reason="needs a GPU"),
    ],
)
DEVICES = pytest.mark.parametrize("device", [INTERPRETER, CUDA])
ON_CUDA = pytest.mark.parametrize("device", [CUDA])

SMALL = fused.Blocks(16, 16, 16, 4, 2)
PATH = partial(fused.token_outputs, blocks=SMALL, chunk=16)
DTYPES = {torch.float64: dict(rtol=1e-12, atol=1e-12), torch.float32: dict(rtol=1e-5, atol=1e-4)}


def moved(arguments: list, device: str, dtype: torch.dtype | None = None) -> list:
    return [
        x if x is None else x.to(device, dtype if dtype is not None and x.is_floating_point() else x.dtype)
        for x in arguments
    ]


def assert_equal_to_reference(arguments: list, device: str, path=PATH, *, names=FLOATS, used=None, **options) -> None:
    """Compare with the reference in float64; `options` are tolerances and arguments of both paths."""
    dtype = arguments[0].dtype
    tolerance = {name: options.pop(name) for name in ("rtol", "atol") if name in options} or DTYPES[dtype]
    expected = value_and_gradient(
        logp_reference.token_outputs, moved(arguments, "cpu", torch.float64), used, outputs=names, **options
    )
    on_device = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    actual = value_and_gradient(path, moved(arguments, device), used, outputs=names, **on_device)
    assert all(actual[name].dtype == dtype for name in actual if name.startswith("gradient"))
    actual = {name: x.double().cpu() for name, x in actual.items()}
    torch.testing.assert_close(actual, expected, **tolerance)


# --- token outputs -----------------------------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_token_outputs_equal_the_reference(device, shape, bias):
    """Sizes that are no multiples of the blocks; several splits of the vocabulary, and several chunks."""
    for dtype in DTYPES if device == "cpu" else (torch.float32,):
        arguments = example(dtype, n=17, d=18, v=35, bias=bias)
        assert_equal_to_reference(arguments, device, choices=choices_for(arguments), **shape)


@DEVICES
@pytest.mark.parametrize("names", subsets(FLOATS[:3]), ids="+".join)
def test_every_set_of_outputs(device, names):
    assert_equal_to_reference(example(torch.float32, n=5, v=20), device, names=names, **SHAPES[3])


@DEVICES
@pytest.mark.parametrize("used", subsets(FLOATS), ids="+".join)
def test_outputs_without_an_incoming_gradient_have_no_effect(device, used):
    arguments = example(torch.float32, n=5, v=20)
    assert_equal_to_reference(arguments, device, choices=choices_for(arguments), used=used, **SHAPES[2])


@DEVICES
def test_bfloat16_is_accumulated_in_float32(device):
    arguments = example(torch.bfloat16, n=17, d=18, v=35)
    options = dict(choices=choices_for(arguments), **SHAPES[1])
    assert_equal_to_reference(arguments, device, rtol=2e-2, atol=2e-2, **options)
    results = PATH(*moved(arguments, device), outputs=("logp",), **SHAPES[1])
    expected = logp_reference.token_outputs(*moved(arguments, "cpu", torch.float64), outputs=("logp",), **SHAPES[1])
    torch.testing.assert_close(results["logp"].double().cpu(), expected["logp"], rtol=1e-5, atol=1e-5)


@DEVICES
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
def test_hidden_states_and_weight_of_different_dtypes(device, dtypes):
    arguments = moved(example(torch.float32, n=5, v=20), device)
    arguments[:2] = [x.to(dtype) for x, dtype in zip(arguments[:2], dtypes, strict=True)]
    actual = PATH(*arguments, outputs=("logp", "entropy"), **SHAPES[0])
    expected = chunked.token_outputs(*arguments, outputs=("logp", "entropy"), **SHAPES[0], chunk=4)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@DEVICES
def test_several_blocks_of_the_vocabulary_in_one_program(device, monkeypatch):
    """The maximum and the sums of a block are updated by the next: logits grow from block to block, or get smaller."""
    monkeypatch.setattr(fused, "_PROGRAMS", 1)
    arguments = example(torch.float32, n=5, d=4, v=50)
    for slope in (1.0, -1.0):
        arguments[2] = slope * torch.arange(50.0)
        assert_equal_to_reference(arguments, device, names=FLOATS[:3], **SHAPES[0])


@DEVICES
def test_no_tokens(device):
    arguments = moved(example(torch.float32, n=0), device)
    results = value_and_gradient(PATH, arguments, outputs=FLOATS, choices=arguments[3][:, None], **SHAPES[3])
    assert [results[name].shape for name in FLOATS] == [(0,), (0,), (0,), (0, 1)]
    assert all(results[f"gradient {i}"].count_nonzero() == 0 for i in range(3))


@DEVICES
def test_frozen_inputs_get_no_gradient(device):
    for trained in range(3):
        arguments = moved(example(torch.float32, n=5), device)
        arguments[trained].requires_grad_()
        PATH(*arguments, outputs=("logp",), **SHAPES[0])["logp"].sum().backward()
        assert [x.grad is not None for x in arguments[:3]] == [i == trained for i in range(3)]


@DEVICES
def test_no_tensor_has_all_logits(device):
    arguments = moved(example(torch.float32, n=64, d=4, v=50), device)
    results = PATH(arguments[0].requires_grad_(), *arguments[1:], outputs=FLOATS[:3], **SHAPES[0])
    saved = [tensor for tensor in results["logp"].grad_fn.saved_tensors if tensor is not None]
    assert max(tensor.numel() for tensor in saved) == 64 * 4


@DEVICES
def test_public_function_selects_the_kernels(device, monkeypatch):
    """Not for the k most likely tokens, and not in float64. Here a CPU tensor counts as one on a GPU."""
    monkeypatch.setattr(kernel, "KEPT", 0)
    monkeypatch.setattr(kernel, "uses_triton", lambda tensor: accelerators._has_triton())
    calls = []
    for module in (fused, chunked):
        function = module.token_outputs
        monkeypatch.setattr(
            module, "token_outputs", lambda *a, m=module.__name__, f=function, **k: calls.append(m[-5:]) or f(*a, **k)
        )
    arguments = example(torch.float32, n=5)
    for dtype, keywords in (
        (torch.float32, dict(outputs=FLOATS, choices=choices_for(arguments))),
        (torch.float32, dict(outputs=("logp",), k=3)),
        (torch.float32, dict(outputs=("topk_logp",), k=3)),
        (torch.float64, dict(outputs=("logp",))),
    ):
        keywords = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in keywords.items()}
        token_outputs(*moved(arguments, device, dtype), **keywords, **SHAPES[0])
    assert calls == ["fused", "fused", "unked", "unked"]


@ON_CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_default_blocks_on_a_large_vocabulary(device, dtype):
    arguments = example(dtype, n=300, d=200, v=20_000, bias=False)
    arguments[0] /= 10
    tolerance = dict(rtol=1e-4, atol=1e-4) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-2)
    assert_equal_to_reference(
        arguments, device, token_outputs, choices=choices_for(arguments), **tolerance, **SHAPES[0]
    )


# --- recurrence --------------------------------------------------------------------------------------------------

REVERSE = partial(fused_recurrence.reverse_recurrence, block=16)


def row(time: int, seed: int) -> Tensor:
    return torch.rand(3, time, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(function, *leaves) -> list[Tensor]:
    leaves = [leaf.clone().requires_grad_() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    y = function(*leaves)
    slopes = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return [y.detach(), *torch.autograd.grad((slopes * y).sum(), tensors, allow_unused=True, materialize_grads=True)]


@DEVICES
@pytest.mark.parametrize("time", [0, 1, 16, 37])
@pytest.mark.parametrize("decay", [0.0, 0.97, "per row", "per step"])
def test_recurrence_equals_the_reference(device, time, decay):
    decay = {"per row": row(1, 1), "per step": torch.cat([row(time, 2)[:1].round(), row(time, 2)[1:]])}.get(
        decay, decay
    )
    x = row(time, 3) - 0.5
    expected = gradients(reference.reverse_recurrence, x, decay)
    actual = gradients(REVERSE, *(leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in (x, decay)))
    torch.testing.assert_close([result.cpu() for result in actual], expected)


@DEVICES
def test_recurrence_has_second_derivatives(device):
    x, decay = (row(5, seed)[:1].to(device).requires_grad_() for seed in (1, 2))
    assert torch.autograd.gradgradcheck(partial(REVERSE, block=4), (x, decay))


@DEVICES
def test_recurrence_under_vmap(device):
    x, decay = torch.stack([row(7, 1), row(7, 2)]).to(device), row(1, 3).to(device)
    loop = torch.stack([REVERSE(batch, decay) for batch in x])
    torch.testing.assert_close(torch.func.vmap(REVERSE, in_dims=(0, None))(x, decay), loop)


@DEVICES
def test_recurrence_in_float32(device):
    x = row(300, 1).float().to(device)
    exact = reference.reverse_recurrence(x.double().cpu(), torch.tensor(0.99).double())
    result = REVERSE(x, 0.99)
    assert result.dtype == torch.float32
    assert (result.cpu() - exact).abs().max() <= 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert torch.equal(REVERSE(x, 0.0), x)


@ON_CUDA
def test_public_recurrence_on_a_gpu(device):
    x, decay = row(5000, 1).to(device), row(5000, 2).to(device)
    torch.testing.assert_close(recurrence.reverse_recurrence(x, decay), reference.reverse_recurrence(x, decay))
