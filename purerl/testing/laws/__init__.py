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

from purerl.testing.laws.gradients import (
    extreme_ratios_are_finite,
    gradient_is_the_derivative,
    gradients_flow_through_outputs_only,
    nothing_counted_is_zero,
    on_policy_it_is_reinforce,
)
from purerl.testing.laws.invisible import (
    compaction_is_invisible,
    dealing_is_invisible,
    groups_are_apart,
    labels_are_names,
    masked_out_is_inert,
    metrics_merge,
    padding_is_invisible,
    permuting_rows_permutes,
    splitting_is_invisible,
    uncounted_rows_are_absent,
)
from purerl.testing.laws.law import Law
from purerl.testing.laws.purity import (
    dtype_is_kept,
    inputs_are_unchanged,
    it_travels,
    nothing_is_hidden,
    what_is_declared_is_read,
)
from purerl.testing.laws.rewards import no_reward_is_lost, scaling_rewards_scales, shifting_rewards_is_invisible
from purerl.testing.laws.ways import compiled_is_eager, device_is_kept, vmap_is_a_loop

__all__ = ["LAWS", "ONCE", "Law"]

LAWS: tuple[Law, ...] = (
    what_is_declared_is_read,
    inputs_are_unchanged,
    nothing_is_hidden,
    dtype_is_kept,
    it_travels,
    device_is_kept,
    vmap_is_a_loop,
    compiled_is_eager,
    padding_is_invisible,
    compaction_is_invisible,
    permuting_rows_permutes,
    uncounted_rows_are_absent,
    labels_are_names,
    masked_out_is_inert,
    groups_are_apart,
    splitting_is_invisible,
    dealing_is_invisible,
    metrics_merge,
    no_reward_is_lost,
    shifting_rewards_is_invisible,
    scaling_rewards_scales,
    nothing_counted_is_zero,
    extreme_ratios_are_finite,
    gradients_flow_through_outputs_only,
    gradient_is_the_derivative,
    on_policy_it_is_reinforce,
)

ONCE: frozenset[Law] = frozenset({it_travels, device_is_kept, compiled_is_eager})
"""Laws for which one batch is enough: they are about the algorithm more than about the batch, and take long."""
