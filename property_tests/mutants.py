"""Broken algorithms, and the law that must catch each: bugs that were shipped elsewhere, put into GRPO or DPO.

A law that catches nothing proves nothing. With each mutant stands a part of the message that its law must give, so that
it is caught for what is wrong with it; that of a mutant that crashes names the error.
"""

from __future__ import annotations

import attrs
import torch

from purerl.algos import dpo, grpo
from purerl.algos.algebra import Algorithm, Term, Weighted, stateless, write_field
from purerl.algos.estimators.group_relative import group_centered_advantage, singleton_score
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_sum
from purerl.algos.parts.whiten import whiten
from purerl.batch import with_fields

__all__ = ["MUTANTS"]


GRPO, DPO = grpo.algorithm(), dpo.algorithm()
(POLICY,) = GRPO.objectives


def _objective(algorithm: Algorithm = GRPO, **changes) -> Algorithm:
    (objective,) = algorithm.objectives
    return algorithm._replace(objectives=(objective._replace(**changes),))


def _term(**changes) -> Algorithm:
    (term,) = POLICY.terms
    return _objective(terms=(term._replace(**changes),))


def _second_term(loss) -> Algorithm:
    return _objective(terms=(*POLICY.terms, Term("second", loss, sequence_mean_of_token_mean)))


def _transform(function, *reads: str) -> Algorithm:
    return GRPO._replace(reads=("reward", *reads), advantage=stateless(function))


def _score(function, *reads: str) -> Algorithm:
    """The advantage of a row is function(batch)."""
    return _transform(write_field("advantage", lambda batch: _spread(function(batch), batch)), *reads)


def _spread(score, batch):
    return torch.where(batch["mask"], score[:, None], 0)


# --- advantages --------------------------------------------------------------------------------------------------


def sum_of_counted_rewards(batch):
    return (batch["reward"] * batch["mask"]).sum(-1)


def reward_of_last_action_token(batch):
    last = (torch.arange(batch["action"].shape[1]) * batch["action"]).amax(-1, keepdim=True)
    return batch["reward"].gather(1, last)[:, 0]


def lost_rewards(batch):
    return -batch["reward"].sum(-1)


def centered_over_padding(batch):
    return batch["reward"].sum(-1) - batch["reward"].mean()


def centered_over_rejected_rows(batch):
    score, same = batch["reward"].sum(-1), (batch["group"][:, None] == batch["group"]).to(batch["reward"])
    return score - same @ score / same.sum(-1)


def centered_by_position(batch):
    score = batch["reward"].sum(-1)
    pair = torch.arange(len(score)) // 2
    return score - torch.zeros_like(score).index_add(0, pair, score)[pair] / 2


def centered_by_label_as_index(batch):
    score = batch["reward"].sum(-1)
    return score - torch.zeros_like(score).index_add(0, batch["group"], score)[batch["group"]]


def centered_by_parity(batch):
    score, parity = batch["reward"].sum(-1), batch["group"].remainder(2)
    return score - torch.zeros_like(score).index_add(0, parity, score)[parity]


def centered_by_a_loop(batch):
    score, baseline = batch["reward"].sum(-1), torch.zeros_like(batch["reward"][:, 0])
    for label in batch["group"].unique():
        mine = batch["group"] == label
        baseline = torch.where(mine, (score * mine).sum() / mine.sum(), baseline)
    return score - baseline


def centered_if_they_differ(batch):
    score = batch["reward"].sum(-1)
    return score - score.mean() if score.max() > score.min() else score


class Centered(torch.autograd.Function):
    """Its rule for vmap takes the mapped axis for the rows."""

    @staticmethod
    def forward(score):
        return score - score.mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, score):
        return score - score.mean(0), 0


def centered_by_a_function_of_its_own(batch):
    return Centered.apply(batch["reward"].sum(-1))


def centered_unless_compiled(batch):
    score = batch["reward"].sum(-1)
    return score if torch.compiler.is_compiling() else score - score.mean()


def centered_over_the_batch(batch):
    score, counted = batch["reward"].sum(-1), batch["mask"].any(-1)
    return score - (score * counted).sum() / counted.sum().clamp(min=1)


def best_possible_score(batch):
    return batch["reward"].sum(-1) / max(1.0, batch["reward"].abs().max().item())


