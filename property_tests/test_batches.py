"""The test batches follow the schema, and often have the features that the laws need to detect mutants."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purerl.batch import FIELDS, STRUCTURE, check_batch
from purerl.errors import ConfigError
from purerl.system.installation import install_command
from purerl.testing import example_batch, layouts, random_layout
from tests.forks import TORCH

BATCHES = [example_batch(FIELDS, random_layout(seed), seed=seed) for seed in range(60)]
PAIR_BATCHES = [example_batch(["chosen"], random_layout(seed, pairs=True), seed=seed) for seed in range(20)]


@pytest.mark.parametrize("pairs", [False, True])
def test_batches_follow_the_schema(pairs):
    @given(layout=layouts(pairs=pairs), seed=st.integers(0, 100))
    def check(layout, seed):
        check_batch(example_batch(FIELDS, layout, seed=seed), FIELDS)

    check()
    for seed in range(20):
        check_batch(example_batch(FIELDS, random_layout(seed, pairs=pairs), seed=seed), FIELDS)


def test_seed_determines_the_batch():
    first, second, other_seed = (example_batch(["reward", "logp"], ((1, ".aaa"),), seed=seed) for seed in (3, 3, 4))
    assert (first == second).all()
    assert not torch.equal(first["logp"], other_seed["logp"])


def test_float_fields_have_the_requested_dtype():
    batch = example_batch(FIELDS, random_layout(1), dtype=torch.float32)
    assert {value.dtype for value in batch.values() if value.is_floating_point()} == {torch.float32}


def test_unknown_field_is_refused():
    with pytest.raises(ConfigError, match=r"unknown field 'rewrd'\n.*did you mean 'reward'"):
        example_batch(["rewrd"], ((0, ".a"),))


def test_each_pair_has_one_chosen_row():
    for batch in PAIR_BATCHES:
        _, member, size = batch["group"].unique(return_inverse=True, return_counts=True)
        assert (size == 2).all()
        assert (torch.zeros_like(size).index_add(0, member, batch["chosen"].long()) == 1).all()
    assert any((batch["group"][1:] != batch["group"][:-1])[::2].any() for batch in PAIR_BATCHES), (
        "the two rows of a pair are adjacent in every batch"
    )


def _has_tool_tokens_between_actions(batch):
    action = batch["action"].long()
    return ((action.cumsum(-1) > 0) & (action == 0) & (action.flip(-1).cumsum(-1).flip(-1) > 0)).any()


def _group_sizes(batch):
    return batch["group"].unique(return_counts=True)[1]


def _log_ratio(batch):
    return (batch["logp"] - batch["old_logp"]).abs()[batch["mask"]]


FEATURES = {
    "rows differ in length": lambda b: (~b["attention_mask"]).any(),
    "tool tokens between action tokens": _has_tool_tokens_between_actions,
    "a row with actions but without counted tokens": lambda b: (b["action"].any(-1) & ~b["mask"].any(-1)).any(),
    "a masked-out action token in a row with counted tokens": lambda b: (b["action"] & ~b["mask"])[
        b["mask"].any(-1)
    ].any(),
    "groups differ in size": lambda b: len(_group_sizes(b).unique()) > 1,
    "a group with one row": lambda b: (_group_sizes(b) == 1).any(),
    "a group with three or more rows": lambda b: (_group_sizes(b) >= 3).any(),
    "a group with eight rows": lambda b: (_group_sizes(b) == 8).any(),
    "a negative label": lambda b: (b["group"] < 0).any(),
    "the rows of a group are not adjacent": lambda b: len(b["group"].unique_consecutive()) > len(b["group"].unique()),
    "rewards of both signs": lambda b: (b["reward"] < 0).any() and (b["reward"] > 0).any(),
    "a reward on a token that is not an action": lambda b: b["reward"][b["attention_mask"] & ~b["action"]].any(),
    "rewards are 0 and 1": lambda b: b["reward"][b["attention_mask"]].unique().tolist() == [0, 1],
    "a ratio within the smallest clip range": lambda b: (_log_ratio(b) < 3e-4).any(),
    "a ratio outside the largest clip range": lambda b: (_log_ratio(b) > 0.28).any(),
    "a ratio of intermediate size": lambda b: ((_log_ratio(b) > 1e-3) & (_log_ratio(b) < 0.2)).any(),
}


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES.keys())
def test_feature_is_common(feature):
    assert sum(bool(feature(batch)) for batch in BATCHES) > len(BATCHES) / 10


def test_log_probabilities_are_negative_and_rewards_are_multiples_of_one_eighth():
    others = {"margin_shift", "reference_point"}  # in nats too, but a shift and a divergence
    names = [name for name in FIELDS if FIELDS[name].unit == "nats" and "entropy" not in name and name not in others]
    for batch in BATCHES:
        assert all((batch[name] < 0).all() for name in names)
        eighths = 8 * batch["reward"][batch["attention_mask"]]
        assert torch.equal(eighths, eighths.round())


def test_layouts_without_hypothesis_raise_config_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ConfigError, match=rf"layouts\(\) needs Hypothesis\n.*{re.escape(install_command('testing'))}"):
        layouts()


def test_laws_do_not_need_hypothesis():
    block = "import sys; sys.modules['hypothesis'] = None; from purerl.testing import check_algorithm as check; "
    check = "from purerl.algos import grpo; check(grpo.algorithm(), batches=1, exempt=['picklable'])"
    TORCH.run([sys.executable, "-c", block + check], check=True)


def test_batch_always_has_the_structure_fields():
    assert set(example_batch([], ((0, ".a"),)).keys()) >= set(STRUCTURE)
