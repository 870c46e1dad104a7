"""Broken algorithms (mutants), by the law that must detect each.

Most mutants are bugs that other libraries have shipped, applied to GRPO, DPO or a reward model. They show that a law
detects what it is for. Each mutant has a part of the message that the law must raise, so that it is not detected for
another reason. If the mutant crashes, this part contains the name of the exception.
"""

from __future__ import annotations

import attrs
import mutant_advantages as advantages
import torch

from purerl.algos import dpo, grpo, reward_model
from purerl.algos.algebra import Algorithm, Term, Weighted, of_fields, stateless, write_field
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.groups import prompt_weight
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_sum
from purerl.algos.parts.rows import last_counted
from purerl.algos.parts.whiten import whiten

__all__ = ["MUTANTS", "OWN_POLICY_GRADIENT"]


GRPO, DPO, REWARD_MODEL = grpo.algorithm(), dpo.algorithm(), reward_model.algorithm()
(POLICY,) = GRPO.objectives


def _with_objective(algorithm: Algorithm = GRPO, **changes) -> Algorithm:
    (objective,) = algorithm.objectives
    return algorithm._replace(objectives=(objective._replace(**changes),))


def _with_term(**changes) -> Algorithm:
    (term,) = POLICY.terms
    return _with_objective(terms=(term._replace(**changes),))


def _with_second_term(loss) -> Algorithm:
    return _with_objective(terms=(*POLICY.terms, Term("second", loss, sequence_mean_of_token_mean)))


def _with_transform(function, *reads: str) -> Algorithm:
    return GRPO._replace(reads=("reward", *reads), advantage=stateless(function))


def _with_row_advantage(function, *reads: str) -> Algorithm:
    """GRPO with the advantage function(batch), [rows], at the counted tokens of each row."""
    return _with_transform(write_field("advantage", lambda batch: advantages.broadcast(function(batch), batch)), *reads)


def _with_score_loss(loss) -> Algorithm:
    [objective] = REWARD_MODEL.objectives
    term = objective.terms[0]._replace(loss=lambda batch: advantages.broadcast(loss(batch), batch))
    return _with_objective(REWARD_MODEL, terms=(term,))


# --- losses ------------------------------------------------------------------------------------------------------


def score_at_padded_end(batch):
    return torch.where(batch["chosen"], -1, 1) * batch["classifier_score"][..., -1]


def mean_score_of_part_squared(batch):
    score = last_counted(batch["classifier_score"], batch["mask"])
    return score.mean(-1, keepdim=True).square().expand(score.shape)


def unclamped_ratio(batch):
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"]).exp()


def quotient_of_probabilities(batch):
    return -batch["advantage"] * (batch["logp"].exp() / batch["old_logp"].exp()).clamp(max=1e6)


def own_policy_gradient(batch):
    return -batch["advantage"] * batch["logp"]


def shifted_ratio(batch):
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"].roll(1, -1)).clamp(-20, 20).exp()


def squared_ratio(batch):
    return -batch["advantage"] * (2 * (batch["logp"] - batch["old_logp"])).clamp(-20, 20).exp()


def advantage_whitened_in_loss(batch):
    return -whiten(batch["advantage"], batch["mask"]) * batch["logp"]


def dropout(batch):
    return torch.nn.functional.dropout(-batch["advantage"] * batch["logp"])


def softplus(batch):
    return torch.nn.functional.softplus(batch["logp"])


def detached_logp(batch):
    return -batch["advantage"] * batch["logp"].detach()


def kl_without_gradient(batch):
    return k3(batch["logp"].detach(), batch["old_logp"])


def entropy_bonus(batch):
    return -0.1 * batch["entropy"]


# --- reductions --------------------------------------------------------------------------------------------------


def mean_over_tokens_of_part(loss, mask, counts):
    return token_sum(loss, mask, counts) / mask.sum().clamp(min=1)


def numerator_without_mask(loss, mask, counts):
    return loss.sum() / counts.tokens.clamp(min=1)


def mean_over_padded_width(loss, mask, counts):
    return torch.where(mask, loss, 0).mean(-1).sum() / counts.rows.clamp(min=1)


def mean_over_rows_of_part(loss, mask, counts):
    return token_sum(loss, mask, counts) / max(1, len(mask))


