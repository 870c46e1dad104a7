"""What estimators estimate, exactly: every sequence that a small policy can say, weighed with its probability.

The vocabulary has three tokens, one of which ends a sequence; no sequence is longer than three. A table of logits, a
row for each prefix, is the policy. So expectations are sums, and the expected gradient of a loss is compared with the
gradient that it is meant to have: it is exact, or parallel to it, or differs by a number that is recorded here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import (
    decoupled_ppo,
    deepseek_v3_2,
    dppo,
    icepop,
    k1,
    k2,
    k3,
    kl_reward,
    m2po,
    opd,
    rloo,
    sppo,
    topr,
    vespo,
)
from purerl.algos.algebra import Algorithm, bind, compute_advantages, compute_loss, prepare_step
from purerl.algos.parts.bypass import bypass_old_logp
from purerl.algos.parts.corrections import reject_rows, sequence_weight, token_weight, truncated_ratio, with_corrections
from purerl.algos.parts.divergences import absolute_log_ratio, importance_k3, straight_through, weighted_k2, weighted_k3
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.rows import at_last_action, row_mean
from purerl.batch import STRUCTURE, with_fields
from purerl.plugins import find, names
from purerl.testing import fields_of

END, LONGEST = 2, 3
PREFIXES = [p for n in range(LONGEST) for p in itertools.product(range(END), repeat=n)]
SEQUENCES = [(*p, END) for p in PREFIXES] + list(itertools.product(range(END), repeat=LONGEST))

# Position 0 is the prompt.
ACTION = torch.tensor([[False, *(t < len(s) for t in range(LONGEST))] for s in SEQUENCES])
TOKEN = torch.tensor([[0, *s, *[0] * (LONGEST - len(s))] for s in SEQUENCES])
PREFIX = torch.tensor([[0, *(PREFIXES.index(s[:t]) if t < len(s) else 0 for t in range(LONGEST))] for s in SEQUENCES])


def table(seed: int) -> Tensor:
    """The logits of a policy."""
    return torch.randn(len(PREFIXES), END + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POLICY, REFERENCE, SAMPLER = table(0), table(1), table(0) + 0.5 * table(2)
REWARD = torch.randn(len(SEQUENCES), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def log_probability(logits: Tensor) -> Tensor:
    """Of each token of each sequence; 0 elsewhere."""
    return torch.where(ACTION, logits.log_softmax(-1)[PREFIX, TOKEN], 0)


def probability(logits: Tensor) -> Tensor:
    """Of each sequence."""
    return log_probability(logits).sum(-1).exp()


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    logits = POLICY.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def test_there_is_no_other_sequence():
    assert len(SEQUENCES) == len(set(SEQUENCES)) == 15
    torch.testing.assert_close(probability(POLICY).sum(), torch.ones((), dtype=torch.float64))


# --- policy gradients --------------------------------------------------------------------------------------------


GROUPS = torch.cartesian_prod(*[torch.arange(len(SEQUENCES))] * 2)
"""Every group of two."""


def fields(logits: Tensor, sampler: Tensor) -> dict[str, Tensor]:
    """What a row of each sequence holds: all that any algorithm reads, but noise."""
    logp, old, ref = log_probability(logits), log_probability(POLICY), log_probability(REFERENCE)
    rows, every = torch.zeros(len(SEQUENCES), dtype=torch.int64), torch.zeros_like(old)
    chances = POLICY.softmax(-1)[PREFIX]
    return dict(
        attention_mask=ACTION | (torch.arange(LONGEST + 1) == 0), action=ACTION, mask=ACTION,
        logp=logp, old_logp=old, rollout_logp=log_probability(sampler), ref_logp=ref, reward_model_logp=ref,
        teacher_logp=ref, entropy=every, log_partition=every, old_value=EXPECTED[PREFIX], value=EXPECTED[PREFIX],
        old_entropy=torch.special.entr(chances).sum(-1), sum_pi_squared=chances.square().sum(-1),
        reward=at_last_action(REWARD, ACTION), score=REWARD, greedy_score=GREEDY.expand(rows.shape),
        components=torch.stack([REWARD, REWARD.square()], -1), role=rows, example=rows,
        turn=TOKEN, anchor=PREFIX,
    )  # fmt: skip


EXPECTED = torch.stack([
    (probability(POLICY) * REWARD)[starts].sum() / probability(POLICY)[starts].sum()
    for starts in (torch.tensor([s[: len(p)] == p for s in SEQUENCES]) for p in PREFIXES)
])  # fmt: skip
"""The value of each prefix: what a critic would say that knew everything."""

GREEDY = REWARD[probability(POLICY).argmax()]


def expected_gradient(algorithm: Algorithm, sampler: Tensor = POLICY) -> Tensor:
    """Of the loss of a group, in the mean over all groups that `sampler` may say."""
    weight = probability(sampler)[GROUPS].prod(-1)
    losses = torch.func.vmap(bind(_loss, algorithm=algorithm))
    return gradient(lambda logits: weight @ losses(_batch(logits, sampler, algorithm)))


def _batch(logits: Tensor, sampler: Tensor, algorithm: Algorithm) -> TensorDict:
    of_rows = {name: value[GROUPS] for name, value in fields(logits, sampler).items()}
    of_groups = dict(
        row=torch.arange(2).expand(GROUPS.shape),
        group=torch.zeros(GROUPS.shape, dtype=torch.int64),
        chosen=REWARD[GROUPS] > REWARD[GROUPS].flip(-1),
    )
    known = {**of_rows, **of_groups}
    return TensorDict({n: known[n] for n in (*STRUCTURE, *fields_of(algorithm))}, batch_size=GROUPS.shape)


def _loss(batch: TensorDict, *, algorithm: Algorithm) -> Tensor:
    policy = algorithm.objectives[-1]
    given = {name: batch[name] for name in (*policy.outputs, *policy.metric_outputs)}
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), batch.exclude(*given))
    step, counts = prepare_step(policy, after)
    return compute_loss(policy, with_fields(step, **given), counts)[0]


EXACT = gradient(lambda logits: -(probability(logits) * REWARD).sum())
"""The gradient of minus the expected reward."""


def against(found: Tensor, exact: Tensor) -> tuple[float, float]:
    """How long the part of `found` along `exact` is, in lengths of that; and the cosine between the two."""
    along = (found * exact).sum()
    return float(along / exact.square().sum()), float(along / (found.norm() * exact.norm()))


SETTINGS = {"dr_grpo": dict(norm_length=1), "pass_k": dict(k=1)}

ON_POLICY = {
    # The gradient of the expected reward.
    "rae": (1, 1),
    "reinforce": (1, 1),
    "remax": (1, 1),
    "rloo": (1, 1),
    # Parallel to it. A row is in its own baseline: (N - 1) / N. And beta, which is a weight of the whole.
    "dr_grpo": (1 / 2, 1),
    "kimi": (1 / 2, 1),
    "topr": (1 / 2, 1),
    "gvpo": (0.1, 1),
    # The gradient of something else, for they divide by the standard deviation of the group,
    "flowrl": (10.69288, 0.90218),
    "gdpo": (0.29040, 0.73920),
    "gmpo": (0.34633, 0.89351),
    "grpo": (0.34633, 0.89351),
    "gspo": (0.34633, 0.89351),
    "icepop": (0.34633, 0.89351),
    "luspo": (0.51114, 0.96704),
    "sapo": (0.34633, 0.89351),
    # by the lengths of rows,
    "deepseek_v3_2": (0.31510, 0.95116),
    "dro": (0.24568, 0.98995),
    "gpg": (0.24568, 0.98995),
    # by both,
    "aspo": (0.26221, 0.91412),
    "cispo": (0.26221, 0.91412),
    "dapo": (0.26221, 0.91412),
    "dppo_kl": (0.26221, 0.91412),
    "dppo": (0.26221, 0.91412),
    "kl_cov": (0.26221, 0.91412),
    "m2po": (0.26221, 0.91412),
    "pass_k": (0.26139, 0.97455),
    "vespo": (0.26221, 0.91412),
    # or by the standard deviation of the batch, here one group;
    "decoupled_ppo": (0.57771, 0.98299),
    "gspo_token": (0.57223, 0.87943),
    "ppo": (0.57771, 0.98299),
    "prime": (0.37944, 0.90528),
    "reinforce_plus_plus": (0.45547, 0.93765),
    "reinforce_plus_plus_baseline": (0.37944, 0.90528),
    "spo": (0.26221, 0.91412),
    "vapo": (0.70850, 0.99447),
    # because a row is in a baseline that weighs its rows, or compares its steps,
    "gigpo": (0.69614, 0.89901),
    "opo": (0.50775, 0.98903),
    "otb": (0.40854, 0.99020),
    # or because something else is what they are after: the best of two, the order of rewards, what is rarely right.
    "dpo": (0.08086, 0.97777),
    "forking_tokens": (0.03451, 0.57687),
    "ipo": (21.38738, 0.98182),
    "max_rl": (0.34976, 0.62043),
    "pass_k_leave_one_out": (0.37598, 0.95445),
    "spin": (0.07229, 0.96704),
    "sppo": (361.43128, 0.96704),
}
"""How long the mean gradient is along that of the expected reward, in lengths of that; and the cosine between them."""

ELSEWHERE = {
    "clip_cov": "it draws by noise",
    "opd": "it does without rewards: see test_opd_goes_for_the_teacher",
    "opd_top_k": "it does without samples: see tests/algos/test_distillation.py",
    "pf_ppo": "it draws by noise",
    "sft": "its rows are not the policy's",
}


def by_name(name: str) -> Algorithm:
    module = find("algorithm", name)
    return module.algorithm(module.Config(**SETTINGS.get(name, {})))


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy(name):
    assert against(expected_gradient(by_name(name)), EXACT) == pytest.approx(ON_POLICY[name], abs=1e-5, rel=1e-5)


def test_every_algorithm_is_recorded():
    missing = set(names("algorithm")) - {*ON_POLICY, *ELSEWHERE}
    assert {name: against(expected_gradient(by_name(name)), EXACT) for name in missing} == {}


def test_opd_goes_for_the_teacher():
    """With the sum over tokens, not their mean: the gradient of the divergence at each prefix."""
    [policy] = opd.algorithm().objectives
    summed = policy._replace(terms=(policy.terms[0]._replace(reduce=sequence_mean_of_token_sum),))
    exact = gradient(lambda logits: divergence(logits, POLICY, forward=REVERSE))
    torch.testing.assert_close(expected_gradient(opd.algorithm()._replace(objectives=(summed,))), exact)


def test_sppo_goes_for_the_win_rate_over_what_the_policy_was():
    """The factor: 2 eta, times (N - 1) / N since a row is among those that it is compared with."""
    was, higher, equal = probability(POLICY), REWARD[:, None] > REWARD, REWARD[:, None] == REWARD
    wins = higher.double() + equal.double() / 2
    exact = gradient(lambda logits: -(probability(logits) @ wins @ was))
    found = expected_gradient(sppo.algorithm(sppo.Config(eta=10)))
    assert against(found, exact) == pytest.approx((10, 1))


def _whole(ratio: Tensor) -> Tensor:
    return ratio


OFF_POLICY = {
    "nothing": (rloo.algorithm(), 1.30982, 0.99242),
    "a weight of the row": (with_corrections(rloo.algorithm(), sequence_weight(_whole)), 1, 1),
    "a weight of the token": (with_corrections(rloo.algorithm(), token_weight(_whole)), 1.03649, 0.97208),
    "a weight of the row, truncated": (
        with_corrections(rloo.algorithm(), sequence_weight(bind(truncated_ratio, ratio_cap=2.0))), 0.99755, 0.99960,
    ),
    "rejection by the geometric mean": (
        with_corrections(rloo.algorithm(), reject_rows(k1, row_mean, min_value=-0.2, max_value=0.2)), 0.05807, 0.55263,
    ),
    "icepop": (icepop.algorithm(), 0.23695, 0.84194),
    "decoupled_ppo": (decoupled_ppo.algorithm(), 0.44037, 0.95838),
    "sequence masking": (deepseek_v3_2.algorithm(), 0.27458, 0.77271),
    "dppo": (dppo.algorithm(), 0.19384, 0.61709),
    "m2po": (m2po.algorithm(), 0.18757, 0.60760),
    "topr": (topr.algorithm(), 0.60036, 0.98831),
    "vespo": (vespo.algorithm(), 0.28299, 0.92985),
}  # fmt: skip
"""Rows that another policy has sampled. Only RLOO with the weight of the whole row, and no less of it, is unbiased."""


@pytest.mark.parametrize(("algorithm", "factor", "cosine"), OFF_POLICY.values(), ids=OFF_POLICY)
def test_off_policy(algorithm, factor, cosine):
    found = expected_gradient(algorithm, SAMPLER)
    assert against(found, EXACT) == pytest.approx((factor, cosine), abs=1e-5)


def test_a_bypassed_ratio_is_that_of_the_policy_that_sampled():
    """So the surrogate of the ratio of whole rows is unbiased, which it is not against a policy that did not sample."""
    plain = rloo.algorithm()
    policy = plain.objectives[0]._replace(reads=("old_logp", "advantage"))
    ratio = policy._replace(terms=(policy.terms[0]._replace(loss=_whole_ratio),))
    algorithm = plain._replace(objectives=(ratio,))
    assert against(expected_gradient(bypass_old_logp(algorithm), SAMPLER), EXACT) == pytest.approx((1, 1), abs=1e-9)
    assert against(expected_gradient(algorithm, SAMPLER), EXACT) != pytest.approx((1, 1), abs=1e-2)


def _whole_ratio(batch: TensorDict) -> Tensor:
    """-A exp(sum_t (logp - old_logp)), at the first counted token of each row."""
    mask = batch["mask"]
    ratio = torch.where(mask, batch["logp"] - batch["old_logp"], 0).sum(-1, keepdim=True).exp()
    return torch.where(mask & (mask.cumsum(-1) == 1), -batch["advantage"] * ratio, 0)


# --- divergences -------------------------------------------------------------------------------------------------


def divergence(logits: Tensor, sampler: Tensor, *, forward: int) -> Tensor:
    """KL(policy || reference) of the next token, or with `forward` the other way round, summed over prefixes.

    A prefix counts as often as `sampler` comes to it: that it depends on the policy is left out of the gradient.
    """
    one, other = [x.log_softmax(-1) for x in (logits, REFERENCE)][:: -1 if forward else 1]
    at_prefix = (one.exp() * (one - other)).sum(-1)
    return probability(sampler) @ torch.where(ACTION, at_prefix[PREFIX], 0).sum(-1)


def mean_of(estimator: Callable, logits: Tensor, sampler: Tensor) -> Tensor:
    """The mean over sequences that `sampler` says of the sum of `estimator` over their tokens."""
    old, ref = log_probability(sampler), log_probability(REFERENCE)
    return probability(sampler) @ torch.where(ACTION, estimator(log_probability(logits), old, ref), 0).sum(-1)


def unweighed(estimator: Callable) -> Callable:
    return lambda logp, old, ref: estimator(logp, ref)


def k3_with_the_gradient_of_k2(logp: Tensor, old: Tensor, ref: Tensor) -> Tensor:
    return straight_through(k3(logp, ref), k2(logp, ref))


REVERSE, FORWARD = 0, 1

ESTIMATORS = {
    # name: estimator, its mean over the divergence, which divergence's gradient its gradient is compared with, the
    # factor and the cosine. On policy.
    "k2": (unweighed(k2), 1.13385, REVERSE, 1, 1),
    "k3": (unweighed(k3), 1, FORWARD, 1, 1),
    "absolute": (unweighed(absolute_log_ratio), 1.75302, REVERSE, 0.76138, 0.85140),
    "straight_through": (k3_with_the_gradient_of_k2, 1, REVERSE, 1, 1),
    "importance_k3": (importance_k3, 1, REVERSE, 1, 1),
    "weighed_k3": (weighted_k3, 1, FORWARD, 1, 1),
    "weighed_k2": (weighted_k2, 1.13385, REVERSE, 1, 1),
}

ESTIMATORS_OFF_POLICY = {
    "k2": (unweighed(k2), 1.00222, REVERSE, 0.83595, 0.92152),
    "k3": (unweighed(k3), 0.95744, FORWARD, 0.81532, 0.89880),
    "absolute": (unweighed(absolute_log_ratio), 1.55382, REVERSE, 0.20359, 0.20642),
    "importance_k3": (importance_k3, 1, REVERSE, 1, 1),
    "weighed_k3": (weighted_k3, 1, FORWARD, 1, 1),
    "weighed_k2": (weighted_k2, 1.09824, REVERSE, 1, 1),
}


def check(case: tuple, sampler: Tensor) -> None:
    estimator, value, forward, factor, cosine = case
    exact = divergence(POLICY, sampler, forward=REVERSE)
    assert float(mean_of(estimator, POLICY, sampler) / exact) == pytest.approx(value, abs=1e-5)
    found = gradient(lambda logits: mean_of(estimator, logits, sampler))
    expected = gradient(lambda logits: divergence(logits, sampler, forward=forward))
    assert against(found, expected) == pytest.approx((factor, cosine), abs=1e-5)


@pytest.mark.parametrize("case", ESTIMATORS.values(), ids=ESTIMATORS)
def test_estimator_on_policy(case):
    check(case, POLICY)


@pytest.mark.parametrize("case", ESTIMATORS_OFF_POLICY.values(), ids=ESTIMATORS_OFF_POLICY)
def test_estimator_off_policy(case):
    check(case, SAMPLER)


def test_k1_is_unbiased_and_has_no_gradient_in_the_mean():
    exact = divergence(POLICY, POLICY, forward=REVERSE)
    torch.testing.assert_close(mean_of(unweighed(k1), POLICY, POLICY), exact)
    assert gradient(lambda logits: mean_of(unweighed(k1), logits, POLICY)).abs().max() < 1e-12


def test_k1_in_the_reward_has_the_gradient_of_the_divergence_of_sequences():
    """Not with the prefix fixed: the whole gradient, of where the policy goes included."""
    zero, ref = torch.zeros(ACTION.shape, dtype=torch.float64), log_probability(REFERENCE)
    score = kl_reward(zero, log_probability(POLICY), ref, kl_reward_coef=0.5).sum(-1)
    found = gradient(lambda logits: -(probability(logits) * score).sum())
    exact = gradient(lambda logits: probability(logits) @ (log_probability(logits) - ref).sum(-1))
    torch.testing.assert_close(found, 0.5 * exact)
