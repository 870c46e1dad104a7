"""The exact expectation of every estimator, computed from all sequences of a small policy.

The vocabulary has three tokens, and one of them ends a sequence. A sequence has at most three tokens. The policy is a
table with one row of logits for each prefix. There are 15 sequences, so an expectation is a sum over them, weighted by
their probabilities. The tests compare the expected gradient of a loss with the gradient of its objective. The two are
equal, or parallel, or differ by numbers that are recorded in this file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from expected_gradients import NOT_COMPARED, ON_POLICY
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import (
    a_star_po,
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
from purerl.algos.parts import divergences
from purerl.algos.parts.bypass import bypass_old_logp
from purerl.algos.parts.corrections import reject_rows, sequence_weight, token_weight, truncated_ratio, with_corrections
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.rows import at_last_action, row_mean
from purerl.batch import STRUCTURE, with_fields
from purerl.plugins import find, names
from purerl.testing import fields_of

END, MAX_LENGTH = 2, 3
PREFIXES = [p for n in range(MAX_LENGTH) for p in itertools.product(range(END), repeat=n)]
SEQUENCES = [(*p, END) for p in PREFIXES] + list(itertools.product(range(END), repeat=MAX_LENGTH))

# Position 0 is the prompt.
ACTION = torch.tensor([[False, *(t < len(s) for t in range(MAX_LENGTH))] for s in SEQUENCES])
TOKEN = torch.tensor([[0, *s, *[0] * (MAX_LENGTH - len(s))] for s in SEQUENCES])
PREFIX = torch.tensor(
    [[0, *(PREFIXES.index(s[:t]) if t < len(s) else 0 for t in range(MAX_LENGTH))] for s in SEQUENCES]
)


def random_logits(seed: int) -> Tensor:
    """The logits of a policy, [prefixes, vocabulary]."""
    return torch.randn(len(PREFIXES), END + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POLICY, REFERENCE = random_logits(0), random_logits(1)
ROLLOUT_POLICY = random_logits(0) + 0.5 * random_logits(2)
REWARD = torch.randn(len(SEQUENCES), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def token_logp(logits: Tensor) -> Tensor:
    """The log-probability of each token of each sequence, and 0 at other positions."""
    return torch.where(ACTION, logits.log_softmax(-1)[PREFIX, TOKEN], 0)


def sequence_probability(logits: Tensor) -> Tensor:
    """The probability of each sequence."""
    return token_logp(logits).sum(-1).exp()


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of `function` at the logits of the policy."""
    logits = POLICY.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def test_probabilities_of_all_sequences_sum_to_1():
    assert len(SEQUENCES) == len(set(SEQUENCES)) == 15
    torch.testing.assert_close(sequence_probability(POLICY).sum(), torch.ones((), dtype=torch.float64))


# --- policy gradients --------------------------------------------------------------------------------------------


GROUPS = torch.cartesian_prod(*[torch.arange(len(SEQUENCES))] * 2)
"""Every group of two sequences, as indices [groups, 2]."""


def row_fields(logits: Tensor, rollout_logits: Tensor) -> dict[str, Tensor]:
    """The fields of a batch with one row for each sequence: all fields that an algorithm reads, except `noise`."""
    logp, old_logp, ref_logp = token_logp(logits), token_logp(POLICY), token_logp(REFERENCE)
    row_zeros, token_zeros = torch.zeros(len(SEQUENCES), dtype=torch.int64), torch.zeros_like(old_logp)
    probabilities = POLICY.softmax(-1)[PREFIX]
    return dict(
        attention_mask=ACTION | (torch.arange(MAX_LENGTH + 1) == 0), action=ACTION, mask=ACTION,
        logp=logp, old_logp=old_logp, rollout_logp=token_logp(rollout_logits), ref_logp=ref_logp,
        reward_model_logp=ref_logp, teacher_logp=ref_logp, entropy=token_zeros, log_partition=token_zeros,
        old_value=VALUE[PREFIX], value=VALUE[PREFIX],
        old_entropy=torch.special.entr(probabilities).sum(-1), sum_pi_squared=probabilities.square().sum(-1),
        reward=at_last_action(REWARD, ACTION), score=REWARD, greedy_score=GREEDY_REWARD.expand(row_zeros.shape),
        optimal_value=OPTIMAL_VALUE.expand(row_zeros.shape),
        components=torch.stack([REWARD, REWARD.square()], -1), role=row_zeros, example=row_zeros,
        turn=TOKEN, anchor=PREFIX, progress=at_last_action(REWARD.square(), ACTION),
        correctness=(REWARD > 0).double(), ranking=REWARD.square(), hack=(REWARD > 1).double(),
    )  # fmt: skip


