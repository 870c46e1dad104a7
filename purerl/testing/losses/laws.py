"""The laws that a plain loss must satisfy, and reasons why others do not apply to it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm
from purerl.algos.parts.rows import row_mean
from purerl.batch import FIELDS, with_fields
from purerl.testing.laws import LAWS, Law
from purerl.testing.laws.law import ViolationError, assert_same, law
from purerl.testing.losses.conventions import Convention
from purerl.testing.outcome import Outcome, run_objective, steps
from purerl.testing.perturbations import make_on_policy
from purerl.testing.plain_loss import PlainLoss

__all__ = ["laws_of_losses", "reasons"]

_NOT_OF_LOSSES = {
    "reads_are_declared": "a plain loss declares nothing: it gets its parameters",
    "picklable": "a plain loss is not part of a configuration",
    "episode_invariance": "no parameter says which rows are one episode",
    "metrics_merge": "the metrics of a plain loss have no weights",
    **dict.fromkeys(
        ("no_reward_lost", "reward_shift_invariance", "reward_scale_equivariance", "small_groups_have_zero_advantage"),
        "a loss gets advantages, and no rewards",
    ),
}
_OF_LOG_PROBABILITIES = ("finite_at_extreme_ratios", "finite_at_impossible_tokens")
_NOT_WITH_NUMBERS = ("device_preserved", "vmap_equals_loop", "compiled_equals_eager")


def reasons(loss: PlainLoss, convention: Convention) -> Mapping[str, str]:
    """The laws that do not apply to `loss`, each with the reason."""
    found = dict(_NOT_OF_LOSSES)
    if "group" not in loss.reads:
        found["group_label_invariance"] = "no parameter has the labels of groups"
    if "advantage" not in loss.reads:
        found["reinforce_gradient_on_policy"] = "no parameter has advantages"
    if not any(FIELDS[name].unit == "nats" for name in (*loss.reads, *loss.outputs)):
        found |= dict.fromkeys(_OF_LOG_PROBABILITIES, "no parameter has log-probabilities")
    if convention.library == "verl":
        found |= dict.fromkeys(_NOT_WITH_NUMBERS, "a loss of verl returns metrics as numbers, which it waits for")
    return found


@law
def reinforce_gradient_on_policy(algorithm: Algorithm, batch: TensorDict) -> None:
    """On policy, the gradient with respect to `logp` is proportional to the advantage of the row, and raises good rows.

    The log-probabilities of all policies are equal, and all tokens of a row have the same advantage. How the loss is
    reduced is not known, so its gradient is compared with the one for advantages of 1, times the advantage. Common
    violations: a wrong sign, a term without the advantage, a detached ratio.
    """
    for objective, step in steps(algorithm, make_on_policy(batch)):
        mask = step["mask"]
        advantage = row_mean(step["advantage"], mask).unsqueeze(-1).expand(mask.shape)
        of_ones = _gradient(objective, with_fields(step, advantage=torch.ones_like(advantage)))
        for row, time in (mask & (of_ones >= 0)).nonzero().tolist()[:1]:
            found = f"gradient of logp for an advantage of 1: got {float(of_ones[row, time]):.3g}, expected below 0"
            raise ViolationError(found, (row, time))
        actual = _gradient(objective, with_fields(step, advantage=advantage))
        expected, actual = (torch.where(mask, gradient, 0) for gradient in (advantage * of_ones, actual))
        assert_same(Outcome({"gradient of logp": expected}, {}, {}), Outcome({"gradient of logp": actual}, {}, {}))


def _gradient(objective: PlainLoss, step: TensorDict) -> torch.Tensor:
    gradients = [value for name, value in run_objective(objective, step).rows.items() if name.endswith("of logp")]
    return gradients[0] if gradients else torch.zeros_like(step["logp"])


def laws_of_losses() -> tuple[Law, ...]:
    """The laws, in their order, with that of on-policy gradients as it is for a loss whose reduction is not known."""
    own = {reinforce_gradient_on_policy.__name__: reinforce_gradient_on_policy}
    return tuple(own.get(each.__name__, each) for each in LAWS)
