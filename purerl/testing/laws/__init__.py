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

from purerl.testing.laws import execution, gradients, invariance, purity, rewards
from purerl.testing.laws.law import Law

__all__ = ["LAWS", "SINGLE_BATCH_LAWS", "Law"]

LAWS: tuple[Law, ...] = (
    purity.reads_are_declared,
    purity.inputs_unchanged,
    purity.no_hidden_state,
    purity.dtype_preserved,
    purity.picklable,
    execution.device_preserved,
    execution.vmap_equals_loop,
    execution.compiled_equals_eager,
    invariance.padding_invariance,
    invariance.compaction_invariance,
    invariance.episode_invariance,
    invariance.permutation_equivariance,
    invariance.masked_row_invariance,
    invariance.group_label_invariance,
    invariance.masked_token_invariance,
    invariance.group_independence,
    invariance.microbatch_invariance,
    invariance.rank_invariance,
    invariance.metrics_merge,
    rewards.no_reward_lost,
    rewards.reward_shift_invariance,
    rewards.reward_scale_equivariance,
    rewards.small_groups_have_zero_advantage,
    gradients.zero_loss_without_counted_tokens,
    gradients.finite_at_extreme_ratios,
    gradients.finite_at_impossible_tokens,
    gradients.gradients_only_through_outputs,
    gradients.gradient_matches_finite_differences,
    gradients.reinforce_gradient_on_policy,
)

SINGLE_BATCH_LAWS: frozenset[Law] = frozenset(
    {purity.picklable, execution.device_preserved, execution.compiled_equals_eager}
)
"""Laws that are tested on one batch only: they are slow, and their result hardly depends on the batch."""