VALUE = torch.stack([
    (sequence_probability(POLICY) * REWARD)[has_prefix].sum() / sequence_probability(POLICY)[has_prefix].sum()
    for has_prefix in (torch.tensor([s[: len(p)] == p for s in SEQUENCES]) for p in PREFIXES)
])  # fmt: skip
"""The expected reward of each prefix under the policy: the output of a perfect critic."""

GREEDY_REWARD = REWARD[sequence_probability(POLICY).argmax()]


def value_under_reference(beta: float) -> Tensor:
    """The optimal value of the prompt with a KL penalty of weight `beta`."""
    return beta * (sequence_probability(REFERENCE).log() + REWARD / beta).logsumexp(-1)


OPTIMAL_VALUE = value_under_reference(0.5)


def expected_gradient(algorithm: Algorithm, rollout_logits: Tensor = POLICY) -> Tensor:
    """The expected gradient of the loss of a group of two rows that are sampled with `rollout_logits`."""
    weight = sequence_probability(rollout_logits)[GROUPS].prod(-1)
    losses = torch.func.vmap(bind(_loss, algorithm=algorithm))
    return gradient(lambda logits: weight @ losses(_batch(logits, rollout_logits, algorithm)))


def _batch(logits: Tensor, rollout_logits: Tensor, algorithm: Algorithm) -> TensorDict:
    """A batch [groups, 2] with all groups."""
    sequence_fields = {name: value[GROUPS] for name, value in row_fields(logits, rollout_logits).items()}
    group_fields = dict(
        row=torch.arange(2).expand(GROUPS.shape),
        group=torch.zeros(GROUPS.shape, dtype=torch.int64),
        chosen=REWARD[GROUPS] > REWARD[GROUPS].flip(-1),
    )
    available = {**sequence_fields, **group_fields}
    return TensorDict({n: available[n] for n in (*STRUCTURE, *fields_of(algorithm))}, batch_size=GROUPS.shape)


def _loss(batch: TensorDict, *, algorithm: Algorithm) -> Tensor:
    policy = algorithm.objectives[-1]
    outputs = {name: batch[name] for name in (*policy.outputs, *policy.metric_outputs)}
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), batch.exclude(*outputs))
    step, counts = prepare_step(policy, after)
    return compute_loss(policy, with_fields(step, **outputs), counts)[0]


EXACT = gradient(lambda logits: -(sequence_probability(logits) * REWARD).sum())
"""The gradient of the negative expected reward."""


def factor_and_cosine(actual: Tensor, exact: Tensor) -> tuple[float, float]:
    """<actual, exact> / <exact, exact> and <actual, exact> / (|actual| |exact|).

    The factor is the projection of `actual` on `exact`, as a multiple of `exact`.
    """
    product = (actual * exact).sum()
    return float(product / exact.square().sum()), float(product / (actual.norm() * exact.norm()))


SETTINGS = {"dr_grpo": dict(norm_length=1), "pass_k": dict(k=1)}


def make_algorithm(name: str) -> Algorithm:
    module = find("algorithm", name)
    return module.algorithm(module.Config(**SETTINGS.get(name, {})))


@pytest.mark.parametrize("name", ON_POLICY)
def test_expected_gradient_on_policy(name):
    actual = expected_gradient(make_algorithm(name))
    assert factor_and_cosine(actual, EXACT) == pytest.approx(ON_POLICY[name], abs=1e-5, rel=1e-5)


