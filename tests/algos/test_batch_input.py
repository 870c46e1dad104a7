"""Batches of other types: dicts, fields that are no tensors, groups in int32, rewards that are not finite."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from purerl.algos import gdpo, grpo
from purerl.algos.algebra import compute_advantages, compute_loss, prepare_step, select_rows
from purerl.algos.parts.groups import group_index
from purerl.batch import check_batch, select_fields, with_fields
from purerl.errors import BatchError
from tests.algos.helpers import example, f64, loss_of, with_advantage

GRPO, GDPO = grpo.algorithm(), gdpo.algorithm()
POLICY = GRPO.objectives[0]

ENTRIES: dict[str, Callable] = {
    "check_batch": check_batch,
    "select_fields": lambda batch: select_fields(batch, ["reward"]),
    "with_fields": lambda batch: with_fields(batch, advantage=batch["reward"]),
    "select_rows": lambda batch: select_rows(GRPO, batch),
    "compute_advantages": lambda batch: compute_advantages(GRPO, GRPO.advantage.init(), batch),
    "prepare_step": lambda batch: prepare_step(POLICY, batch),
    "compute_loss": lambda batch: compute_loss(POLICY, batch, {}),
}


def _batch() -> TensorDict:
    return with_advantage(GRPO, example(GRPO))


@pytest.mark.parametrize("entry", ENTRIES)
def test_dict_is_refused(entry):
    message = "a batch\n  got:  dict\n  need: a TensorDict\n  do:   create it with collate(rows), or with TensorDict("
    with pytest.raises(BatchError, match=f"^{re.escape(message)}"):
        ENTRIES[entry](dict(_batch().items()))


@pytest.mark.parametrize("entry", ["check_batch", "select_rows", "compute_advantages", "prepare_step", "compute_loss"])
@pytest.mark.parametrize("value", [NonTensorStack("a", "a", "b", "b", "b", "b"), NonTensorData("a")])
def test_field_that_is_read_must_be_a_tensor(entry, value):
    batch = _batch()
    batch["group"] = value
    message = (
        f"field 'group'\n  got:  {type(value).__name__}\n  need: a tensor, group [rows] int64\n  do:   give each of its"
    )
    with pytest.raises(BatchError, match=f"^{re.escape(message)}"):
        ENTRIES[entry](batch)


def test_fields_that_nothing_reads_may_hold_anything():
    batch = example(GRPO)
    others = batch.clone()
    others["uid"], others["meta"] = NonTensorStack("a", "a", "b", "b", "b", "b"), NonTensorData({"x": 1})
    assert loss_of(POLICY, with_advantage(GRPO, others)) == loss_of(POLICY, with_advantage(GRPO, batch))
    with pytest.raises(BatchError, match=r"^unknown field 'uid'\n  do:   purerl calls it 'group'"):
        check_batch(others)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_groups_are_integers_of_any_size(dtype):
    batch = example(GRPO)
    batch["group"] = batch["group"] % 97
    small = with_fields(batch, group=batch["group"].to(dtype))
    assert torch.equal(with_advantage(GRPO, small)["advantage"], with_advantage(GRPO, batch)["advantage"])
    assert group_index(small["group"]).dtype == torch.int64
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        BatchError, match=rf"^field 'group'\n  got:  {name} \[6\]\n  need: group \[rows\] int64 = \[6\]"
    ):
        check_batch(small)


def _changed(value: Tensor, index: tuple[int, ...], number: float) -> Tensor:
    value = value.clone()
    value[index] = number
    return value


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("name", "index"), [("reward", (1, 2)), ("score", (1,)), ("greedy_score", (1,))])
def test_reward_that_is_not_finite_is_refused(name, index, number):
    batch = with_fields(_batch(), score=f64(*range(6)), greedy_score=f64(*range(6)))
    assert check_batch(batch) is batch
    place = "row 1" + "".join(f", position {k}" for k in index[1:])
    message = f"field '{name}'\n  got:  {number} in {place}\n  need: a finite number\n  do:   leave out rows without a"
    with pytest.raises(BatchError, match=f"^{re.escape(message)}"):
        check_batch(with_fields(batch, **{name: _changed(batch[name], index, number)}))


def test_rewards_that_nothing_reads_may_be_nan():
    batch = _batch()
    assert batch["mask"].any(-1).tolist() == [True, True, True, False, True, True]
    outside = (~batch["attention_mask"]).nonzero()[0].tolist()
    for index in (tuple(outside), (3, 2)):
        check_batch(with_fields(batch, reward=_changed(batch["reward"], index, torch.nan)))


def test_component_may_be_nan_and_not_infinite():
    batch = example(GDPO)
    check_batch(with_fields(batch, components=_changed(batch["components"], (1, 0), torch.nan)))
    message = "field 'components'\n  got:  inf in row 1, position 0\n  need: a finite number, or NaN if the row has"
    with pytest.raises(BatchError, match=f"^{re.escape(message)}"):
        check_batch(with_fields(batch, components=_changed(batch["components"], (1, 0), torch.inf)))
