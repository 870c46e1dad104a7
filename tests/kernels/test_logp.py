"""Parity: the chunked path is the reference, in value and gradient; the reference is the definition."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from purerl.kernels import logp as kernel
from purerl.kernels.logp import chunked, logp_entropy, reference

SHAPES = [
    dict(scale=1.0, softcap=None),
    dict(scale=0.25, softcap=None),
    dict(scale=1.0, softcap=2.0),
    dict(scale=3.0, softcap=5.0),
]


def example(dtype: torch.dtype = torch.float64, *, n: int = 11, d: int = 6, v: int = 17, bias: bool = True) -> list:
    """hidden, weight, bias, tokens, temperature."""
    draw = torch.Generator().manual_seed(0)
    hidden, weight, offset = (
        torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in ((n, d), (v, d), (v,))
    )
    tokens = torch.randint(0, v, (n,), generator=draw)
    temperature = 0.5 + torch.rand(n, generator=draw, dtype=torch.float64).to(dtype)
    return [hidden, weight, offset if bias else None, tokens, temperature]


def value_and_gradient(function, arguments: list, weights: tuple[float, float], **keywords) -> list[torch.Tensor]:
    """Both outputs, and the gradients of a weighted sum of them; an output of weight 0 takes no part."""
    leaves = [t.clone().requires_grad_() if t is not None and i < 3 else t for i, t in enumerate(arguments)]
    outputs = function(*leaves, **keywords)
    slopes = torch.linspace(-1, 2, len(arguments[3]), dtype=outputs[0].dtype)
    loss = sum((w * slopes * output).sum() for w, output in zip(weights, outputs, strict=True) if w)
    gradients = torch.autograd.grad(loss, [leaf for leaf in leaves[:3] if leaf is not None])
    return [output.detach() for output in outputs] + list(gradients)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_the_definition(shape):
    hidden, weight, bias, tokens, temperature = example()
    logp, entropy = reference.logp_entropy(hidden, weight, bias, tokens, temperature, **shape)
    for row in range(len(tokens)):
        z = [shape["scale"] * float(hidden[row] @ weight[k] + bias[k]) for k in range(len(weight))]
        z = [shape["softcap"] * math.tanh(x / shape["softcap"]) for x in z] if shape["softcap"] else z
        powers = [math.exp(x / float(temperature[row])) for x in z]
        p = [power / sum(powers) for power in powers]
        assert math.isclose(float(logp[row]), math.log(p[int(tokens[row])]), rel_tol=1e-12)
        assert math.isclose(float(entropy[row]), -sum(q * math.log(q) for q in p), rel_tol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.3)], ids=["logp", "entropy", "both"])
@pytest.mark.parametrize("chunk", [1, 4, 11, 64])
def test_chunked_equals_reference_in_value_and_gradient(shape, bias, weights, chunk):
    arguments = example(bias=bias)
    wanted = value_and_gradient(reference.logp_entropy, arguments, weights, **shape)
    got = value_and_gradient(chunked.logp_entropy, arguments, weights, **shape, chunk=chunk)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_chunked_gradient_equals_finite_differences(shape):
    hidden, weight, bias, tokens, temperature = example(n=4, d=3, v=5)
    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(
        lambda *head: chunked.logp_entropy(*head, tokens, temperature, **shape, chunk=3), leaves
    )


@pytest.mark.parametrize(
    "function",
    [reference.logp_entropy, partial(chunked.logp_entropy, chunk=4)],
    ids=["reference", "chunked"],
)
def test_narrow_inputs_are_computed_in_float32_and_get_narrow_gradients(function):
    arguments = example(torch.bfloat16)
    wide = [t.double() if t is not None and t.is_floating_point() else t for t in arguments]
    logp, entropy, *gradients = value_and_gradient(function, arguments, (1.0, 1.0), **SHAPES[0])
    exact_logp, exact_entropy, *exact = value_and_gradient(reference.logp_entropy, wide, (1.0, 1.0), **SHAPES[0])
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close([logp, entropy], [exact_logp.float(), exact_entropy.float()], rtol=1e-5, atol=1e-5)
    assert {gradient.dtype for gradient in gradients} == {torch.bfloat16}
    torch.testing.assert_close([g.double() for g in gradients], exact, rtol=2e-2, atol=2e-2)


def test_a_frozen_head_gets_no_gradient():
    gradients = []
    for function in (reference.logp_entropy, partial(chunked.logp_entropy, chunk=4)):
        hidden, *rest = example()
        logp, _ = function(hidden.requires_grad_(), *rest, **SHAPES[2])
        logp.sum().backward()
        gradients.append(hidden.grad)
        assert all(given is None or given.grad is None for given in rest)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [None, 4])
def test_no_tokens(chunk):
    function = reference.logp_entropy if chunk is None else partial(chunked.logp_entropy, chunk=chunk)
    logp, entropy, *gradients = value_and_gradient(function, example(n=0), (1.0, 1.0), **SHAPES[3])
    assert logp.shape == entropy.shape == (0,)
    assert all(gradient.count_nonzero() == 0 for gradient in gradients)


def test_size_alone_chooses_and_changes_nothing_but_rounding(monkeypatch):
    arguments = example()
    whole = value_and_gradient(logp_entropy, arguments, (1.0, 0.5), **SHAPES[3])
    called = []
    monkeypatch.setattr(kernel, "KEPT", 10 * 17)
    monkeypatch.setattr(kernel, "chunk_size", lambda vocabulary: vocabulary - 14)
    monkeypatch.setattr(
        chunked, "logp_entropy", lambda *a, f=chunked.logp_entropy, **k: called.append(k["chunk"]) or f(*a, **k)
    )
    torch.testing.assert_close(
        value_and_gradient(logp_entropy, arguments, (1.0, 0.5), **SHAPES[3]), whole, rtol=1e-12, atol=1e-12
    )
    assert called == [3]


@pytest.mark.parametrize("chunk", [None, 1])
def test_extreme_logits_stay_finite(chunk):
    arguments = example()
    arguments[0] = arguments[0] * 1e4
    function = reference.logp_entropy if chunk is None else partial(chunked.logp_entropy, chunk=chunk)
    for result in value_and_gradient(function, arguments, (1.0, 1.0), **SHAPES[0]):
        assert result.isfinite().all()