def test_every_algorithm_is_recorded():
    missing = set(names("algorithm")) - {*ON_POLICY, *NOT_COMPARED}
    assert {name: factor_and_cosine(expected_gradient(make_algorithm(name)), EXACT) for name in missing} == {}


def test_opd_minimizes_the_kl_to_the_teacher():
    """With a sum over tokens instead of a mean, the expected gradient is that of the KL divergence of all prefixes."""
    [policy] = opd.algorithm().objectives
    summed = policy._replace(terms=(policy.terms[0]._replace(reduce=sequence_mean_of_token_sum),))
    exact = gradient(lambda logits: kl_divergence(logits, POLICY, forward=REVERSE))
    torch.testing.assert_close(expected_gradient(opd.algorithm()._replace(objectives=(summed,))), exact)


def test_sppo_maximizes_the_win_rate_against_the_old_policy():
    """The factor is 2 eta (N - 1) / N = eta, because each row is also compared with itself."""
    old, higher, equal = sequence_probability(POLICY), REWARD[:, None] > REWARD, REWARD[:, None] == REWARD
    win_rate = higher.double() + equal.double() / 2
    exact = gradient(lambda logits: -(sequence_probability(logits) @ win_rate @ old))
    actual = expected_gradient(sppo.algorithm(sppo.Config(eta=10)))
    assert factor_and_cosine(actual, exact) == pytest.approx((10, 1))


BETA = 0.5


def test_a_star_po_on_policy_has_the_gradient_of_the_reward_with_a_kl_penalty():
    """2 beta times the gradient of -E[reward] + beta KL(policy || reference), for any value of the prompt."""

    def objective(logits: Tensor) -> Tensor:
        p, log_ratio = sequence_probability(logits), (token_logp(logits) - token_logp(REFERENCE)).sum(-1)
        return p @ (BETA * log_ratio - REWARD)

    exact = 2 * BETA * gradient(objective)
    torch.testing.assert_close(expected_gradient(a_star_po.algorithm(a_star_po.Config(beta=BETA))), exact)


