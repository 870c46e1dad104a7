"""The reference equals the definition. The chunked path equals the reference, in value and gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from purerl.errors import InputError
from purerl.kernels import logp as kernel
from purerl.kernels.logp import OUTPUTS, chunk_size, chunked, reference, token_outputs
from tests.kernels.logp_examples import (
    FLOATS,
    SELECTIONS,
    SHAPES,
    TILE,
    LargestTensor,
    choices_for,
    example,
    subsets,
    value_and_gradient,
)

PATHS = {"reference": reference.token_outputs, "chunked": partial(chunked.token_outputs, chunk=4)}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(chunked, "_TILE_ELEMENTS", TILE)


def assert_paths_agree(arguments: list, chunk: int, used: Sequence[str] | None = None, **keywords) -> None:
    expected = value_and_gradient(reference.token_outputs, arguments, used, **keywords)
    actual = value_and_gradient(partial(chunked.token_outputs, chunk=chunk), arguments, used, **keywords)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# --- values and gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_values_equal_the_definition(path, shape):
    hidden, weight, bias, tokens, temperature = arguments = example()
    choices = choices_for(arguments)
    results = path(*arguments, outputs=FLOATS, choices=choices, **shape)
    top = path(*arguments, outputs=("topk_logp", "topk_tokens"), k=5, **shape)
    for row in range(len(tokens)):
        z = [shape["scale"] * float(hidden[row] @ weight[i] + bias[i]) for i in range(len(weight))]
        z = [shape["softcap"] * math.tanh(x / shape["softcap"]) for x in z] if shape["softcap"] else z
        powers = [math.exp(x / float(temperature[row])) for x in z]
        p = [power / sum(powers) for power in powers]
        log_p = [math.log(q) for q in p]
        ranked = sorted(range(len(p)), key=lambda i: -p[i])[:5]
        close = partial(pytest.approx, rel=1e-12)
        assert float(results["logp"][row]) == close(log_p[int(tokens[row])])
        assert float(results["entropy"][row]) == close(-sum(q * x for q, x in zip(p, log_p, strict=True)))
        assert float(results["sum_pi_squared"][row]) == close(sum(q * q for q in p))
        assert results["topk_logp"][row].tolist() == close([log_p[i] for i in choices[row].tolist()])
        assert top["topk_tokens"][row].tolist() == ranked
        assert top["topk_logp"][row].tolist() == close([log_p[i] for i in ranked])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_chunked_equals_reference_for_every_set_of_outputs(shape, bias, selection):
    names, keywords = selection
    arguments = example(bias=bias)
    if "choices" in keywords:
        keywords = {"choices": choices_for(arguments)}
    for chunk in (1, 4, 11, 64):
        assert_paths_agree(arguments, chunk, outputs=names, **keywords, **shape)


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]])
@pytest.mark.parametrize("used", subsets(FLOATS), ids="+".join)
def test_outputs_without_an_incoming_gradient_have_no_effect_on_gradients(shape, used):
    arguments = example()
    for keywords in ({"k": 3}, {"choices": choices_for(arguments)}):
        assert_paths_agree(arguments, 4, used, outputs=FLOATS, **keywords, **shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FLOATS)
def test_chunked_gradient_equals_finite_differences(shape, name):
    hidden, weight, bias, tokens, temperature = arguments = example(n=4, d=3, v=5)
    choices = choices_for(arguments)
    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]

    def output(*head: Tensor) -> Tensor:
        return chunked.token_outputs(*head, tokens, temperature, outputs=(name,), choices=choices, **shape, chunk=3)[
            name
        ]

    assert torch.autograd.gradcheck(output, leaves)


@settings(deadline=None)
@given(
    n=st.integers(0, 9),
    d=st.integers(1, 5),
    v=st.integers(1, 12),
    chunk=st.integers(1, 10),
    k=st.integers(1, 12),
    names=st.lists(st.sampled_from(OUTPUTS), min_size=1),
    used=st.sets(st.sampled_from(FLOATS)),
    scale=st.floats(0.1, 4),
    softcap=st.none() | st.floats(0.5, 20),
    bias=st.booleans(),
    seed=st.integers(0, 2**20),
)
@pytest.mark.filterwarnings("error")  # torch warns if it resizes a buffer
def test_chunked_equals_reference_for_random_inputs(n, d, v, chunk, k, names, used, scale, softcap, bias, seed):
    arguments = example(n=n, d=d, v=v, bias=bias, seed=seed)
    used = [name for name in names if name in used]
    assert_paths_agree(arguments, chunk, used, outputs=names, k=min(k, v), scale=scale, softcap=softcap)


# --- inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_narrow_inputs_are_computed_in_float32_and_get_narrow_gradients(path):
    arguments = example(torch.bfloat16)
    exact_arguments = [t.double() if t is not None and t.is_floating_point() else t for t in arguments]
    keywords = dict(outputs=FLOATS, choices=choices_for(arguments), **SHAPES[0])
    results = value_and_gradient(path, arguments, **keywords)
    expected = value_and_gradient(reference.token_outputs, exact_arguments, **keywords)
    for name in FLOATS:
        assert results[name].dtype == torch.float32
        torch.testing.assert_close(results[name].double(), expected[name], rtol=1e-5, atol=1e-5)
    for name in results.keys() - set(FLOATS):
        assert results[name].dtype == torch.bfloat16
        torch.testing.assert_close(results[name].double(), expected[name], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]])
def test_a_narrow_weight_is_converted_in_tiles(shape, bias):
    arguments = example(bias=bias)
    narrow = [arguments[0], arguments[1].bfloat16(), *arguments[2:]]
    arguments[1] = narrow[1].double()
    expected = value_and_gradient(reference.token_outputs, arguments, outputs=FLOATS, k=3, **shape)
    actual = value_and_gradient(partial(chunked.token_outputs, chunk=4), narrow, outputs=FLOATS, k=3, **shape)
    assert actual["gradient 1"].dtype == torch.bfloat16
    actual["gradient 1"], expected["gradient 1"] = (
        actual["gradient 1"].float(),
        expected["gradient 1"].bfloat16().float(),
    )
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (1, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_frozen_inputs_get_no_gradient(frozen, shape):
    expected = value_and_gradient(reference.token_outputs, example(), outputs=FLOATS, k=3, **shape)
    for path in PATHS.values():
        arguments = example()
        for i in {0, 1, 2} - set(frozen):
            arguments[i].requires_grad_()
        results = path(*arguments, outputs=FLOATS, k=3, **shape)
        weights = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view_as(x) for x in results.values()]
        sum(((1 + i) * w * x).sum() for i, (w, x) in enumerate(zip(weights, results.values(), strict=True))).backward()
        for i in range(3):
            if i in frozen:
                assert arguments[i].grad is None
            else:
                torch.testing.assert_close(arguments[i].grad, expected[f"gradient {i}"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]])
def test_no_tokens_give_empty_outputs_and_zero_gradients(path, shape):
    arguments = example(n=0)
    results = value_and_gradient(path, arguments, outputs=OUTPUTS, k=3, **shape)
    assert [results[name].shape for name in OUTPUTS] == [(0,), (0,), (0,), (0, 3), (0, 3)]
    assert [results[f"gradient {i}"].shape for i in range(3)] == [(0, 6), (17, 6), (17,)]
    assert all(results[f"gradient {i}"].count_nonzero() == 0 for i in range(3))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_extreme_logits_stay_finite(path, softcap):
    arguments = example(torch.float32)
    arguments[0] = arguments[0] * 1e4
    results = value_and_gradient(path, arguments, outputs=OUTPUTS, k=17, scale=1.0, softcap=softcap)
    assert all(result.isfinite().all() for result in results.values())


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_uniform_distribution_has_maximum_entropy(path):
    hidden, weight, _, tokens, temperature = example(torch.float32, v=1000)
    results = path(0 * hidden, weight, None, tokens, temperature, outputs=FLOATS, k=2, **SHAPES[0])
    uniform = torch.full((11,), math.log(1000))
    torch.testing.assert_close(results["entropy"], uniform, rtol=1e-6, atol=0)
    torch.testing.assert_close(results["logp"], -uniform, rtol=1e-6, atol=0)
    torch.testing.assert_close(results["sum_pi_squared"], torch.full((11,), 1e-3), rtol=1e-6, atol=0)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_float32_is_precise_for_a_likely_token_with_a_large_logit(path):
    """Entropy and 1 - p are small differences here if they are computed from z and logsumexp(z)."""
    logits = torch.tensor([100.0, 90.0, 89.0, 88.0])
    arguments = [torch.ones(3, 1), logits[:, None], torch.zeros(4), torch.zeros(3, dtype=torch.int64), torch.ones(3)]
    exact_arguments = [t.double() if t.is_floating_point() else t for t in arguments]
    for name in ("logp", "entropy"):
        actual = value_and_gradient(path, arguments, outputs=(name,), **SHAPES[0])
        expected = value_and_gradient(reference.token_outputs, exact_arguments, outputs=(name,), **SHAPES[0])
        for output in (name, "gradient 2"):
            torch.testing.assert_close(actual[output].double(), expected[output], rtol=5e-3, atol=0)


# --- the autograd function ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_outputs_are_returned_in_the_requested_order_once(path):
    names = ("topk_tokens", "entropy", "logp", "entropy")
    results = path(*example(), outputs=names, k=2, **SHAPES[0])
    assert list(results) == ["topk_tokens", "entropy", "logp"]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_top_k_tokens_are_integers_without_gradient(path):
    arguments = example()
    arguments[0].requires_grad_()
    results = path(*arguments, outputs=("topk_logp", "topk_tokens"), k=17, **SHAPES[0])
    assert results["topk_tokens"].dtype == torch.int64
    assert not results["topk_tokens"].requires_grad
    assert results["topk_logp"].requires_grad
    assert (results["topk_logp"].diff() <= 0).all()
    assert (results["topk_tokens"].sort().values == torch.arange(17)).all()


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_k_has_no_effect_beside_choices(path):
    arguments = example()
    choices = choices_for(arguments)
    one, two = (path(*arguments, outputs=("topk_logp",), choices=choices, k=k, **SHAPES[0]) for k in (None, 99))
    assert torch.equal(one["topk_logp"], two["topk_logp"])


@pytest.mark.parametrize("used", [("logp",), ("entropy", "topk_logp")], ids="+".join)
@pytest.mark.parametrize("trained", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_chunked_computes_only_the_gradients_that_are_needed(monkeypatch, used, trained):
    calls = []

    def spy(ctx, grads, f=chunked._input_gradients):
        calls.append((tuple(name for name in grads if grads[name] is not None), f(ctx, grads)))
        return calls[-1][1]

    monkeypatch.setattr(chunked, "_input_gradients", spy)
    arguments = example()
    for i in trained:
        arguments[i].requires_grad_()
    results = chunked.token_outputs(*arguments, outputs=OUTPUTS, k=3, **SHAPES[0], chunk=4)
    sum(results[name].sum() for name in used).backward()
    [(received, gradients)] = calls
    assert received == used
    assert [gradient is not None for gradient in gradients] == [i in trained for i in range(3)]


def test_chunked_saves_no_tensor_of_logits():
    arguments = example(n=40, d=2, v=50)
    results = chunked.token_outputs(
        arguments[0].requires_grad_(), *arguments[1:], outputs=OUTPUTS, k=3, **SHAPES[2], chunk=7
    )
    saved = [tensor for tensor in results["logp"].grad_fn.saved_tensors if tensor is not None]
    assert len(saved) == 10
    assert max(tensor.numel() for tensor in saved) == 40 * 3


def test_chunked_backward_has_no_float32_copy_of_a_narrow_weight():
    """The largest float32 tensors have logits: 14 tokens of 20 with 7 rows of 50."""
    hidden, weight, *others = example(n=20, d=4, v=50, dtype=torch.float32)
    narrow = [hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(), *others]
    results = chunked.token_outputs(*narrow, outputs=("logp", "entropy"), **SHAPES[2], chunk=2)
    with LargestTensor() as mode:
        (results["logp"] + results["entropy"]).sum().backward()
    assert mode.elements[torch.bfloat16] == 50 * 4
    assert mode.elements[torch.float32] == 14 * 7


def test_chunked_backward_can_be_repeated_and_changes_no_input():
    arguments = example()
    choices = choices_for(arguments)
    copies = [t.clone() for t in (*arguments, choices)]
    leaves = [t.requires_grad_() for t in arguments[:3]]
    results = chunked.token_outputs(*arguments, outputs=FLOATS, choices=choices, **SHAPES[3], chunk=4)
    values = {name: result.clone() for name, result in results.items()}
    incoming = [torch.ones_like(result) for result in results.values()]
    first, second = (torch.autograd.grad(list(results.values()), leaves, incoming, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip((*arguments, choices), copies, strict=True))
    assert all(torch.equal(values[name], results[name]) for name in FLOATS)
    assert all((gradient == 1).all() for gradient in incoming)


def test_size_selects_the_path_and_changes_only_rounding(monkeypatch):
    arguments = example()
    keywords = dict(outputs=OUTPUTS, k=3, **SHAPES[3])
    expected = value_and_gradient(token_outputs, arguments, **keywords)
    chunks = []
    monkeypatch.setattr(kernel, "KEPT", 10 * 17)
    monkeypatch.setattr(kernel, "chunk_size", lambda vocabulary: vocabulary - 14)
    monkeypatch.setattr(
        chunked, "token_outputs", lambda *a, f=chunked.token_outputs, **k: chunks.append(k["chunk"]) or f(*a, **k)
    )
    actual = value_and_gradient(token_outputs, arguments, **keywords)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert chunks == [3]
    monkeypatch.setattr(kernel, "KEPT", 11 * 17)
    value_and_gradient(token_outputs, arguments, **keywords)
    assert chunks == [3]


def test_chunk_size_is_at_least_128_tokens():
    assert [chunk_size(vocabulary) for vocabulary in (64, 2**15, 151_936)] == [2**16, 128, 128]


# --- error messages ----------------------------------------------------------------------------------------------

MESSAGES = {
    "no outputs": (
        dict(outputs=()),
        """\
