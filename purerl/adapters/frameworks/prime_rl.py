"""Losses for prime-rl.

    [trainer.loss]
    type = "custom"
    import_path = "purerl.adapters.frameworks.prime_rl.loss"
    kwargs = {algorithm = "dppo"}

prime-rl calls the loss for each sequence, and divides it by the number of tokens of the optimizer step on all ranks. So
a loss here is a sum over tokens, and only algorithms whose reduction is `token_mean` have the right denominator. The
policies whose log-probabilities it passes are the rollout policy, and the reference if one scores the sequences.
Algorithms with a ratio to the old policy need the modifier `bypass`. Advantages are those that prime-rl has computed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from purerl.adapters.frameworks.availability import PRIME_RL, loss_refusals, policy_objective, require
from purerl.adapters.frameworks.compose import compose, require_effect
from purerl.adapters.frameworks.tensors import completions, counts_of, require_shape
from purerl.algos.algebra import Algorithm, Objective, compute_loss
from purerl.composition import build_algorithm
from purerl.errors import BatchError, ConfigError

__all__ = ["loss"]


def loss(inputs: Any, algorithm: Any, modifiers: Sequence[Any] = ()) -> Any:
    """Return the `LossOutputs` of one sequence: the sum of the loss over its tokens, and metrics.

    inputs                 prime-rl's `LossInputs`: trainer_logprobs, inference_logprobs, advantages, loss_mask, [time],
                           and ref_logprobs and loss_weights, [time] or None
    algorithm, modifiers   names or tables, as in `compose`

    Raises: ConfigError if prime-rl does not pass what the algorithm needs, for settings that do not change the loss,
        and for weights other than 1. BatchError for inputs that are not tensors of one length.
    """
    objective = _objective(json.dumps([algorithm, modifiers]))
    _check_shapes(inputs)
    fields = {"logp": inputs.trainer_logprobs, **_fields(inputs, objective)}
    part = completions(inputs.loss_mask.unsqueeze(0), **{name: value.unsqueeze(0) for name, value in fields.items()})
    one = torch.ones((), dtype=torch.int64, device=inputs.loss_mask.device)  # prime-rl divides by the number of tokens
    value, metrics = compute_loss(objective, part, counts_of(objective, one, one))
    shown = {
        name: metric.total / metric.weight.clamp(min=1)
        for name, metric in metrics.items()
        if not name.startswith("loss/")
    }
    outputs = sys.modules[type(inputs).__module__].LossOutputs  # it is in the module of LossInputs
    return outputs(loss=value, metrics=shown)


def _check_shapes(inputs: Any) -> None:
    first = getattr(inputs, "trainer_logprobs", None)
    if not isinstance(first, Tensor) or first.ndim != 1:
        got = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else repr(first)
        raise BatchError("trainer_logprobs of prime-rl", got=got, need="a tensor [time], of one sequence")
    names = ("inference_logprobs", "advantages", "loss_mask")
    optional = [name for name in ("ref_logprobs", "loss_weights") if getattr(inputs, name, None) is not None]
    values = {f"{name} of prime-rl": getattr(inputs, name, None) for name in (*names, *optional)}
    require_shape(first.shape, **values)


def _fields(inputs: Any, objective: Objective) -> dict[str, Tensor]:
    weights, counted = getattr(inputs, "loss_weights", None), inputs.loss_mask.bool()
    if weights is not None and (weights[counted] != 1).any():
        need = "no weights: each token of the loss counts once"
        raise ConfigError("loss_weights of prime-rl", got="weights other than 1", need=need)
    reference = getattr(inputs, "ref_logprobs", None)
    if "ref_logp" in objective.reads and reference is None:
        need = "log-probabilities of a reference, which an algorithm of prime-rl with a reference passes"
        raise ConfigError("ref_logprobs of prime-rl", got="None", need=need)
    fields = {"rollout_logp": inputs.inference_logprobs, "advantage": inputs.advantages}
    return fields if reference is None else {**fields, "ref_logp": reference}


@cache
def _objective(text: str) -> Objective:
    """The objective of the algorithm and modifiers in `text`, JSON: prime-rl passes them again for each sequence."""
    algorithm = build_algorithm(compose(*json.loads(text)))
    do = 'add modifiers = ["bypass"]' if "old_logp" in policy_objective(algorithm, PRIME_RL).reads else None
    require("this algorithm in prime-rl", [*loss_refusals(algorithm, PRIME_RL)], do=do)
    require_effect(*json.loads(text), on="the loss in prime-rl", part=_loss_of)
    return _loss_of(algorithm)


def _loss_of(algorithm: Algorithm) -> Objective:
    return policy_objective(algorithm, PRIME_RL)