def discounted_on_the_host(batch):
    return (batch["reward"] * 0.9 ** torch.arange(batch["reward"].shape[1])).sum(-1)


def raw_where_alone(batch):
    of_rows = batch["reward"].sum(-1), batch["group"], batch["mask"].any(-1)
    return singleton_score(*of_rows, estimator=group_centered_advantage)


def clipped_score(batch):
    return batch["reward"].sum(-1).clamp(-1, 1)


def sign(batch):
    return (batch["reward"].sum(-1) > 0) * 2.0 - 1.0


def less_the_staler(batch):
    return batch["reward"].sum(-1) / (1 + batch["version"].amax(-1) - batch["version"].amin(-1))


def returns_through_tools(batch):
    discounts = 0.9 ** torch.arange(batch["reward"].shape[1]).to(batch["reward"])
    returns = (batch["reward"] * discounts).flip(-1).cumsum(-1).flip(-1) / discounts
    return with_fields(batch, advantage=torch.where(batch["mask"], returns, 0))


def centered_in_place(batch):
    batch["reward"].sub_(batch["reward"].mean())
    return with_fields(batch, advantage=_spread(batch["reward"].sum(-1), batch))


def written_into_the_argument(batch):
    batch["advantage"] = _spread(batch["reward"].sum(-1), batch)
    return batch


# --- losses ------------------------------------------------------------------------------------------------------


def unclamped_ratio(batch):
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"]).exp()


def shifted_ratio(batch):
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"].roll(1, -1)).clamp(-20, 20).exp()


def squared_ratio(batch):
    return -batch["advantage"] * (2 * (batch["logp"] - batch["old_logp"])).clamp(-20, 20).exp()


def whitened_in_the_loss(batch):
    return -whiten(batch["advantage"], batch["mask"]) * batch["logp"]


def with_dropout(batch):
    return torch.nn.functional.dropout(-batch["advantage"] * batch["logp"])


def softplus(batch):
    return torch.nn.functional.softplus(batch["logp"])


def detached(batch):
    return -batch["advantage"] * batch["logp"].detach()


def divergence_without_gradient(batch):
    return k3(batch["logp"].detach(), batch["old_logp"])


def entropy_bonus(batch):
    return -0.1 * batch["entropy"]


# --- reductions --------------------------------------------------------------------------------------------------


def mean_of_the_part(loss, mask, counts):
    return token_sum(loss, mask, counts) / mask.sum().clamp(min=1)


def numerator_without_mask(loss, mask, counts):
    return loss.sum() / counts.tokens.clamp(min=1)


def mean_over_width(loss, mask, counts):
    return torch.where(mask, loss, 0).mean(-1).sum() / counts.rows.clamp(min=1)


def mean_over_rows_of_the_part(loss, mask, counts):
    return token_sum(loss, mask, counts) / max(1, len(mask))


def divided_by_the_longest_row(loss, mask, counts):
    return token_sum(loss, mask, counts) / mask.sum(-1).amax()


def divided_by_zero(loss, mask, counts):
    return token_sum(loss, mask, counts) / counts.tokens


# --- the rest ----------------------------------------------------------------------------------------------------


def mean_without_weight(batch):
    mask = batch["mask"]
    return {"logp": Weighted((batch["logp"] * mask).sum() / mask.sum().clamp(min=1), torch.tensor(1.0))}


@attrs.frozen(repr=False)
class NamedByAddress:
    def __call__(self, batch):
        return batch