token_outputs: outputs
  got:  an empty sequence
  need: at least one of logp, entropy, sum_pi_squared, topk_logp, topk_tokens""",
    ),
    "unknown output": (
        dict(outputs=("logp", "entropi")),
        """\
token_outputs: outputs
  got:  'entropi'
  need: names out of logp, entropy, sum_pi_squared, topk_logp, topk_tokens
  do:   did you mean 'entropy'?""",
    ),
    "topk_tokens with choices": (
        dict(outputs=("topk_tokens",), choices=torch.zeros(11, 2, dtype=torch.int64)),
        """\
token_outputs: outputs
  got:  'topk_tokens' together with choices
  need: 'topk_tokens' only without choices
  do:   remove 'topk_tokens' from outputs, or pass k instead of choices""",
    ),
    "neither choices nor k": (
        dict(outputs=("logp", "topk_logp")),
        """\
token_outputs: k
  got:  neither k nor choices
  need: an integer from 1 to 17, the size of the vocabulary
  do:   pass k, or pass choices to get the log-probabilities of certain tokens""",
    ),
    "k above the vocabulary": (
        dict(outputs=("topk_tokens",), k=18),
        """\
token_outputs: k
  got:  18
  need: an integer from 1 to 17, the size of the vocabulary
  do:   pass k, or pass choices to get the log-probabilities of certain tokens""",
    ),
}


@pytest.mark.parametrize(("keywords", "message"), MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("n", [0, 11])
def test_invalid_arguments_are_refused(keywords, message, n):
    with pytest.raises(InputError) as caught:
        token_outputs(*example(n=n), **keywords, **SHAPES[0])
    assert str(caught.value) == message


def test_k_below_one_is_refused():
    with pytest.raises(InputError, match="from 1 to 17"):
        token_outputs(*example(), outputs=("topk_logp",), k=0, **SHAPES[0])
