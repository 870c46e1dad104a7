"""The class of transformers that a model is loaded as: a causal language model, or a classifier.

    AutoModelForCausalLM                  for every output but `classifier_score`
    AutoModelForImageTextToText           likewise, of vision-language models
    AutoModelForSequenceClassification    one score of a conversation, at its last token
    AutoModelForTokenClassification       a score of each token, of which those at the ends of steps are read

A classifier has a linear head in place of the vocabulary head. With one label its score is the logit, and with two the
probability of the second one, which is the positive one in process reward models. A language model that is trained as a
classifier gets a new head with one label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from purerl.errors import ConfigError
from purerl.kernels.logp import OUTPUTS as LANGUAGE_OUTPUTS
from purerl.kernels.logp.reference import compute_dtype
from purerl.models.pretrained import config_of
from purerl.settings import Model

__all__ = [
    "CAUSAL",
    "CLASSIFIER_SCORE",
    "HEAD_STD",
    "Architecture",
    "architecture_of",
    "initialize_head",
    "scores_of_classes",
]

CLASSIFIER_SCORE = "classifier_score"
"""The output of a classifier."""

HEAD_STD = 0.02
"""Of the weights of new heads: the initialization that transformers uses for most weights."""

_SEQUENCE, _TOKEN = "ForSequenceClassification", "ForTokenClassification"


@frozen(kw_only=True)
class Architecture:
    """A class of transformers.

    auto_class     the name of the class that finds it
    is_classifier  the model has a score in place of log-probabilities
    may_miss_head  the head may be missing in the files; it is then initialized at random
    """

    auto_class: str = "AutoModelForCausalLM"
    is_classifier: bool = False
    may_miss_head: bool = False

    def auto(self, config: Any) -> Any:
        """Transformers' class that loads a model with this `config`.

        A language model is one of images and text only if there is no class of causal language models for it.
        """
        import transformers

        name = "AutoModelForImageTextToText" if self._reads_images(config) else self.auto_class
        return getattr(transformers, name)

    def _reads_images(self, config: Any) -> bool:
        from transformers.models.auto import modeling_auto as known

        is_causal = self.is_classifier or type(config) in known.MODEL_FOR_CAUSAL_LM_MAPPING
        is_known = type(config) in known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        return is_known and not is_causal and not config.is_encoder_decoder

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the configuration of a model with a new head."""
        return {"num_labels": 1} if self.is_classifier and self.may_miss_head else {}

    def head_of(self, model: Any) -> Any:
        """The output head of `model`, which is of this architecture."""
        if not self.is_classifier:
            return model.get_output_embeddings()
        return model.score if hasattr(model, "score") else model.classifier


CAUSAL = Architecture()


def architecture_of(model: Model, outputs: Sequence[str], *, is_trained: bool) -> Architecture:
    """The architecture as which `model` is loaded for `outputs`; only its configuration is read.

    Raises: ConfigError for a model that is no classifier with one or two labels, if it needs to be one; and for a model
    that cannot be trained as a classifier: one of tokens, or with several labels.
    """
    if CLASSIFIER_SCORE not in outputs:
        return Architecture(may_miss_head=not set(outputs) & set(LANGUAGE_OUTPUTS))
    config = config_of(model)
    name, num_labels = _class_of(config), config.num_labels
    is_of_sequences, is_language_model = name.endswith(_SEQUENCE), not name.endswith((_SEQUENCE, _TOKEN))
    is_valid = is_language_model or (is_of_sequences and num_labels == 1)
    if is_trained and is_valid and _has_classifier(config):
        return Architecture(auto_class=f"AutoModel{_SEQUENCE}", is_classifier=True, may_miss_head=is_language_model)
    if is_trained or is_language_model or num_labels > 2:
        raise _refusal(model, config, is_trained=is_trained)
    return Architecture(auto_class=f"AutoModel{_SEQUENCE if is_of_sequences else _TOKEN}", is_classifier=True)


def _class_of(config: Any) -> str:
    """The name of the class of the model with this `config`."""
    return (config.architectures or ["a model that does not name its class"])[0]


def _has_classifier(config: Any) -> bool:
    """Whether there is a sequence classifier of this type of model, in transformers or in code of its own."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    return config.model_type in KNOWN or f"AutoModel{_SEQUENCE}" in (getattr(config, "auto_map", None) or {})


def _refusal(model: Model, config: Any, *, is_trained: bool) -> ConfigError:
    name = _class_of(config)
    got = f"{name} with {config.num_labels} labels" if "Classification" in name else name
    if is_trained and not _has_classifier(config):
        need = f"a type of model of which transformers has a class ...{_SEQUENCE}"
        return ConfigError(f"{model.path!r} cannot be trained as a reward model", got=config.model_type, need=need)
    if is_trained:
        what, need = f"{model.path!r} cannot be trained as a reward model", f"...{_SEQUENCE} with 1 label"
        return ConfigError(what, got=got, need=f"a language model, or {need}", do="start from the language model")
    need = f"...{_SEQUENCE} or ...{_TOKEN}, with 1 label, or 2 of which the second is the positive one"
    do = "name a classifier; purerl train reward_model makes one from a language model"
    return ConfigError(f"{model.path!r} is no classifier", got=got, need=need, do=do)


def initialize_head(head: nn.Module, seed: int) -> None:
    """Draw the weights of `head` from `seed`, the same on every mesh; its bias is 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = HEAD_STD if parameter.ndim > 1 else 0.0
            value = (scale * torch.randn(parameter.shape, generator=generator)).to(parameter.device, parameter.dtype)
            if isinstance(parameter, DTensor):
                value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
            parameter.copy_(value)


def scores_of_classes(head: Any, hidden: Tensor) -> Tensor:
    """The score [n] of each hidden state [n, d]: the logit of one label, or the probability of the second of two."""
    dtype = compute_dtype(hidden.dtype)
    bias = None if head.bias is None else head.bias.to(dtype)
    logits = functional.linear(hidden.to(dtype), head.weight.to(dtype), bias)
    return logits[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]