def _optimal_loss_and_gradient(optimal_value: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The largest loss of a row of the optimal policy for BETA, and the gradient at its log-probabilities."""
    optimal_log_ratio = (REWARD - value_under_reference(BETA)) / BETA
    # All of the log-ratio of a row is at its first token.
    logp = token_logp(REFERENCE) + torch.where(ACTION & (ACTION.cumsum(-1) == 1), optimal_log_ratio.unsqueeze(-1), 0)
    algorithm = a_star_po.algorithm(a_star_po.Config(beta=beta))
    fields = row_fields(REFERENCE, REFERENCE) | {"optimal_value": optimal_value.expand(len(SEQUENCES))}
    fields |= {"row": torch.arange(len(SEQUENCES)), "group": torch.arange(len(SEQUENCES))}
    batch = TensorDict({n: fields[n] for n in (*STRUCTURE, *fields_of(algorithm))}, batch_size=[len(SEQUENCES)])
    _, batch = compute_advantages(algorithm, (), batch)
    step, counts = prepare_step(algorithm.objectives[0], batch)
    leaf = logp.clone().requires_grad_()
    loss, _ = compute_loss(algorithm.objectives[0], with_fields(step, logp=leaf), counts)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0].abs().max()


def test_the_optimal_policy_has_no_loss_in_a_star_po():
    """For rows of any policy: the loss of every row is 0. With another value or another beta it is not."""
    value = value_under_reference(BETA)
    log_ratio = (REWARD - value) / BETA
    torch.testing.assert_close(sequence_probability(REFERENCE) @ log_ratio.exp(), torch.ones((), dtype=torch.float64))
    zero = torch.zeros((), dtype=torch.float64)
    for actual in _optimal_loss_and_gradient(value, BETA):
        torch.testing.assert_close(actual, zero)
    mean = sequence_probability(REFERENCE) @ REWARD
    for other, beta in ((mean, BETA), (REWARD.amax(), BETA), (-value, BETA), (value, 2 * BETA)):
        assert all(actual > 1e-3 for actual in _optimal_loss_and_gradient(other, beta))


def _untruncated(ratio: Tensor) -> Tensor:
    return ratio


OFF_POLICY = {
    "no correction": (rloo.algorithm(), 1.30982, 0.99242),
    "row weight": (with_corrections(rloo.algorithm(), sequence_weight(_untruncated)), 1, 1),
    "token weight": (with_corrections(rloo.algorithm(), token_weight(_untruncated)), 1.03649, 0.97208),
    "truncated row weight": (
        with_corrections(rloo.algorithm(), sequence_weight(bind(truncated_ratio, ratio_cap=2.0))), 0.99755, 0.99960,
    ),
    "rejection by the geometric mean ratio": (
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
"""Algorithm, factor and cosine if another policy samples the rows.

Only RLOO with the untruncated row weight is unbiased.
"""


@pytest.mark.parametrize(("algorithm", "factor", "cosine"), OFF_POLICY.values(), ids=OFF_POLICY)
def test_expected_gradient_off_policy(algorithm, factor, cosine):
    actual = expected_gradient(algorithm, ROLLOUT_POLICY)
    assert factor_and_cosine(actual, EXACT) == pytest.approx((factor, cosine), abs=1e-5)


def test_bypass_old_logp_makes_the_sequence_ratio_unbiased():
    """The ratio to the rollout policy is an unbiased importance weight. The ratio to the old policy is not."""
    unmodified = rloo.algorithm()
    policy = unmodified.objectives[0]._replace(reads=("old_logp", "advantage"))
    with_ratio = policy._replace(terms=(policy.terms[0]._replace(loss=_sequence_ratio_loss),))
    algorithm = unmodified._replace(objectives=(with_ratio,))
    unbiased, biased = (expected_gradient(a, ROLLOUT_POLICY) for a in (bypass_old_logp(algorithm), algorithm))
    assert factor_and_cosine(unbiased, EXACT) == pytest.approx((1, 1), abs=1e-9)
    assert factor_and_cosine(biased, EXACT) != pytest.approx((1, 1), abs=1e-2)


def _sequence_ratio_loss(batch: TensorDict) -> Tensor:
    """-A exp(sum_t (logp - old_logp)), at the first counted token of each row."""
    mask = batch["mask"]
    ratio = torch.where(mask, batch["logp"] - batch["old_logp"], 0).sum(-1, keepdim=True).exp()
    return torch.where(mask & (mask.cumsum(-1) == 1), -batch["advantage"] * ratio, 0)


# --- KL estimators -----------------------------------------------------------------------------------------------


def kl_divergence(logits: Tensor, rollout_logits: Tensor, *, forward: int) -> Tensor:
    """KL(policy || reference) of the next token, or KL(reference || policy) with `forward`, summed over prefixes.

    Each prefix is weighted by its probability under `rollout_logits`. This probability has no gradient.
    """
    p, q = [x.log_softmax(-1) for x in (logits, REFERENCE)][:: -1 if forward else 1]
    at_prefix = (p.exp() * (p - q)).sum(-1)
    return sequence_probability(rollout_logits) @ torch.where(ACTION, at_prefix[PREFIX], 0).sum(-1)


def expected_estimate(estimator: Callable, logits: Tensor, rollout_logits: Tensor) -> Tensor:
    """The expectation, over sequences sampled with `rollout_logits`, of `estimator` summed over tokens."""
    old_logp, ref_logp = token_logp(rollout_logits), token_logp(REFERENCE)
    estimate = torch.where(ACTION, estimator(token_logp(logits), old_logp, ref_logp), 0)
    return sequence_probability(rollout_logits) @ estimate.sum(-1)


def unweighted(estimator: Callable) -> Callable:
    return lambda logp, old_logp, ref_logp: estimator(logp, ref_logp)


def k3_with_gradient_of_k2(logp: Tensor, old_logp: Tensor, ref_logp: Tensor) -> Tensor:
    return divergences.straight_through(k3(logp, ref_logp), k2(logp, ref_logp))


REVERSE, FORWARD = 0, 1

# Each case has the estimator, its expectation as a multiple of the reverse KL, and the direction of a KL divergence.
# The last two numbers are the factor and the cosine of the estimator's gradient relative to that of this divergence.
ON_POLICY_ESTIMATORS = {
    "k2": (unweighted(k2), 1.13385, REVERSE, 1, 1),
    "k3": (unweighted(k3), 1, FORWARD, 1, 1),
    "absolute": (unweighted(divergences.absolute_log_ratio), 1.75302, REVERSE, 0.76138, 0.85140),
    "straight_through": (k3_with_gradient_of_k2, 1, REVERSE, 1, 1),
    "importance_k3": (divergences.importance_k3, 1, REVERSE, 1, 1),
    "on_policy_k3": (unweighted(divergences.on_policy_k3), 1, REVERSE, 1, 1),
    "weighted_k3": (divergences.weighted_k3, 1, FORWARD, 1, 1),
    "weighted_k2": (divergences.weighted_k2, 1.13385, REVERSE, 1, 1),
}

OFF_POLICY_ESTIMATORS = {
    "k2": (unweighted(k2), 1.00222, REVERSE, 0.83595, 0.92152),
    "k3": (unweighted(k3), 0.95744, FORWARD, 0.81532, 0.89880),
    "absolute": (unweighted(divergences.absolute_log_ratio), 1.55382, REVERSE, 0.20359, 0.20642),
    "importance_k3": (divergences.importance_k3, 1, REVERSE, 1, 1),
    "weighted_k3": (divergences.weighted_k3, 1, FORWARD, 1, 1),
    "weighted_k2": (divergences.weighted_k2, 1.09824, REVERSE, 1, 1),
}


def check_estimator(case: tuple, rollout_logits: Tensor) -> None:
    estimator, value, forward, factor, cosine = case
    exact = kl_divergence(POLICY, rollout_logits, forward=REVERSE)
    assert float(expected_estimate(estimator, POLICY, rollout_logits) / exact) == pytest.approx(value, abs=1e-5)
    actual = gradient(lambda logits: expected_estimate(estimator, logits, rollout_logits))
    expected = gradient(lambda logits: kl_divergence(logits, rollout_logits, forward=forward))
    assert factor_and_cosine(actual, expected) == pytest.approx((factor, cosine), abs=1e-5)


@pytest.mark.parametrize("case", ON_POLICY_ESTIMATORS.values(), ids=ON_POLICY_ESTIMATORS)
def test_estimator_on_policy(case):
    check_estimator(case, POLICY)


@pytest.mark.parametrize("case", OFF_POLICY_ESTIMATORS.values(), ids=OFF_POLICY_ESTIMATORS)
def test_estimator_off_policy(case):
    check_estimator(case, ROLLOUT_POLICY)


def test_k1_is_unbiased_and_its_expected_gradient_is_zero():
    exact = kl_divergence(POLICY, POLICY, forward=REVERSE)
    torch.testing.assert_close(expected_estimate(unweighted(k1), POLICY, POLICY), exact)
    assert gradient(lambda logits: expected_estimate(unweighted(k1), logits, POLICY)).abs().max() < 1e-12


def test_k1_in_the_reward_has_the_gradient_of_the_kl_of_sequences():
    """The full gradient, including the dependence of the prefix probabilities on the policy."""
    zeros, ref_logp = torch.zeros(ACTION.shape, dtype=torch.float64), token_logp(REFERENCE)
    score = kl_reward(zeros, token_logp(POLICY), ref_logp, kl_reward_coef=0.5).sum(-1)
    actual = gradient(lambda logits: -(sequence_probability(logits) * score).sum())
    exact = gradient(lambda logits: sequence_probability(logits) @ (token_logp(logits) - ref_logp).sum(-1))
    torch.testing.assert_close(actual, 0.5 * exact)
