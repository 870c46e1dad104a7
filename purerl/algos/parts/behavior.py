"""Whether an algorithm corrects for rows that another policy sampled.

The gradient of -A logp is a policy gradient only if the current policy sampled the rows. All questions are answered by
what the loss computes, and not by its name, so they can be asked about any algorithm:

    has_policy_ratio     the gradient depends on how far the current policy is from the policy that sampled the rows.
                         Then several optimizer steps on the same rows are possible
    weights_rollouts     a correction multiplies the loss by an importance weight of old policy and rollout policy.
                         It accounts for rollouts of earlier weights, and not for several optimizer steps
    has_rollout_ratio    the gradient depends on how far the current policy is from the rollout policy, which may be
                         several updates old
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from purerl.algos.algebra import Algorithm, Bound, Objective, compute_loss, prepare_step
from purerl.algos.parts.corrections import _correct
from purerl.algos.parts.editing import contains
from purerl.algos.parts.policy import clip_surrogate_of, reference_regression_of
from purerl.batch import FIELDS, STRUCTURE, collate, with_fields
from purerl.types import TensorDict, TokenFloat

__all__ = ["has_policy_ratio", "has_rollout_ratio", "is_policy_gradient", "weights_rollouts"]

_DISTANCE = 1e-4
"""The largest difference of the log-probabilities of two policies, nats: within the clip bounds of every algorithm."""

_BEHAVIOR = ("old_logp", "rollout_logp")


def is_policy_gradient(algorithm: Algorithm) -> bool:
    """Whether the loss of the policy reads an advantage: it learns from how good the sampled tokens are."""
    return any("advantage" in objective.reads for objective in _policies(algorithm))


def has_policy_ratio(algorithm: Algorithm) -> bool:
    """Whether every policy loss of an advantage depends on the distance to the policy that sampled the rows.

    The gradient is computed on a small batch, with the log-probabilities of the old policy and the rollout policy near
    those of the current one. An algorithm with an importance ratio, or another function of both policies, has another
    gradient if these move; -A logp has the same. A token that a mask drops does not count as a change. A regression to
    the reference model needs no ratio: its minimum does not depend on the policy that sampled the rows.

    >>> from purerl.algos import grpo, rloo
    >>> has_policy_ratio(grpo.algorithm()), has_policy_ratio(rloo.algorithm())
    (True, False)
    """
    policies = [objective for objective in _policies(algorithm) if "advantage" in objective.reads]
    return all(_is_clipped(o) or _has_loss(o, reference_regression_of) or _depends_on_behavior(o) for o in policies)


def has_rollout_ratio(algorithm: Algorithm) -> bool:
    """Whether every policy loss of an advantage depends on the distance to the rollout policy, not only to `old_logp`.

    >>> from purerl.algos import grpo
    >>> from purerl.algos.modifiers import bypass
    >>> has_rollout_ratio(grpo.algorithm()), has_rollout_ratio(bypass.modify(bypass.Config(), grpo.algorithm()))
    (False, True)
    """
    policies = [objective for objective in _policies(algorithm) if "advantage" in objective.reads]
    return all("rollout_logp" in o.reads and _depends_on_behavior(o, ("rollout_logp",)) for o in policies)


def weights_rollouts(algorithm: Algorithm) -> bool:
    """Whether a correction of `algorithm` weights the policy loss by an importance ratio to the rollout policy.

    >>> from purerl.algos import icepop, rloo
    >>> weights_rollouts(icepop.algorithm()), weights_rollouts(rloo.algorithm())
    (True, False)
    """
    batch = _batch(("old_logp", "rollout_logp"))
    near = with_fields(batch, rollout_logp=batch["old_logp"] + _offsets(batch))
    weights = (bound(near)["weight"] for bound in _bounds(algorithm.advantage) if bound.function is _correct)
    return any(bool((weight[near["mask"]] != 1).any()) for weight in weights)


def _policies(algorithm: Algorithm) -> list[Objective]:
    return [objective for objective in algorithm.objectives if objective.role == "policy"]


def _bounds(value: object) -> Iterator[Bound]:
    """All `Bound` functions in `value`."""
    if isinstance(value, Bound):
        yield value
    if isinstance(value, tuple):
        for item in value:
            yield from _bounds(item)


def _is_clipped(objective: Objective) -> bool:
    """Whether the loss has PPO's clipped surrogate, so that no gradient needs to be computed."""
    return _has_loss(objective, clip_surrogate_of) and "old_logp" in objective.reads


def _has_loss(objective: Objective, function: Callable) -> bool:
    return any(contains(term, lambda bound: bound.function is function) for term in objective.terms)


def _depends_on_behavior(objective: Objective, moved: tuple[str, ...] = _BEHAVIOR) -> bool:
    names = tuple(dict.fromkeys((*objective.reads, *objective.outputs, *objective.metric_outputs)))
    for sign in (1.0, -1.0):
        batch = with_fields(_batch(names), advantage=sign * torch.ones(_SHAPE, dtype=torch.float64))
        offsets = _offsets(batch)
        batches = (_with_behavior(_with_behavior(batch, 0 * offsets), f * offsets, moved) for f in (0, 1, -1))
        equal, *others = (_gradient(objective, each) for each in batches)
        if any(bool(((gradient != 0) & (gradient != equal)).any()) for gradient in others):
            return True
    return False


def _with_behavior(batch: TensorDict, offsets: TokenFloat, moved: tuple[str, ...] = _BEHAVIOR) -> TensorDict:
    """`batch` with policies that sampled the rows whose log-probabilities differ from `logp` by `offsets`."""
    return with_fields(batch, **{name: batch["logp"] + offsets for name in moved if name in batch.keys()})


def _gradient(objective: Objective, batch: TensorDict) -> TokenFloat:
    step, counts = prepare_step(objective, batch.exclude(*objective.outputs, *objective.metric_outputs))
    outputs = {name: batch[name] for name in (*objective.outputs, *objective.metric_outputs)}
    logp = outputs["logp"].clone().requires_grad_()
    loss, _ = compute_loss(objective, with_fields(step, **outputs | {"logp": logp}), counts)
    [gradient] = torch.autograd.grad(loss, logp)
    return gradient.masked_fill(~batch["mask"], 0)


# --- the batch -----------------------------------------------------------------------------------------------------

_SHAPE = (4, 4)


def _batch(names: tuple[str, ...]) -> TensorDict:
    """Two groups of two rows with three action tokens each, and the fields `names`. All log-probabilities are equal."""
    rows = [dict(tokens=[0] * 4, action=[False, True, True, True], row=k, group=k // 2) for k in range(4)]
    added = {name: _value(name) for name in ("logp", *names) if name not in (*STRUCTURE, "tokens")}
    return with_fields(collate(rows), **added)


def _value(name: str) -> torch.Tensor:
    field = FIELDS[name]
    shape = _SHAPE[: 1 + field.axes.startswith("rows time")] + (2,) * field.axes.endswith(" k")
    if name.endswith("logp"):
        return torch.full(shape, -1.0, dtype=torch.float64)
    return torch.ones(shape, dtype=torch.float64 if field.dtype.is_floating_point else field.dtype)


def _offsets(batch: TensorDict) -> TokenFloat:
    """Differences of log-probabilities between `_DISTANCE` / 16 and `_DISTANCE`, another one at each token."""
    return _DISTANCE * torch.arange(1, 17, dtype=torch.float64).reshape(_SHAPE) / 16
