"""Broken algorithms, and the law that must catch each: bugs that were shipped elsewhere, put into GRPO, PPO or DPO.

A law that catches nothing proves nothing. `says` is a part of the message that the law gives, so that the mutant is
caught for what is wrong with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from purerl.algos import dpo, grpo
from purerl.algos.algebra import Algorithm, Term, Weighted, stateless, writes
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_mean, token_sum
from purerl.algos.parts.whiten import whiten

__all__ = ["MUTANTS", "Mutant"]

GRPO = grpo.algorithm()
(POLICY,) = GRPO.objectives
(SURROGATE,) = POLICY.terms
DPO = dpo.algorithm()


class Mutant(NamedTuple):
    """`algorithm` breaks `law`, whose message contains `says`."""

    name: str
    algorithm: Algorithm
    law: str
    says: str


def _with(**changes) -> Algorithm:
    """GRPO with another part in its objective."""
    return GRPO._replace(objectives=(POLICY._replace(**changes),))


def _with_term(**changes) -> Algorithm:
    return _with(terms=(SURROGATE._replace(**changes),))


def _with_second(loss, reduce=sequence_mean_of_token_mean, **changes) -> Algorithm:
    return _with(terms=(SURROGATE, Term("second", loss, reduce)), **changes)


def _with_advantage(advantage, *reads: str) -> Algorithm:
    return GRPO._replace(reads=("reward", *reads), advantage=stateless(writes("advantage", advantage)))


# --- advantages --------------------------------------------------------------------------------------------------


def _spread(score, batch):
    return torch.where(batch["mask"], score[:, None], 0)


def counted_rewards_only(batch):
    return _spread((batch["reward"] * batch["mask"]).sum(-1), batch)


def reward_of_last_action_token(batch):
    time = torch.arange(batch["action"].shape[1])
    last = (time * batch["action"]).amax(-1, keepdim=True)
    return _spread(batch["reward"].gather(1, last)[:, 0], batch)


def mean_over_padding(batch):
    reward = _spread(batch["reward"].sum(-1), batch)
    return torch.where(batch["mask"], reward - reward.mean(), 0)


def baseline_of_all_rows(batch):
    same = (batch["group"][:, None] == batch["group"]).to(batch["reward"])
    score = batch["reward"].sum(-1)
    return _spread(score - same @ score / same.sum(-1), batch)


def groups_by_position(batch):
    score = batch["reward"].sum(-1)
    pair = torch.arange(len(score)) // 2
    return _spread(score - torch.zeros_like(score).index_add(0, pair, score)[pair] / 2, batch)


def labels_as_indices(batch):
    score = batch["reward"].sum(-1)
    return _spread(score - torch.zeros_like(score).index_add(0, batch["group"], score)[batch["group"]], batch)


def sign_of_score(batch):
    return _spread((batch["reward"].sum(-1) > 0) * 2.0 - 1.0, batch)


def staleness_of_all_tokens(batch):
    stale = batch["version"].amax(-1) - batch["version"].amin(-1)
    return _spread(batch["reward"].sum(-1) / (1 + stale), batch)


def bootstrap_from_tools(batch):
    advantage = torch.zeros_like(batch["reward"])
    for time in reversed(range(batch["reward"].shape[1])):
        later = advantage[:, time + 1] if time + 1 < batch["reward"].shape[1] else 0
        advantage[:, time] = batch["reward"][:, time] + 0.9 * later
    return torch.where(batch["mask"], advantage, 0)


def centre_in_place(batch):
    return _spread(batch["reward"].sub_(batch["reward"].mean()).sum(-1), batch)


# --- losses ------------------------------------------------------------------------------------------------------


def unclamped_ratio(batch):
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"]).exp()


def whitened_in_the_loss(batch):
    return -whiten(batch["advantage"], batch["mask"]) * batch["logp"]


def probability_shifted_by_one(batch):
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"].roll(1, -1)).clamp(-20, 20).exp()


def noise_in_the_loss(batch):
    return -batch["advantage"] * batch["logp"] * torch.rand_like(batch["logp"])


def detached(batch):
    return -batch["advantage"] * batch["logp"].detach()


def softened(batch):
    return torch.nn.functional.softplus(batch["logp"])


def divergence_without_gradient(batch):
    return batch["advantage"] * k3(batch["logp"].detach(), batch["old_logp"])


def entropy_bonus(batch):
    return -0.1 * batch["entropy"]


# --- reductions --------------------------------------------------------------------------------------------------


def local_token_mean(loss, mask, counts):
    return token_sum(loss, mask, counts) / mask.sum().clamp(min=1)


def unmasked_numerator(loss, mask, counts):
    return loss.sum() / counts.tokens.clamp(min=1)


def mean_over_width(loss, mask, counts):
    return torch.where(mask, loss, 0).mean(-1).sum() / counts.rows.clamp(min=1)


def trimmed_to_longest(loss, mask, counts):
    return token_mean(loss[:, : mask.sum(-1).amax() + loss.shape[1]], mask, counts)


def unguarded_division(loss, mask, counts):
    return token_sum(loss, mask, counts) / counts.tokens


# --- the rest ----------------------------------------------------------------------------------------------------


def mean_of_means(batch):
    mask = batch["mask"]
    return {"logp": Weighted((batch["logp"] * mask).sum() / mask.sum().clamp(min=1), torch.tensor(1.0))}


class Address:
    """A callable that prints as its address."""

    def __call__(self, batch):
        return batch


MUTANTS = (
    Mutant("a read is not declared", _with(reads=("advantage",)), "what_is_declared_is_read", "KeyError"),
    Mutant("the reference is asked for nothing", _with(reads=(*POLICY.reads, "ref_logp")), "what_is_declared_is_read", "'ref_logp' is declared, but nothing"),
    Mutant("rewards are centred in place", _with_advantage(centre_in_place), "inputs_are_unchanged", "_writes"),
    Mutant("a hidden random number", _with_term(loss=noise_in_the_loss), "nothing_is_hidden", "gradient of logp"),
    Mutant("bool times float", _with_advantage(sign_of_score), "dtype_is_kept", "field advantage is torch.float32"),
    Mutant("a lambda", _with_term(loss=lambda batch: batch["logp"]), "it_travels", "ickl"),
    Mutant("a name that is an address", _with(prepare=Address()), "it_travels", "equal"),
    Mutant("the mean over padding", _with_advantage(mean_over_padding), "padding_is_invisible", "field advantage"),
    Mutant("mask not applied to the numerator", _with_term(loss=softened, reduce=unmasked_numerator), "padding_is_invisible", "'policy'"),
    Mutant("divided by the padded width", _with_term(reduce=mean_over_width), "padding_is_invisible", "'policy'"),
    Mutant("rewards of tool tokens lost", _with_advantage(reward_of_last_action_token), "compaction_is_invisible", "field advantage"),
    Mutant("bootstrapping from tool tokens", _with_advantage(bootstrap_from_tools), "compaction_is_invisible", "field advantage"),
    Mutant("shifted by one", _with_term(loss=probability_shifted_by_one), "compaction_is_invisible", "'policy'"),
    Mutant("groups by position", _with_advantage(groups_by_position), "permuting_rows_permutes", "field advantage"),
    Mutant("rejected rows in the baseline", _with_advantage(baseline_of_all_rows), "uncounted_rows_are_absent", "field advantage"),
    Mutant("labels as indices", _with_advantage(labels_as_indices), "labels_are_names", "Error"),
    Mutant("versions of tool tokens", _with_advantage(staleness_of_all_tokens, "version"), "masked_out_is_inert", "field advantage"),
    Mutant("divided by the tokens of the micro-batch", _with_term(reduce=local_token_mean), "splitting_is_invisible", "gradient of logp"),
    Mutant("whitened in the micro-batch", _with_term(loss=whitened_in_the_loss), "splitting_is_invisible", "'policy'"),
    Mutant("pairs may be cut", DPO._replace(objectives=(DPO.objectives[0]._replace(unit="row"),)), "splitting_is_invisible", "'policy'"),
    Mutant("the longest row of a rank without rows", _with_term(reduce=trimmed_to_longest), "dealing_is_invisible", "Error"),
    Mutant("metrics averaged without weights", _with(metrics=mean_of_means), "metrics_merge", "'logp'"),
    Mutant("0 divided by 0", _with_term(reduce=unguarded_division), "nothing_counted_is_zero", "finite"),
    Mutant("a ratio that overflows", _with_term(loss=unclamped_ratio), "extreme_ratios_are_finite", "finite"),
    Mutant("masked-out rewards lost", _with_advantage(counted_rewards_only), "no_reward_is_lost", "no effect"),
    Mutant("a bonus on what is only watched", _with_second(entropy_bonus), "gradients_flow_through_outputs_only", "entropy"),
    Mutant("the divergence under no_grad", _with_second(divergence_without_gradient), "gradient_is_the_derivative", "gradient of logp"),
    Mutant("no gradient", _with_term(loss=detached), "gradients_flow_through_outputs_only", "reach []"),
)
