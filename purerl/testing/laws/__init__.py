"""The laws: properties that an algorithm must have, tested on a batch.

A law is a function of an algorithm and a batch. It raises AssertionError with a message that says what was compared,
the value and the expected value. `LAWS` holds all laws. To add a law, write the function in one of these modules, and
add an algorithm that violates it to `property_tests/mutants.py`.

    purity        an algorithm reads what it declares, has no side effects, and can be pickled
    execution     it runs on any device, under `torch.func.vmap`, and compiled
    invariance    padding, row order, labels, masked-out values, the splitting of episodes and steps change no results
    rewards       rewards and advantages
    gradients     losses and gradients: without counted tokens, at extreme values, and on policy

Most laws compare the `Outcome` of a batch with the `Outcome` of a changed batch, with a tolerance of 1e-9. The float
fields of the batch should therefore be float64.
"""

from __future__ import annotations

from purerl.testing.laws.execution import compiled_equals_eager, device_preserved, vmap_equals_loop
from purerl.testing.laws.gradients import (
    finite_at_extreme_ratios,
    finite_at_impossible_tokens,
    gradient_matches_finite_differences,
    gradients_only_through_outputs,
    reinforce_gradient_on_policy,
    zero_loss_without_counted_tokens,
)
from purerl.testing.laws.invariance import (
    compaction_invariance,
    episode_invariance,
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
from purerl.testing.laws.purity import dtype_preserved, inputs_unchanged, no_hidden_state, picklable, reads_are_declared
from purerl.testing.laws.rewards import (
    no_reward_lost,
    reward_scale_equivariance,
    reward_shift_invariance,
    small_groups_have_zero_advantage,
)

__all__ = ["LAWS", "SINGLE_BATCH_LAWS", "Law"]

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
    episode_invariance,
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
    small_groups_have_zero_advantage,
    zero_loss_without_counted_tokens,
    finite_at_extreme_ratios,
    finite_at_impossible_tokens,
    gradients_only_through_outputs,
    gradient_matches_finite_differences,
    reinforce_gradient_on_policy,
)

SINGLE_BATCH_LAWS: frozenset[Law] = frozenset({picklable, device_preserved, compiled_equals_eager})
"""Laws that are tested on one batch only: they are slow, and their result hardly depends on the batch."""
