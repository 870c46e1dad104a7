"""Shared prefixes: scores and gradients are the same with and without sharing."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.decoder.backbone import layers_of
from purerl.backends.hf.model import prefix
from purerl.backends.hf.model.added_gradients import added
from purerl.backends.hf.training.optimizer import clear_gradients, release_gradients
from purerl.batch import with_fields
from purerl.errors import ConfigError, InputError
from purerl.system.tensor_tracker import MemoryTracker
from tests.backends.tiny import FAMILIES, VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import CRITIC, POLICY, make_batch

LAYOUT = (
    (7, "......aa.aa"),  # with tool output between the action tokens
    (7, "......a"),
    (-2, "...aaa"),
    (7, "......xxaaa"),
    (5, "....aaaa"),
    (-2, "...a"),
    (7, "......"),  # without action tokens
    (9, "."),
)


def make_prefix_batch():
    batch = make_batch(layout=LAYOUT)
    tokens = torch.randint(0, VOCAB_SIZE, batch["tokens"].shape, generator=torch.Generator().manual_seed(0))
    # Rows of a group start with the same tokens. The two rows of group -2 differ before their first action token.
    prompt = tokens.gather(0, (batch["group"] % 4)[:, None].expand_as(tokens))
    tokens = torch.where(batch["action"].cumsum(-1) > 0, tokens, prompt)
    tokens[5, 2] += 1
    return with_fields(batch, tokens=torch.where(batch["attention_mask"], tokens % VOCAB_SIZE, 0))


@pytest.fixture(autouse=True)
def sharing_is_always_worthwhile(monkeypatch):
    monkeypatch.setattr(prefix, "_WORTHWHILE", math.inf)


def trainers(path, **settings):
    """A trainer that shares prefixes, and one that does not."""
    return (make_trainer(path, share_prefixes=share, **settings) for share in (True, False))


def assert_not_shared(path):
    """Whether prefixes are shared is up to the model by default; it is an error to set it for a model that cannot."""
    assert not make_trainer(path).share
    assert not make_trainer(path, share_prefixes=True, updates=0).share
    with pytest.raises(ConfigError, match=r"^share_prefixes\n  got:  true, and Qwen3ForCausalLM\n(.|\n)*leave share_"):
        make_trainer(path, share_prefixes=True)


def gradients(trainer, objective):
    step, counts = prepare_step(objective, make_prefix_batch())
    for part in trainer._arrange(step, ("tokens", "temperature", *objective.reads), objective.unit):
        trainer._backward(step, part, objective, counts)
    return {name: parameter.grad for name, parameter in trainer.trained.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_prefixes_do_not_change_scores_or_gradients(tmp_path, family):
    # transformers computes experts in float32 at most, norms in float32 always.
    precision = {"dtype": "float32", "rtol": 1e-3, "atol": 1e-5} if "moe" in family else {"rtol": 1e-4, "atol": 1e-6}
    dtype = precision.pop("dtype", "float64")
    shared, separate = trainers(write_model(tmp_path, family), dtype=dtype)
    assert shared.share
    assert not separate.share
    outputs = ["logp", "entropy"]
    scores = [trainer.score(make_prefix_batch(), outputs) for trainer in (shared, separate)]
    torch.testing.assert_close(*scores, **precision)
    actual, expected = gradients(shared, POLICY), gradients(separate, POLICY)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
    torch.testing.assert_close(actual, expected, **precision)


@pytest.mark.parametrize("settings", [{"role": "critic"}, {"recompute": "layers"}])
def test_shared_prefixes_work_with_a_critic_and_with_recomputation(tmp_path, settings):
    objective = CRITIC if "role" in settings else POLICY
    actual, expected = (gradients(trainer, objective) for trainer in trainers(write_model(tmp_path), **settings))
    torch.testing.assert_close(actual, expected)


def test_gradients_of_suffixes_are_added_up_before_those_of_prefixes_exist(tmp_path):
    [trainer, _] = trainers(write_model(tmp_path, num_hidden_layers=8), recompute="layers")
    peaks, found = {}, {}
    for adds_early in (True, False):
        trainer.module.adds_early = adds_early
        clear_gradients(trainer.trained.values())
        with MemoryTracker() as tracker, tracker.phase("training"):
            tracker.label("weights", trainer.module.parameters())
            tracker.label("gradients", [parameter.grad for parameter in trainer.trained.values()])
            found[adds_early] = gradients(trainer, POLICY)
        peaks[adds_early] = tracker.peaks["training"]["other"]
        release_gradients(trainer.trained.values())
    torch.testing.assert_close(found[True], found[False])
    layers = sum(parameter.nbytes for layer in layers_of(trainer.module) for parameter in layer.parameters())
    assert peaks[False] - peaks[True] > 0.5 * layers


def test_gradient_that_does_not_exist_yet_is_created():
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
    ((added(weight) * 5).sum() + added(weight)[0] + weight[1]).backward()
    assert weight.grad.tolist() == [6, 6]
    assert added(weight.detach()).data_ptr() == weight.data_ptr()
    with torch.no_grad():
        assert added(weight) is weight


def test_gradient_that_was_replaced_before_the_backward_pass_is_refused():
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
    loss = added(weight).sum()
    weight.grad = None
    with pytest.raises(InputError, match=r"^the gradient of a weight that is used twice\n  got:  another tensor\n"):
        loss.backward()


def tokens_read(trainer) -> int:
    counts = []
    handle = trainer.module.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    trainer.score(make_prefix_batch(), ["logp"])
    handle.remove()
    return sum(counts)


def test_common_prefix_is_read_once(tmp_path):
    shared, separate = trainers(write_model(tmp_path))
    # With sharing: the prefixes of groups 7, -2 and 5 have 6, 2 and 4 tokens, padded to 6; the suffixes of six rows
    # have at most 4 tokens. Without sharing: eight rows of 10 tokens.
    assert tokens_read(shared) == 3 * 6 + 6 * 4
    assert tokens_read(separate) == 8 * 10


def test_prefixes_are_not_shared_if_they_save_little(tmp_path, monkeypatch):
    [shared, _] = trainers(write_model(tmp_path))
    monkeypatch.setattr(prefix, "_WORTHWHILE", 0.5)
    assert tokens_read(shared) == 8 * 10


def test_rows_without_a_common_token_have_no_plan():
    tokens, action = torch.tensor([[1, 2, 3], [4, 2, 3]]), torch.tensor([[False, False, True]] * 2)
    assert prefix.plan(tokens, action, torch.tensor([0, 0])) is None


def test_prefixes_are_not_shared_by_a_model_that_accepts_no_cache(tmp_path, monkeypatch):
    from transformers import Qwen3Model

    def forward(self, *args, original=Qwen3Model.forward, **kwargs):
        if kwargs.get("past_key_values") is not None:
            raise ValueError("no cache")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Qwen3Model, "forward", forward)
    assert_not_shared(write_model(tmp_path))


def test_prefixes_are_not_shared_by_a_model_with_other_states_for_suffixes(tmp_path, monkeypatch):
    monkeypatch.setattr(prefix._SuffixCache, "update", lambda self, key, value, *args, **kwargs: (key, value))
    assert_not_shared(write_model(tmp_path))
