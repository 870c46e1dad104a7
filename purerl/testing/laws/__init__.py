"""The laws: what an algorithm has to satisfy, whatever it computes.

A law is a function of an algorithm and a batch. It raises AssertionError, and says what differs, where, and by how
much. `LAWS` holds all of them. To add one, write the function in the room that it belongs to, and an algorithm that it
must catch in `property_tests/mutants.py`.

    purity       what an algorithm touches: what it declares, and nothing else
    ways         the ways in which it may be run: on any device, mapped over further axes, compiled
    invisible    what it does not notice: how a batch is laid out, how a step is cut, what lies beside
    rewards      what rewards are to it
    gradients    losses and gradients: where nothing counts, at extremes, where no policy has moved

Most of them compare the `Outcome` of a batch with that of a changed one. Numbers have to agree to 1e-9: give batches of
float64.
"""

from __future__ import annotations

from purerl.testing.laws.execution import compiled_equals_eager, device_preserved, vmap_equals_loop
from purerl.testing.laws.gradients import (
    finite_at_extreme_ratios,
    gradient_matches_finite_differences,
    gradients_only_through_outputs,
    reinforce_gradient_on_policy,
    zero_loss_without_counted_tokens,
)
from purerl.testing.laws.invariance import (
    compaction_invariance,
    group_independence,
    group_label_invariance,
    masked_row_invariance,
    masked_token_invariance,
    metrics_merge,
    microbatch_invariance,
    padding_invariance,
    permutation_equivariance,
    rank_invariance,
)
from purerl.testing.laws.law import Law
from purerl.testing.laws.purity import (
    dtype_preserved,
    inputs_unchanged,
    no_hidden_state,
    picklable,
    reads_are_declared,
)
from purerl.testing.laws.rewards import no_reward_lost, reward_scale_equivariance, reward_shift_invariance

__all__ = ["LAWS", "ONCE", "Law"]

LAWS: tuple[Law, ...] = (
    reads_are_declared,
    inputs_unchanged,
    no_hidden_state,
    dtype_preserved,
    picklable,
    device_preserved,
    vmap_equals_loop,
    compiled_equals_eager,
    padding_invariance,
    compaction_invariance,
    permutation_equivariance,
    masked_row_invariance,
    group_label_invariance,
    masked_token_invariance,
    group_independence,
    microbatch_invariance,
    rank_invariance,
    metrics_merge,
    no_reward_lost,
    reward_shift_invariance,
    reward_scale_equivariance,
    zero_loss_without_counted_tokens,
    finite_at_extreme_ratios,
    gradients_only_through_outputs,
    gradient_matches_finite_differences,
    reinforce_gradient_on_policy,
)

ONCE: frozenset[Law] = frozenset({picklable, device_preserved, compiled_equals_eager})
"""Laws for which one batch is enough: they are about the algorithm more than about the batch, and take long."""
