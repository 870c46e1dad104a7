"""Planted errors of trainers: weights that are loaded, checkpoints, and exported models."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file

from purerl.backends.fake import trainer as fake
from purerl.backends.fake.model import BIGRAM, export_weights, initial_weights
from purerl.backends.fake.trainer import FakeTrainer
from purerl.backends.weights import TensorWeights
from purerl.settings import Model
from tests.testing.planted.errors import PlantedErrors
from tests.testing.planted.trainers import CHECK

ERRORS = PlantedErrors()


def planted(check, owner, name, words=""):
    return ERRORS.register(CHECK[check], owner, name, words)


# --- weights -----------------------------------------------------------------------------------------------------


@planted("metadata_describes_the_weights", FakeTrainer, "weights")
def metadata_has_another_dtype(original, self):
    class Described(TensorWeights):
        @property
        def metadata(self):
            return {name: (shape, torch.bfloat16) for name, (shape, _) in super().metadata.items()}

    return Described(dict(original(self)))


@planted("unknown_weights_are_refused", FakeTrainer, "load_weights", "got no error, expected EngineError")
def unknown_weights_are_ignored(original, self, weights, *, mix=1.0):
    known = {name: value for name, value in weights if name in self._weights}
    original(self, TensorWeights(known, weights.adapter), mix=mix)


@planted("weights_of_another_shape_are_refused", FakeTrainer, "load_weights", "got no error, expected EngineError")
def weights_of_another_shape_are_ignored(original, self, weights, *, mix=1.0):
    fits = {n: v for n, v in weights if n not in self._weights or v.shape == self._weights[n].shape}
    original(self, TensorWeights(fits, weights.adapter), mix=mix)


@planted("weights_of_another_shape_are_refused", fake, "copy_weights", "got RuntimeError")
def weights_of_another_shape_raise_another_exception(original, weights, own, *, mix):
    original(TensorWeights({n: v.reshape(own[n].shape) if n in own else v for n, v in weights}), own, mix=mix)


@planted("weights_of_an_adapter_are_refused", fake, "check_adapter")
def adapters_are_loaded_as_weights(original, weights, capabilities):
    pass


@planted("loaded_weights_are_copied", FakeTrainer, "load_weights")
def references_to_loaded_weights_are_kept(original, self, weights, *, mix=1.0):
    original(self, weights, mix=mix)
    self._weights |= dict(weights) if mix == 1.0 else {}


@planted("weights_are_replaced_and_mixed", FakeTrainer, "load_weights")
def mixing_is_ignored(original, self, weights, *, mix=1.0):
    original(self, weights)


@planted("weights_are_replaced_and_mixed", FakeTrainer, "load_weights")
def mixing_is_reversed(original, self, weights, *, mix=1.0):
    original(self, weights, mix=mix if mix == 1.0 else 1 - mix)


@planted("scores_follow_the_weights", FakeTrainer, "score")
def scores_are_cached(original, self, batch, outputs):
    """Until the next step."""
    key = (tuple(outputs), len(batch), batch["tokens"].sum().item(), batch["temperature"].sum().item())
    cache = self.__dict__.setdefault("cache", {})
    return cache.setdefault(key, original(self, batch, outputs)).clone()


# --- files -------------------------------------------------------------------------------------------------------


@planted("a_loaded_trainer_resumes_exactly", FakeTrainer, "load")
def weights_are_not_loaded(original, self, path):
    before = self._weights
    original(self, path)
    self._weights = before


@planted("a_loaded_trainer_resumes_exactly", FakeTrainer, "load")
def weights_are_loaded_in_float32(original, self, path):
    original(self, path)
    self._weights = {name: value.float().double() for name, value in self._weights.items()}


class State:
    """The state of `trainer` when it is written."""

    def __init__(self, trainer):
        self.trainer = trainer

    def write(self, path, ranks):
        fake.FakeState(self.trainer._weights).write(path, ranks)


@planted("staged_state_is_that_of_its_moment", FakeTrainer, "stage")
def staged_state_is_not_copied(original, self):
    return State(self)


@planted("an_invalid_checkpoint_is_refused", FakeTrainer, "load")
def any_directory_is_a_checkpoint(original, self, path):
    if any(path.iterdir()):
        original(self, path)


@planted("reported_digests_are_those_of_the_files", FakeTrainer, "save")
def digests_are_of_other_content(original, self, path):
    original(self, path)
    return {"weights.safetensors": f"sha256:{0:064d}"}


@planted("an_exported_trainer_can_be_closed", FakeTrainer, "export", "export wrote no file")
def nothing_is_exported(original, self, path):
    pass


@planted("an_exported_trainer_can_be_closed", FakeTrainer, "export", "got PermissionError: read-only")
def export_raises_an_exception(original, self, path):
    raise PermissionError("read-only")


@planted("exported_model_is_trained", FakeTrainer, "export", "got the initial weights")
def the_initial_weights_are_exported(original, self, path):
    weights = initial_weights(Model("conformance", dtype="float64"), len(self._weights[BIGRAM]))
    export_weights(weights, path)


@planted("exported_model_is_trained", FakeTrainer, "export")
def a_part_of_the_weights_is_not_exported(original, self, path):
    original(self, path)
    file = path / "model.safetensors"
    weights = load_file(file)
    weights[BIGRAM][3] = 0.0
    save_file(weights, file)


@planted("exported_model_is_trained", FakeTrainer, "export")
def rounded_weights_are_exported(original, self, path):
    export_weights({name: value.bfloat16() for name, value in self._weights.items()}, path)
