"""`weights` and `load_weights` of the HF trainer, and `copy_weights`."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.weights import TensorWeights, copy_weights
from purerl.errors import CheckpointError, EngineError
from purerl.protocols import Weights
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import equal, make_batch, parameters_of, train, weights_of

FAMILIES = ["qwen3", "llama", "qwen3_moe"]  # untied, tied, and experts that are stored separately in files


def make_pair(directory, family: str, **settings) -> tuple[HFTrainer, HFTrainer]:
    """Trainers of two models of the same shape."""
    dtype = "float32" if family == "qwen3_moe" else "float64"  # transformers computes experts in float32 at most
    return tuple(make_trainer(write_model(directory, family, seed=k), dtype=dtype, **settings) for k in (0, 1))


def mixed(old: dict[str, Tensor], new: dict[str, Tensor], mix: float) -> dict[str, Tensor]:
    return {name: (1 - mix) * old[name] + mix * new[name] for name in old}


def scores(trainer: HFTrainer) -> dict[str, Tensor]:
    return dict(trainer.score(make_batch(), ("logp", "entropy")).items())


# --- weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_metadata_describes_the_weights(tmp_path, family):
    trainer, _ = make_pair(tmp_path, family)
    weights = trainer.weights()
    assert isinstance(weights, Weights)
    assert weights.adapter is None
    assert weights.metadata == {name: (tuple(weight.shape), weight.dtype) for name, weight in weights}
    assert ("lm_head.weight" in weights.metadata) == (family != "llama")
    assert any(".experts.1." in name for name in weights.metadata) == (family == "qwen3_moe")


def test_weights_are_current_and_have_no_gradient(tmp_path):
    trainer = make_trainer(write_model(tmp_path), lr=1e-2)
    before, weights = weights_of(trainer), trainer.weights()
    train(trainer)
    assert not any(weight.requires_grad for _, weight in weights)
    assert equal({name: weight.clone() for name, weight in weights}, weights_of(trainer))
    assert not equal(before, weights_of(trainer))


def test_critic_has_the_weights_of_its_decoder_only(tmp_path):
    critic = make_trainer(write_model(tmp_path), "critic")
    names = set(dict(critic.module.model.named_parameters()))
    assert {name for name, _ in critic.weights()} == names
    assert not any("head" in name for name in names)


# --- load_weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mix", [1.0, 0.25, 0.0])
def test_mix_is_the_fraction_of_the_new_weights(tmp_path, family, mix):
    target, source = make_pair(tmp_path, family)
    old, new = weights_of(target), weights_of(source)
    target.load_weights(source.weights(), mix=mix)
    torch.testing.assert_close(weights_of(target), mixed(old, new, mix))
    assert equal(weights_of(source), new)


@pytest.mark.parametrize("mix", [1.0, 0.25])
def test_tied_weight_under_both_names_is_mixed_once(tmp_path, mix):
    target, source = make_pair(tmp_path, "llama")
    old, new = weights_of(target), weights_of(source)
    both = {**new, "lm_head.weight": new["model.embed_tokens.weight"]}
    target.load_weights(TensorWeights(both), mix=mix)
    torch.testing.assert_close(weights_of(target), mixed(old, new, mix))


def test_tied_weights_are_loaded_without_a_message_into_a_model_with_another_layout_of_files(tmp_path, caplog):
    paths = [write_model(tmp_path, "qwen3_moe", seed=k, tie_word_embeddings=True) for k in (0, 1)]
    target, source = (make_trainer(path, dtype="float32") for path in paths)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        target.load_weights(source.weights())
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.messages == []
    assert equal(weights_of(target), weights_of(source))
    assert equal(scores(target), scores(source))


def test_scores_follow_the_loaded_weights(tmp_path):
    reference, policy = make_pair(tmp_path, "qwen3")
    assert not equal(scores(reference), scores(policy))
    reference.load_weights(policy.weights())
    assert equal(scores(reference), scores(policy))


def test_weights_that_are_not_loaded_keep_their_values(tmp_path):
    target, source = make_pair(tmp_path, "qwen3", outputs=("logp", "value"))
    before = parameters_of(target)
    name = "model.norm.weight"
    target.load_weights(TensorWeights({name: weights_of(source)[name]}))
    changed = {key for key, parameter in parameters_of(target).items() if not torch.equal(parameter, before[key])}
    assert changed == {f"model.{name}"}


def test_loaded_weights_are_cast_to_the_dtype_of_the_model(tmp_path):
    path = write_model(tmp_path)
    target = make_trainer(path, dtype="bfloat16")
    source = weights_of(make_trainer(write_model(tmp_path, seed=1)))
    target.load_weights(TensorWeights(source))
    assert equal(weights_of(target), {name: weight.bfloat16() for name, weight in source.items()})


@pytest.mark.parametrize("mix", [1.0, 0.5])
def test_invalid_weights_are_refused_and_change_nothing(tmp_path, mix):
    target, source = make_pair(tmp_path, "qwen3")
    before, new = weights_of(target), weights_of(source)
    messages = {
        "unknown weight 'lm_head.wait'\n  need: a name that the engine's model has\n  do:   did you mean": (
            TensorWeights({**new, "lm_head.wait": new["lm_head.weight"]})
        ),
        r"weight 'lm_head.weight'\n  got:  shape \[16, 19\]\n  need: \[19, 16\]": (
            TensorWeights({**new, "lm_head.weight": new["lm_head.weight"].T})
        ),
        "weights of an adapter\n  got:  {'r': 8}\n": TensorWeights(new, adapter={"r": 8}),
    }
    assert not target.capabilities.adapters
    for message, weights in messages.items():
        with pytest.raises(EngineError, match=message):
            target.load_weights(weights, mix=mix)
        assert equal(weights_of(target), before)


# --- a reference that follows the policy -------------------------------------------------------------------------


def make_moving_reference(directory) -> tuple[HFTrainer, HFTrainer]:
    """A reference that is not trained, and a policy of the same model after one step."""
    path = write_model(directory)
    reference, policy = make_trainer(path, "reference", updates=0), make_trainer(path, lr=1e-2)
    train(policy)
    return reference, policy


def test_reference_without_training_mixes_the_weights_of_the_policy(tmp_path):
    reference, policy = make_moving_reference(tmp_path)
    old = parameters_of(reference)
    assert dict(reference.weights()) == {}, "weights are only those that are trained"
    reference.load_weights(policy.weights(), mix=0.5)
    torch.testing.assert_close(parameters_of(reference), mixed(old, parameters_of(policy), 0.5))


def test_checkpoint_has_the_weights_of_a_reference_after_they_were_loaded(tmp_path):
    reference, policy = make_moving_reference(tmp_path)
    reference.load_weights(policy.weights(), mix=0.5)
    (tmp_path / "checkpoint").mkdir()
    reference.save(tmp_path / "checkpoint")
    loaded, _ = make_moving_reference(tmp_path)
    assert not equal(scores(loaded), scores(reference))
    loaded.load(tmp_path / "checkpoint")
    assert equal(scores(loaded), scores(reference))


def test_checkpoint_without_weights_is_refused_after_weights_were_loaded(tmp_path):
    """A reference that never changed has no weights in its checkpoint, because they are in the model's files."""
    reference, policy = make_moving_reference(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    reference.save(tmp_path / "checkpoint")
    reference.load(tmp_path / "checkpoint")
    reference.load_weights(policy.weights())
    before = scores(reference)
    with pytest.raises(CheckpointError, match="cannot be loaded\n  got:  weights that were replaced\n"):
        reference.load(tmp_path / "checkpoint")
    assert equal(scores(reference), before)


# --- copy_weights ------------------------------------------------------------------------------------------------


def test_copy_weights_equals_manual_computation():
    own = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0])}
    tensor = own["a"]
    copy_weights(TensorWeights({"a": torch.tensor([5.0, 10.0])}), own, mix=0.25)
    assert own["a"] is tensor
    assert {name: value.tolist() for name, value in own.items()} == {"a": [2.0, 4.0], "b": [4.0]}


def test_copies_do_not_share_memory():
    own, value = {"a": torch.zeros(2)}, torch.ones(2)
    copy_weights(TensorWeights({"a": value}), own)
    value.zero_()
    assert own["a"].tolist() == [1.0, 1.0]
