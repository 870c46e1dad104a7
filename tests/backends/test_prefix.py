"""Rows that begin alike: read once or each by itself, scores and gradients are the same."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos.algebra import prepare_step
from purerl.backends.hf import prefix
from purerl.batch import with_fields
from purerl.testing.batches import example_batch
from tests.backends.test_trainer import CRITIC, POLICY
from tests.backends.tiny import FAMILIES, VOCABULARY, trainer, write_model

LAYOUT = (
    (7, "......aa.aa"),  # a prompt, and what a tool says
    (7, "......a"),
    (-2, "...aaa"),
    (7, "......xxaaa"),
    (5, "....aaaa"),
    (-2, "...a"),
    (7, "......"),  # nothing is asked of it
    (9, "."),
)


def batch(dtype: torch.dtype = torch.float64):
    made = example_batch(("old_logp", "advantage", "temperature", "returns"), LAYOUT, dtype=dtype)
    tokens = torch.randint(0, VOCABULARY, made["tokens"].shape, generator=torch.Generator().manual_seed(0))
    # Rows of a group begin with the same tokens; the first of group -2 and its other row part before their actions.
    prompt = tokens.gather(0, (made["group"] % 4)[:, None].expand_as(tokens))
    tokens = torch.where(made["action"].cumsum(-1) > 0, tokens, prompt)
    tokens[5, 2] += 1
    return with_fields(made, tokens=torch.where(made["attention_mask"], tokens % VOCABULARY, 0))


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(prefix, "_WORTH", math.inf)


def both(path, **settings):
    return (trainer(path, share_prefixes=share, **settings) for share in (True, False))


def gradients(made, objective):
    step, counts = prepare_step(objective, batch())
    made._backward(step, objective, counts)
    return {name: parameter.grad for name, parameter in made.trained.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_changes_neither_scores_nor_gradients(tmp_path, family):
    # transformers computes experts in float32 at most, norms in float32 always.
    precision = {"dtype": "float32", "rtol": 1e-3, "atol": 1e-5} if "moe" in family else {"rtol": 1e-4, "atol": 1e-6}
    dtype = precision.pop("dtype", "float64")
    shared, whole = both(write_model(tmp_path, family), dtype=dtype)
    assert shared.module.share
    assert not whole.module.share
    torch.testing.assert_close(*(one.score(batch(), ["logp", "entropy"]) for one in (shared, whole)), **precision)
    ours, theirs = gradients(shared, POLICY), gradients(whole, POLICY)
    assert max(float(gradient.abs().max()) for gradient in theirs.values()) > 1e-2
    torch.testing.assert_close(ours, theirs, **precision)


@pytest.mark.parametrize("settings", [{"role": "critic"}, {"gradient_checkpointing": True}])
def test_sharing_goes_with_what_else_there_is(tmp_path, settings):
    objective = CRITIC if "role" in settings else POLICY
    ours, theirs = (gradients(one, objective) for one in both(write_model(tmp_path), **settings))
    torch.testing.assert_close(ours, theirs)


def tokens_read(made) -> int:
    read = []
    handle = made.module.causal.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    made.score(batch(), ["logp"])
    handle.remove()
    return sum(read)


def test_a_common_beginning_is_read_once(tmp_path):
    shared, whole = both(write_model(tmp_path))
    # Groups 7, -2, 5: prefixes of 6, 2 and 4, padded to 6; six rows of at most 4 more tokens. Else eight rows of 10.
    assert tokens_read(shared) == 3 * 6 + 6 * 4
    assert tokens_read(whole) == 8 * 10


def test_where_little_is_gained_rows_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(prefix, "_WORTH", 0.5)
    [shared, _] = both(write_model(tmp_path))
    assert tokens_read(shared) == 8 * 10


def test_rows_without_a_token_in_common_are_read_whole():
    tokens, action = torch.tensor([[1, 2, 3], [4, 2, 3]]), torch.tensor([[False, False, True]] * 2)
    assert prefix.plan(tokens, action, torch.tensor([0, 0])) is None


def test_a_model_that_takes_no_cache_reads_rows_whole(tmp_path, monkeypatch):
    from transformers import Qwen3Model

    def forward(self, *args, true=Qwen3Model.forward, **kwargs):
        if kwargs.get("past_key_values") is not None:
            raise ValueError("no cache")
        return true(self, *args, **kwargs)

    monkeypatch.setattr(Qwen3Model, "forward", forward)
    [shared, _] = both(write_model(tmp_path))
    assert not shared.module.share


def test_a_model_that_reads_the_rest_otherwise_reads_rows_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(prefix._Rest, "update", lambda self, key, value, *args, **kwargs: (key, value))
    [shared, _] = both(write_model(tmp_path))
    assert not shared.module.share
