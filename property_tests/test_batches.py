"""The drawn batches follow the schema, and have in them what the laws need to bite."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purerl.batch import FIELDS, STRUCTURE, check_batch
from purerl.errors import ConfigError
from purerl.testing import example_batch, layouts, random_layout

DRAWN = [example_batch(FIELDS, random_layout(seed), seed=seed) for seed in range(60)]
PAIRED = [example_batch(["chosen"], random_layout(seed, pairs=True), seed=seed) for seed in range(20)]


@pytest.mark.parametrize("pairs", [False, True])
def test_batches_follow_the_schema(pairs):
    @given(layout=layouts(pairs=pairs), seed=st.integers(0, 100))
    def follows(layout, seed):
        check_batch(example_batch(FIELDS, layout, seed=seed), FIELDS)

    follows()
    for seed in range(20):
        check_batch(example_batch(FIELDS, random_layout(seed, pairs=pairs), seed=seed), FIELDS)


def test_a_seed_is_a_batch():
    one, same, other = (example_batch(["reward", "logp"], ((1, ".aaa"),), seed=seed) for seed in (3, 3, 4))
    assert (one == same).all()
    assert not torch.equal(one["logp"], other["logp"])


def test_floats_have_the_dtype_that_is_asked_for():
    batch = example_batch(FIELDS, random_layout(1), dtype=torch.float32)
    assert {value.dtype for value in batch.values() if value.is_floating_point()} == {torch.float32}


def test_an_unknown_field_is_refused():
    with pytest.raises(ConfigError, match=r"unknown field 'rewrd'\n.*did you mean 'reward'"):
        example_batch(["rewrd"], ((0, ".a"),))


def test_each_pair_has_one_chosen_row():
    for batch in PAIRED:
        _, member, size = batch["group"].unique(return_inverse=True, return_counts=True)
        assert (size == 2).all()
        assert (torch.zeros_like(size).index_add(0, member, batch["chosen"].long()) == 1).all()
    assert any((batch["group"][1:] != batch["group"][:-1])[::2].any() for batch in PAIRED), (
        "partners always lie together"
    )


def _hole(batch):
    action = batch["action"].long()
    return ((action.cumsum(-1) > 0) & (action == 0) & (action.flip(-1).cumsum(-1).flip(-1) > 0)).any()


def _sizes(batch):
    return batch["group"].unique(return_counts=True)[1]


def _drift(batch):
    return (batch["logp"] - batch["old_logp"]).abs()[batch["mask"]]


FEATURES = {
    "rows are ragged": lambda b: (~b["attention_mask"]).any(),
    "a tool speaks between action tokens": _hole,
    "nothing counts in a row that acts": lambda b: (b["action"].any(-1) & ~b["mask"].any(-1)).any(),
    "an action token is masked out in a row that counts": lambda b: (b["action"] & ~b["mask"])[b["mask"].any(-1)].any(),
    "groups differ in size": lambda b: len(_sizes(b).unique()) > 1,
    "a group has one row": lambda b: (_sizes(b) == 1).any(),
    "a group has three rows": lambda b: (_sizes(b) >= 3).any(),
    "a group has eight rows": lambda b: (_sizes(b) == 8).any(),
    "a label is negative": lambda b: (b["group"] < 0).any(),
    "rows of a group lie apart": lambda b: len(b["group"].unique_consecutive()) > len(b["group"].unique()),
    "rewards have both signs": lambda b: (b["reward"] < 0).any() and (b["reward"] > 0).any(),
    "a tool's token has a reward": lambda b: b["reward"][b["attention_mask"] & ~b["action"]].any(),
    "rewards are 0 and 1": lambda b: b["reward"][b["attention_mask"]].unique().tolist() == [0, 1],
    "a ratio is in the smallest clip range": lambda b: (_drift(b) < 3e-4).any(),
    "a ratio is out of the largest": lambda b: (_drift(b) > 0.28).any(),
    "a policy has not moved far": lambda b: ((_drift(b) > 1e-3) & (_drift(b) < 0.2)).any(),
}


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES.keys())
def test_feature_is_common(feature):
    assert sum(bool(feature(batch)) for batch in DRAWN) > len(DRAWN) / 10


def test_log_probabilities_are_negative_and_rewards_sum_exactly():
    for batch in DRAWN:
        assert all((batch[name] < 0).all() for name in FIELDS if FIELDS[name].unit == "nats" and "entropy" not in name)
        eighths = 8 * batch["reward"][batch["attention_mask"]]
        assert torch.equal(eighths, eighths.round())


def test_layouts_say_that_they_need_hypothesis(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ConfigError, match=r"layouts\(\) needs Hypothesis\n.*purerl\[testing\]"):
        layouts()


def test_laws_need_no_hypothesis():
    without = "import sys; sys.modules['hypothesis'] = None; from purerl.testing import check_algorithm as check; "
    check = "from purerl.algos import grpo; check(grpo.algorithm(), batches=1, exempt=['picklable'])"
    subprocess.run([sys.executable, "-c", without + check], check=True)


def test_structure_needs_no_naming():
    assert set(example_batch([], ((0, ".a"),)).keys()) >= set(STRUCTURE)
