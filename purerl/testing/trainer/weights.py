"""Checks of `Trainer.weights` and `load_weights`."""

from __future__ import annotations

from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from purerl.protocols import Weights
from purerl.testing.suite import assert_raises
from purerl.testing.trainer.reference import (
    OBJECTIVES,
    TOKENWISE,
    Case,
    assert_close,
    first_steps,
    make_batch,
    scores_of,
    weights_of,
)
from purerl.testing.trainer.resources import builds, shared_directory, take_steps

__all__ = ["WEIGHT_CHECKS", "scores_follow_the_weights"]


def metadata_describes_the_weights(case: Case) -> None:
    """`weights().metadata` has the shape and the dtype of each weight."""
    trainer = case.build()
    described = {name: (tuple(weight.shape), weight.dtype) for name, weight in weights_of(trainer).items()}
    metadata = dict(trainer.weights().metadata)
    assert metadata == described, f"metadata: got {metadata}, need {described}"


def unknown_weights_are_refused(case: Case) -> None:
    """`load_weights` raises EngineError for a name that the model does not have, and changes nothing."""
    weight = next(iter(weights_of(case.build()).values()))
    _assert_refused(case, TensorWeights({"no.such.weight": weight}), "the unknown name 'no.such.weight'")


def weights_of_another_shape_are_refused(case: Case) -> None:
    """`load_weights` raises EngineError for a weight whose shape is not that of the model, and changes nothing."""
    name, weight = next(iter(weights_of(case.build()).items()))
    other = weight.flatten()[:-1]
    _assert_refused(case, TensorWeights({name: other}), f"{name!r} with the shape {list(other.shape)}")


def weights_of_an_adapter_are_refused(case: Case) -> None:
    """`load_weights` raises EngineError for the weights of an adapter, and changes nothing."""
    weights = TensorWeights(weights_of(case.build()), adapter={"r": 8})
    _assert_refused(case, weights, "the weights of an adapter")


def _assert_refused(case: Case, weights: Weights, what: str) -> None:
    trainer = case.build()
    before = weights_of(trainer)
    assert_raises(EngineError, lambda: trainer.load_weights(weights), f"load_weights with {what}")
    assert_close("weights after a refusal", weights_of(trainer), before, 0)


def loaded_weights_are_copied(case: Case) -> None:
    """After `load_weights`, a change of the tensors that it has read changes nothing.

    A policy may train them in place.
    """
    source, target = case.build(), case.build()
    new, _ = take_steps(source, first_steps(case, TOKENWISE, 1))
    tensors = {name: weight.clone() for name, weight in new.items()}
    target.load_weights(TensorWeights(tensors))
    assert_close("replaced weights", weights_of(target), new, 0)
    for tensor in tensors.values():
        tensor.zero_()
    assert_close("weights after a change of the tensors that load_weights has read", weights_of(target), new, 0)


def weights_are_replaced_and_mixed(case: Case) -> None:
    """`load_weights` by the definition: own = (1 - mix) * own + mix * weights."""
    source, target = case.build(), case.build()
    new, _ = take_steps(source, first_steps(case, TOKENWISE))
    old = weights_of(target)
    target.load_weights(source.weights(), mix=0.25)
    mixed = {name: 0.75 * old[name] + 0.25 * new[name] for name in new}
    assert_close("mixed weights", weights_of(target), mixed, case.tolerance)
    target.load_weights(source.weights())
    assert_close("replaced weights", weights_of(target), new, 0)


def scores_follow_the_weights(case: Case) -> None:
    """`load_weights` and `load` after a score: the next score and the next step are those of the new weights."""
    batch, (step,) = make_batch(case), first_steps(case, TOKENWISE, 1)
    for build in builds(case):
        source, replaced, loaded = build(), build(), build()
        weights, _ = take_steps(source, first_steps(case, OBJECTIVES[0]))
        expected = scores_of(source, batch)
        scores_of(replaced, batch)
        replaced.load_weights(source.weights())
        assert_close("score after load_weights", scores_of(replaced, batch), expected, case.tolerance)
        loaded.load_weights(source.weights(), mix=0.5)
        scores_of(loaded, batch)
        with shared_directory() as directory:
            replaced.save(directory)
            loaded.load(directory)
        assert_close("score after load", scores_of(loaded, batch), expected, case.tolerance)
        assert_close("weights after load", weights_of(loaded), weights, 0)
        expected = take_steps(replaced, [step])[0]
        assert_close("weights one step after load", take_steps(loaded, [step])[0], expected, 0)


WEIGHT_CHECKS = (
    metadata_describes_the_weights,
    unknown_weights_are_refused,
    weights_of_another_shape_are_refused,
    weights_of_an_adapter_are_refused,
    loaded_weights_are_copied,
    weights_are_replaced_and_mixed,
)
