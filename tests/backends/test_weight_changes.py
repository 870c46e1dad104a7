"""A small change of weights: its size, the numbers that it leaves alone, and that it undoes itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from purerl.backends.fake import trainer as fake
from purerl.backends.weight_changes import ChangedWeights, change_bits, change_tensors, change_weights
from purerl.backends.weights import TensorWeights
from purerl.settings import Model

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPECIAL = (0.0, -0.0, 2**-5, -(2**-5), 2**-5 * 1.125, 1.0, math.inf, -math.inf, math.nan)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def numbers(dtype: torch.dtype) -> Tensor:
    normal = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([normal, torch.tensor(SPECIAL * 50, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_second_change_restores_every_bit(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    before = bits(x).clone()
    change_bits(x, seed=3)
    assert not torch.equal(bits(x), before)
    change_bits(x, seed=4)
    change_bits(x, seed=4)
    change_bits(x, seed=3)
    assert torch.equal(bits(x), before)


@pytest.mark.parametrize("dtype", FLOATS)
def test_half_of_the_numbers_change_by_a_sixteenth_to_an_eighth(dtype: torch.dtype) -> None:
    x = numbers(dtype)[:20_000]
    before = x.clone()
    change_bits(x, seed=0)
    ratio = ((x.double() - before.double()) / before.double()).abs()
    size, smallest = before.double().abs(), torch.finfo(dtype).tiny
    is_ordinary = (size > 0.1) | ((size < 0.01) & (size >= smallest))  # no number near 2^-5, and no subnormal one
    changed = ratio[is_ordinary & (ratio > 0)]
    assert len(changed) / int(is_ordinary.sum()) == pytest.approx(0.5, abs=0.02)
    assert 1 / 17 < float(changed.min()) <= float(changed.max()) <= 1 / 8
    assert torch.equal(x.signbit(), before.signbit())


def test_zeros_and_the_number_that_they_become_change_places() -> None:
    x = torch.tensor([0.0, 2**-5] * 100)
    change_bits(x, seed=1)
    assert set(x.tolist()) == {0.0, 2**-5}
    assert 60 < int((x[::2] > 0).sum()) + int((x[1::2] == 0).sum()) < 140


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("values", [[0.0], [2**-5], [2**-5 * 1.125], [2**-5 * 1.125, 0.0], [0.0, 1.0], [-0.0, 2**-5]])
def test_few_numbers_of_a_kind_are_restored(dtype: torch.dtype, values: list[float]) -> None:
    x = torch.tensor(values * 30, dtype=dtype)
    subnormal = torch.finfo(dtype).smallest_normal / 16
    for part in (x, x[:1], torch.cat([x, x.new_tensor([subnormal])])):
        before = bits(part).clone()
        for seed in (0, 1, 1, 0):
            change_bits(part, seed)
        assert torch.equal(bits(part), before)


def test_zeros_beside_other_numbers_stay() -> None:
    x = torch.tensor([1.0, 0.0, -0.0] * 30)
    before = x.clone()
    change_bits(x, seed=1)
    assert torch.equal(bits(x[before == 0]), bits(before[before == 0]))
    assert not torch.equal(x, before)


def test_a_tensor_with_one_number_changes() -> None:
    for seed in range(10):
        x = torch.ones(1)
        change_bits(x, seed)
        assert x.tolist() == [1.125]


def test_numbers_that_are_not_finite_stay() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan] * 20)
    before = bits(x).clone()
    change_bits(x, seed=1)
    assert torch.equal(bits(x), before)


@pytest.mark.parametrize(
    "x", [torch.arange(4), torch.tensor([True]), torch.tensor([]), torch.ones(3).to(torch.float8_e4m3fn)]
)
def test_other_tensors_stay(x: Tensor) -> None:
    before = bits(x).clone()
    change_bits(x, seed=1)
    assert torch.equal(bits(x), before)


@pytest.mark.parametrize("x", [torch.tensor(1.0), torch.ones(5, 4).t(), torch.ones(2, 3, 4)[:, ::2], torch.ones(1, 9)])
def test_scalars_and_views_of_other_tensors_change_in_place(x: Tensor) -> None:
    for seed in range(7):
        change_bits(x, seed)
    assert not torch.equal(x, torch.ones_like(x))
    for seed in range(7):
        change_bits(x, seed)
    assert torch.equal(x, torch.ones_like(x))


def test_a_large_tensor_changes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.backends.weight_changes._NUMBERS", 10)
    x = torch.ones(9, 7)
    change_bits(x, seed=2)
    assert len({tuple(row.tolist()) for row in x}) > 3  # each part draws other numbers
    change_bits(x, seed=2)
    assert torch.equal(x, torch.ones(9, 7))


def test_only_the_named_tensors_change() -> None:
    tensors = {"a": torch.ones(50), "b": torch.ones(50), "c": torch.ones(50)}
    assert change_tensors(tensors, ["b"], seed=0) == ["a", "b", "c"]
    assert [bool((x == 1).all()) for x in tensors.values()] == [True, False, True]
    change_tensors(tensors, None, seed=0)
    assert [bool((x == 1).all()) for x in tensors.values()] == [False, True, False]
    assert not torch.equal(tensors["a"], tensors["c"])


def test_weights_are_changed_on_their_way_and_stay_as_they_are() -> None:
    own = {"a": torch.ones(50), "b": torch.ones(50)}
    sent = dict(ChangedWeights(TensorWeights(own), ["a"], seed=0))
    assert bool((own["a"] == 1).all())
    assert not torch.equal(sent["a"], own["a"])
    assert torch.equal(sent["b"], own["b"])


def test_a_trainer_without_the_method_gets_changed_weights() -> None:
    config, model = fake.Config(vocab_size=5), Model("nowhere")
    trainer = fake.build(config, model=model, role="policy", outputs=("logp",), updates=1, seed=0)
    before = {name: value.clone() for name, value in trainer.weights()}
    names = change_weights(trainer, None, seed=0)
    assert names == [*before]
    assert not all(torch.equal(value, before[name]) for name, value in trainer.weights())
    change_weights(trainer, None, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in trainer.weights())