MUTANTS: dict[str, dict[str, tuple[Algorithm, str]]] = {
    "reads_are_declared": {
        "a read is not declared": (_objective(reads=("advantage",)), "KeyError"),
        "a reference is scored for nothing": (_objective(reads=(*POLICY.reads, "ref_logp")), "'ref_logp' is declared"),
    },
    "inputs_unchanged": {
        "rewards are centered in place": (_transform(centered_in_place), "centered_in_place"),
        "a field is written into the argument": (_transform(written_into_the_argument), "written_into_the_argument"),
    },
    "no_hidden_state": {"dropout": (_term(loss=with_dropout), "gradient of logp")},
    "dtype_preserved": {"a bool times a float": (_score(sign), "field advantage is torch.float32")},
    "picklable": {
        "a lambda": (_term(loss=lambda batch: batch["logp"]), "PicklingError: "),
        "a description with an address": (_objective(prepare=NamedByAddress()), "another fingerprint"),
    },
    "device_preserved": {
        "a value is asked for": (_score(best_possible_score), "RuntimeError: Tensor.item() cannot be called on meta"),
        "a tensor is made elsewhere": (_score(discounted_on_the_host), "RuntimeError: Tensor on device cpu is not"),
    },
    "vmap_equals_loop": {
        "a loop over groups": (_score(centered_by_a_loop), "RuntimeError: vmap: "),
        "the mapped axis is taken for the rows": (_score(centered_by_a_function_of_its_own), "field advantage"),
    },
    "compiled_equals_eager": {
        "a branch on values": (_score(centered_if_they_differ), "Unsupported: Data-dependent branching"),
        "a branch on being compiled": (_score(centered_unless_compiled), "field advantage"),
    },
    "padding_invariance": {
        "the mean is over padding": (_score(centered_over_padding), "field advantage"),
        "the numerator is not masked": (_term(loss=softplus, reduce=numerator_without_mask), "loss"),
        "the padded width divides": (_term(reduce=mean_over_width), "gradient of logp"),
    },
    "compaction_invariance": {
        "rewards of tools are lost": (_score(reward_of_last_action_token), "field advantage"),
        "returns are discounted by tools": (_transform(returns_through_tools), "field advantage"),
        "probabilities are shifted by one": (_term(loss=shifted_ratio), "gradient of logp"),
    },
    "permutation_equivariance": {"groups go by position": (_score(centered_by_position), "field advantage")},
    "masked_row_invariance": {
        "rejected rows stay in the baseline": (_score(centered_over_rejected_rows), "field advantage")
    },
    "group_label_invariance": {
        "labels are indices": (_score(centered_by_label_as_index), "IndexError: "),
        "labels of one parity are one group": (_score(centered_by_parity), "field advantage"),
    },
    "masked_token_invariance": {"versions of tool tokens": (_score(less_the_staler, "version"), "field advantage")},
    "group_independence": {"the baseline is that of the batch": (_score(centered_over_the_batch), "field advantage")},
    "microbatch_invariance": {
        "the tokens of the part divide": (_term(reduce=mean_of_the_part), "gradient of logp"),
        "the part is whitened": (_term(loss=whitened_in_the_loss), "gradient of logp"),
        "pairs are cut": (_objective(DPO, unit="row"), "gradient of logp"),
    },
    "rank_invariance": {
        "a rank has no longest row": (_term(reduce=divided_by_the_longest_row), "RuntimeError: amax()"),
        "the rows of the part divide": (_term(reduce=mean_over_rows_of_the_part), "gradient of logp"),
    },
    "metrics_merge": {"metrics have no weights": (_objective(metrics=mean_without_weight), "'logp'")},
    "no_reward_lost": {
        "masked-out rewards are lost": (_score(sum_of_counted_rewards), "no effect"),
        "the advantage has the wrong sign": (_score(lost_rewards), "a reward more has an advantage of -"),
    },
    "reward_shift_invariance": {"a row alone keeps its score": (_score(raw_where_alone), "field advantage")},
    "reward_scale_equivariance": {"scores are clipped": (_score(clipped_score), "field advantage is neither")},
    "zero_loss_without_counted_tokens": {
        "0 divided by 0": (_term(reduce=divided_by_zero), "not finite"),
        "the numerator is not masked": (_term(loss=softplus, reduce=numerator_without_mask), "and nothing counts"),
    },
    "finite_at_extreme_ratios": {"a ratio overflows": (_term(loss=unclamped_ratio), "not finite")},
    "gradients_only_through_outputs": {
        "the gradient is stopped": (_term(loss=detached), "gradients reach []"),
        "a bonus on what is only watched": (_second_term(entropy_bonus), "gradients reach ['entropy', 'logp']"),
    },
    "gradient_matches_finite_differences": {
        "a divergence under no_grad": (_second_term(divergence_without_gradient), "gradient of logp")
    },
    "reinforce_gradient_on_policy": {"the ratio is squared": (_term(loss=squared_ratio), "gradient of logp")},
}
