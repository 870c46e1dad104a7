"""Sentences about the models of a run, before its first step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from purerl.config.requirements import ModelRole
from purerl.errors import ConfigError
from purerl.kernels.logp import OUTPUTS
from purerl.protocols import Capabilities, SupportsVocabulary, Trainer

__all__ = ["attention_notes", "limit_vocabularies", "model_notes"]


def attention_notes(engines: Mapping[str, Capabilities]) -> list[str]:
    """The attention of the `engines` that state it; their names only if they differ.

    >>> policy, teacher = Capabilities(attention="sdpa"), Capabilities(attention="eager")
    >>> attention_notes({"policy": policy, "teacher": policy}), attention_notes({"policy": policy, "teacher": teacher})
    (['sdpa'], ['policy sdpa', 'teacher eager'])
    """
    chosen = {name: engine.attention for name, engine in engines.items() if engine.attention}
    same = {*chosen.values()}
    return [*same] if len(same) == 1 else [f"{name} {attention}" for name, attention in chosen.items()]


def model_notes(roles: Mapping[str, ModelRole], trainers: Mapping[str, Capabilities]) -> list[str]:
    """The notes of the `trainers`, and those on models that have more token ids than the policy."""
    own = [f"{name}: {note}" for name, trainer in trainers.items() for note in trainer.notes]
    text = "token ids that the policy does not have get no probability"
    size = trainers["policy"].vocab_size if "policy" in trainers else None
    return [*own, *(f"{name}: {extra:,} {text}" for name, extra in _extra_ids(roles, trainers, size))]


def limit_vocabularies(
    roles: Mapping[str, ModelRole], trainers: Mapping[str, Trainer], policy_size: int | None = None
) -> None:
    """Leave out the token ids that the policy does not have, in the models whose probabilities it reads.

    Such ids are the padding of a vocabulary, whose size differs between models of one family. No token has them.
    `policy_size` is the number of ids of a policy that is not among `trainers`; None: unknown.

    Raises: ConfigError if a trainer has more ids, and cannot leave them out.
    """
    capabilities = {name: trainer.capabilities for name, trainer in trainers.items()}
    size = capabilities["policy"].vocab_size if "policy" in capabilities else policy_size
    for name, extra in _extra_ids(roles, capabilities, size):
        trainer = trainers[name]
        if not isinstance(trainer, SupportsVocabulary):
            got = f"{extra:,} token ids more than the policy has"
            need = "as many, or a trainer that can leave ids out, such as that of kind hf"
            raise ConfigError(f"roles.{name}.model", got=got, need=need, do=f"set roles.{name}.trainer.kind=hf")
        trainer.limit_vocabulary((capabilities[name].vocab_size or 0) - extra)


def _extra_ids(
    roles: Mapping[str, ModelRole], trainers: Mapping[str, Capabilities], size: int | None
) -> Iterator[tuple[str, int]]:
    """The models with probabilities of more than `size` token ids, those of the policy, and how many more."""
    for name, trainer in trainers.items():
        extra = (trainer.vocab_size or 0) - (size or math.inf)
        if extra > 0 and {*roles[name].outputs} & {*OUTPUTS}:
            yield name, int(extra)