def mean_over_tokens_of_row(loss, mask, counts):
    return (torch.where(mask, loss, 0).sum(-1) / mask.sum(-1).clamp(min=1)).sum() / counts.rows.clamp(min=1)


def divided_by_max_row_length(loss, mask, counts):
    return token_sum(loss, mask, counts) / mask.sum(-1).amax()


def division_by_zero(loss, mask, counts):
    return token_sum(loss, mask, counts) / counts.tokens


# --- other functions ---------------------------------------------------------------------------------------------


def mean_with_constant_weight(batch):
    mask = batch["mask"]
    return {"logp": Weighted((batch["logp"] * mask).sum() / mask.sum().clamp(min=1), torch.tensor(1.0))}


@attrs.frozen(repr=False)
class ReprWithAddress:
    def __call__(self, batch):
        return batch


OWN_POLICY_GRADIENT = _with_term(loss=own_policy_gradient)
"""An algorithm whose loss uses `logp` without a function of the package. It satisfies every law."""

MUTANTS: dict[str, dict[str, tuple[Algorithm, str]]] = {
    "reads_are_declared": {
        "undeclared_read": (_with_objective(reads=("advantage",)), "KeyError"),
        "unused_declaration": (
            _with_objective(reads=(*POLICY.reads, "ref_logp")),
            "field 'ref_logp' is declared, but no function reads it",
        ),
    },
    "inputs_unchanged": {
        "in_place_operation": (_with_transform(advantages.centered_in_place), "centered_in_place"),
        "field_written_into_argument": (_with_transform(advantages.written_into_argument), "written_into_argument"),
    },
    "no_hidden_state": {"dropout": (_with_term(loss=dropout), "gradient of logp")},
    "dtype_preserved": {
        "bool_times_float": (_with_row_advantage(advantages.sign_of_score), "field advantage: got torch.float32"),
        "field_of_another_dtype": (
            _with_objective(
                prepare=write_field("prompt_weight", of_fields(prompt_weight, "group", "mask")),
                reads=(*POLICY.reads, "prompt_weight"),
            ),
            "field prompt_weight: got torch.float64",
        ),
    },
    "picklable": {
        "lambda": (_with_term(loss=lambda batch: batch["logp"]), "PicklingError: "),
        "repr_with_address": (_with_objective(prepare=ReprWithAddress()), "fingerprint in another process"),
    },
    "device_preserved": {
        "item": (
            _with_row_advantage(advantages.divided_by_largest_reward),
            "RuntimeError: Tensor.item() cannot be called on meta",
        ),
        "tensor_without_device": (
            _with_row_advantage(advantages.discounted_on_cpu),
            "RuntimeError: Tensor on device cpu is not",
        ),
    },
    "vmap_equals_loop": {
        "loop_over_groups": (_with_row_advantage(advantages.centered_in_loop_over_groups), "RuntimeError: vmap: "),
        "mapped_axis_used_as_rows": (_with_row_advantage(advantages.centered_by_autograd_function), "field advantage"),
    },
    "compiled_equals_eager": {
        "branch_on_values": (
            _with_row_advantage(advantages.centered_if_scores_differ),
            "Unsupported: Data-dependent branching",
        ),
        "branch_on_is_compiling": (_with_row_advantage(advantages.centered_unless_compiled), "field advantage"),
    },
    "padding_invariance": {
        "mean_over_padding": (_with_row_advantage(advantages.centered_over_padding), "field advantage"),
        "numerator_without_mask": (_with_term(loss=softplus, reduce=numerator_without_mask), "loss"),
        "division_by_padded_width": (_with_term(reduce=mean_over_padded_width), "gradient of logp"),
        "score_at_padded_end": (_with_score_loss(score_at_padded_end), "gradient of classifier_score"),
    },
    "compaction_invariance": {
        "tool_rewards_lost": (_with_row_advantage(advantages.reward_of_last_action_token), "field advantage"),
        "discount_over_tool_tokens": (_with_transform(advantages.returns_over_all_tokens), "field advantage"),
        "old_logp_shifted_by_one": (_with_term(loss=shifted_ratio), "gradient of logp"),
    },
    "episode_invariance": {
        "score_over_length_of_context": (
            _with_row_advantage(advantages.score_over_length_of_context),
            "field advantage",
        ),
        "mean_over_tokens_of_row": (_with_term(reduce=mean_over_tokens_of_row), "gradient of logp"),
    },
    "permutation_equivariance": {
        "groups_by_position": (_with_row_advantage(advantages.centered_by_position), "field advantage")
    },
    "masked_row_invariance": {
        "rejected_rows_in_baseline": (_with_row_advantage(advantages.centered_over_rejected_rows), "field advantage")
    },
    "group_label_invariance": {
        "label_as_index": (_with_row_advantage(advantages.centered_by_label_as_index), "IndexError: "),
        "label_modulo_two": (_with_row_advantage(advantages.centered_by_label_parity), "field advantage"),
    },
    "masked_token_invariance": {
        "versions_of_tool_tokens": (
            _with_row_advantage(advantages.score_over_version_range, "version"),
            "field advantage",
        )
    },
    "group_independence": {
        "baseline_over_batch": (_with_row_advantage(advantages.centered_over_batch), "field advantage")
    },
    "microbatch_invariance": {
        "division_by_tokens_of_part": (_with_term(reduce=mean_over_tokens_of_part), "gradient of logp"),
        "whitening_in_loss": (_with_term(loss=advantage_whitened_in_loss), "gradient of logp"),
        "pairs_split": (_with_objective(DPO, unit="row"), "gradient of logp"),
        "scores_centered_over_part": (_with_score_loss(mean_score_of_part_squared), "gradient of classifier_score"),
    },
    "rank_invariance": {
        "max_over_empty_rank": (_with_term(reduce=divided_by_max_row_length), "RuntimeError: amax()"),
        "division_by_rows_of_part": (_with_term(reduce=mean_over_rows_of_part), "gradient of logp"),
    },
    "metrics_merge": {"constant_weight": (_with_objective(metrics=mean_with_constant_weight), "'logp'")},
    "no_reward_lost": {
        "masked_out_rewards_lost": (_with_row_advantage(advantages.sum_of_counted_rewards), "got no change"),
        "wrong_sign": (
            _with_row_advantage(advantages.negative_score),
            "advantage of the row with a reward of 1: got -",
        ),
    },
    "reward_shift_invariance": {
        "score_in_group_of_one": (_with_row_advantage(advantages.score_in_group_of_one), "field advantage")
    },
    "reward_scale_equivariance": {
        "clipped_score": (
            _with_row_advantage(advantages.clipped_score),
            "field advantage after rewards are multiplied by 8",
        )
    },
    "small_groups_have_zero_advantage": {
        "size_not_declared": (GRPO._replace(min_group_size=1), "largest advantage at group size 1: got 0"),
        "declared_size_too_large": (GRPO._replace(min_group_size=3), "largest advantage at group size 2: got "),
        "score_in_group_of_one": (
            _with_row_advantage(advantages.score_in_group_of_one)._replace(min_group_size=2),
            "largest advantage at group size 1: got ",
        ),
        "advantage_always_zero": (
            _with_row_advantage(advantages.zero_advantage)._replace(min_group_size=2),
            "largest advantage at group size 2: got 0",
        ),
        "declared_without_advantage": (DPO._replace(min_group_size=2), "the algorithm writes no advantage"),
    },
    "zero_loss_without_counted_tokens": {
        "division_by_zero": (_with_term(reduce=division_by_zero), "got nan, expected finite values"),
        "numerator_without_mask": (
            _with_term(loss=softplus, reduce=numerator_without_mask),
            "in a step without counted tokens, expected 0",
        ),
    },
    "finite_at_extreme_ratios": {"ratio_overflows": (_with_term(loss=unclamped_ratio), "expected finite values")},
    "finite_at_impossible_tokens": {
        "quotient_of_probabilities": (_with_term(loss=quotient_of_probabilities), "got nan, expected finite values")
    },
    "gradients_only_through_outputs": {
        "stopped_gradient": (_with_term(loss=detached_logp), "got gradients for []"),
        "loss_of_watched_field": (_with_second_term(entropy_bonus), "got gradients for ['entropy', 'logp']"),
    },
    "gradient_matches_finite_differences": {
        "kl_without_gradient": (_with_second_term(kl_without_gradient), "gradient of logp")
    },
    "reinforce_gradient_on_policy": {"squared_ratio": (_with_term(loss=squared_ratio), "gradient of logp")},
}
