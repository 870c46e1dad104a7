"""Algorithms that differ from GRPO in their surrogate, compared with their definitions."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict

from purerl.algos import (
    aspo,
    bapo,
    bpo,
    ce_gppo,
    cispo,
    clip_cov,
    dapo,
    double_sided_is,
    forking_tokens,
    gmpo,
    grpo,
    gspo_token,
    importance_po,
    kimi,
    kpop,
    m2po,
    pspo,
    raft,
    sapo,
    topr,
    up_grpo,
    vespo,
)
from purerl.algos.algebra import Algorithm, compute_loss, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.batch import with_fields
from tests.algos.helpers import ONE_TOKEN_ROWS, advantage_losses_and_gradients, example, loss_of, with_advantage


def policy_gradient_of(algorithm: Algorithm, batch: TensorDict) -> torch.Tensor:
    return advantage_losses_and_gradients(algorithm, batch)[-1]


def with_reduction(algorithm: Algorithm, reduce) -> Algorithm:
    [policy] = algorithm.objectives
    first, *other_terms = policy.terms
    return algorithm._replace(objectives=(policy._replace(terms=(first._replace(reduce=reduce), *other_terms)),))


def rows(batch: TensorDict, *names: str) -> list[list[torch.Tensor]]:
    """The values of the fields `names` at the counted tokens of each row with counted tokens."""
    mask = batch["mask"]
    return [[batch[name][i][mask[i]] for name in names] for i in range(len(mask)) if mask[i].any()]


def test_gmpo_equals_its_definition():
    batch = with_advantage(gmpo.algorithm(), example(gmpo.algorithm()))
    losses = []
    for logp, old, a in rows(batch, "logp", "old_logp", "advantage"):
        clipped = [min(float(d), 0.4) if a[0] > 0 else max(float(d), -0.4) for d in logp - old]
        losses.append(-a[0] * torch.tensor(clipped, dtype=torch.float64).mean().exp())
    torch.testing.assert_close(loss_of(gmpo.algorithm().objectives[0], batch), torch.stack(losses).mean())


def test_kimi_equals_its_definition():
    algorithm = kimi.algorithm(kimi.Config(beta=0.3))
    batch = with_advantage(algorithm, example(algorithm))
    losses = [
        -a[0] * logp.sum() + 0.15 * (logp - old).sum() ** 2
        for logp, old, a in rows(batch, "logp", "old_logp", "advantage")
    ]
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), torch.stack(losses).mean())


def test_kimi_has_the_gradient_of_the_regression_of_pmd_mean():
    algorithm = kimi.algorithm(kimi.Config(beta=0.3))
    batch = with_advantage(algorithm, example(algorithm))
    logp, mask = batch["logp"].clone().requires_grad_(), batch["mask"]
    regressed = torch.where(mask, logp - batch["old_logp"], 0).sum(-1)
    error = (regressed - batch["advantage"].where(mask, 0).sum(-1) / mask.sum(-1).clamp(min=1) / 0.3)[mask.any(-1)]
    [expected] = torch.autograd.grad(0.3 * (error.square() / 2).mean(), logp)
    torch.testing.assert_close(policy_gradient_of(algorithm, batch), expected)


def test_double_sided_is_drops_tokens_on_both_sides_for_either_sign_of_the_advantage():
    algorithm = double_sided_is.algorithm(double_sided_is.Config(clip_low=0.3, clip_high=0.4))
    batch = with_advantage(algorithm, example(algorithm, seed=3))
    mask, ratio = batch["mask"], (batch["logp"] - batch["rollout_logp"]).exp()
    weight = torch.where((ratio >= 0.7) & (ratio <= 1.4), ratio, 0)
    for sign in (-1, 1):
        for outside in (ratio < 0.7, ratio > 1.4):
            assert (outside & mask & (sign * batch["advantage"] > 0)).any()
    expected = torch.where(mask, -weight * batch["advantage"], 0) / mask.sum()
    torch.testing.assert_close(policy_gradient_of(algorithm, batch), expected)


def test_importance_po_penalizes_dropped_tokens_too():
    algorithm = importance_po.algorithm(importance_po.Config(divergence_bound=0.05, mismatch_coef=0.3))
    batch = with_advantage(algorithm, example(algorithm))
    mask, mu = batch["mask"], batch["rollout_logp"]
    logp = batch["logp"].clone().requires_grad_()
    ratio = (logp - mu).exp()
    is_near = (logp.exp() - mu.exp()).abs() <= 0.05
    assert (is_near & mask).any()
    assert (~is_near & mask).any()
    loss = torch.where(is_near, -batch["advantage"] * ratio, 0) + 0.3 * (logp - mu).square()
    [expected] = torch.autograd.grad(torch.where(mask, loss, 0).sum() / mask.sum(), logp)
    torch.testing.assert_close(policy_gradient_of(algorithm, batch), expected)


def test_kpop_rejects_a_frequent_token_and_keeps_a_rare_one_with_a_larger_ratio():
    batch = with_fields(example(kpop.algorithm(), ONE_TOKEN_ROWS), old_logp=torch.zeros(5, 2, dtype=torch.float64))
    old, rollout = torch.tensor([0.9, 0.9, 0.01, 0.03, 0.5]), torch.tensor([0.5, 0.8, 0.03, 0.01, 0.5])
    columns = {"old_logp": old.double().log(), "rollout_logp": rollout.double().log()}
    batch = with_fields(batch, **{name: value[:, None].expand(5, 2).clone() for name, value in columns.items()})
    assert with_advantage(kpop.algorithm(), batch)["mask"][:, 1].tolist() == [False, True, True, True, True]


def test_kpop_without_a_rejected_token_is_grpo():
    algorithm = kpop.algorithm(kpop.Config(max_divergence=1e6))
    batch = example(algorithm)
    actual, expected = (advantage_losses_and_gradients(each, batch) for each in (algorithm, grpo.algorithm()))
    torch.testing.assert_close(actual, expected)


def test_up_grpo_has_the_gradient_of_the_surrogates_in_the_paper():
    algorithm = up_grpo.algorithm(up_grpo.Config(ratio_cap=1.5))
    batch = with_advantage(algorithm, example(algorithm, seed=3))
    a, mask = batch["advantage"], batch["mask"]
    logp = batch["logp"].clone().requires_grad_()
    ratio = (logp - batch["old_logp"]).exp()
    dual_clip = torch.minimum(torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2)), -a * 1.5)
    loss = torch.where(a > 0, -a * (logp - logp.detach()).exp(), dual_clip)
    for selected in ((a > 0) & (ratio > 1.5), (a < 0) & (ratio < 0.8), (a < 0) & (ratio > 1.5)):
        assert (selected & mask).any()
    [expected] = torch.autograd.grad(torch.where(mask, loss, 0).sum() / mask.sum(), logp)
    torch.testing.assert_close(policy_gradient_of(algorithm, batch), expected)


def test_raft_learns_from_the_best_rows_of_each_group():
    algorithm = raft.algorithm(raft.Config(clip_high=0.1))
    batch = example(algorithm, seed=3)
    score = torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)
    counted, losses = batch["mask"].any(-1), []
    for i in counted.nonzero()[:, 0].tolist():
        group = score[counted & (batch["group"] == batch["group"][i])]
        if score[i] == group.max() > group.min():
            ratio = (batch["logp"] - batch["old_logp"])[i].exp()[batch["mask"][i]]
            losses.append(-ratio.clamp(max=1.1).mean())
    assert 0 < len(losses) < int(counted.sum())
    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert int((gradient.abs().sum(-1) > 0).sum()) <= len(losses)


def test_topr_gradient_equals_its_definition():
    batch = with_advantage(topr.algorithm(), example(topr.algorithm()))
    actual = policy_gradient_of(topr.algorithm(), batch)
    counted = int(batch["mask"].any(-1).sum())
    expected = [
        (-a if a[0] >= 0 else -a * min(float((logp - mu).sum().exp()), 1.0)) / counted
        for logp, mu, a in rows(batch, "logp", "rollout_logp", "advantage")
    ]
    torch.testing.assert_close(actual[batch["mask"]], torch.cat(expected))


def test_ce_gppo_has_the_gradient_of_the_surrogates_in_the_paper():
    batch = with_advantage(ce_gppo.algorithm(), example(ce_gppo.algorithm(), seed=3))
    a, old, mask = batch["advantage"], batch["old_logp"], batch["mask"]
    logp = batch["logp"].clone().requires_grad_()
    ratio = (logp - old).exp()
    normalized = ratio / ratio.detach()
    is_low, is_high = (ratio < 0.8) & (a < 0), (ratio > 1.2) & (a > 0)
    assert (is_low & mask).any()
    assert (is_high & mask).any()
    loss = torch.where(is_low, -0.75 * 0.8 * normalized * a, -ratio * a)
    loss = torch.where(is_high, -1.0 * 1.2 * normalized * a, loss)
    [expected] = torch.autograd.grad((loss * mask).sum() / mask.sum(), logp)
    torch.testing.assert_close(policy_gradient_of(ce_gppo.algorithm(), batch), expected * mask)


def test_ce_gppo_without_coefficients_has_the_gradient_of_clipped_tokens_of_ppo():
    algorithm = ce_gppo.algorithm(ce_gppo.Config(low_coef=0, high_coef=0, clip_high=0.28))
    batch = with_advantage(algorithm, example(algorithm, seed=3))
    torch.testing.assert_close(policy_gradient_of(algorithm, batch), policy_gradient_of(dapo.algorithm(), batch))


def test_aspo_has_the_gradient_of_the_surrogates_in_the_paper():
    batch = with_advantage(aspo.algorithm(), example(aspo.algorithm(), seed=2))
    a, old, mask = batch["advantage"], batch["old_logp"], batch["mask"]
    logp = batch["logp"].clone().requires_grad_()
    ratio = (logp - old).exp()
    detached = ratio.detach()
    flipped = torch.where(detached > 1.28, 0, old.exp() * logp.exp() / logp.exp().detach().square())
    clipped = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.28))
    loss = torch.where(a > 0, -a * flipped, clipped)
    is_capped = torch.where(a > 0, (1 / detached > 3), (detached > 3))
    loss = torch.where(is_capped, -3 * a * logp, loss)
    [expected] = torch.autograd.grad((loss * mask).sum() / mask.sum(), logp)
    torch.testing.assert_close(policy_gradient_of(aspo.algorithm(), batch), expected * mask)


def test_clip_cov_keeps_dropped_tokens_in_the_denominator():
    algorithm = clip_cov.algorithm(clip_cov.Config(fraction=0.2, cov_low=0.0, cov_high=1e6))
    batch = with_advantage(algorithm, example(algorithm))
    step, counts = prepare_step(algorithm.objectives[0], batch)
    dropped, mask = step["dropped"], batch["mask"]
    assert int(dropped.sum()) == int(0.2 * int(mask.sum())) > 0
    ratio = (batch["logp"] - batch["old_logp"]).exp()
    loss = -batch["advantage"] * ratio
    loss = torch.maximum(loss, -batch["advantage"] * ratio.clamp(0, 2))
    expected = torch.where(dropped, 0, loss)[mask].sum() / mask.sum()
    torch.testing.assert_close(compute_loss(algorithm.objectives[0], step, counts)[0], expected)


def test_dropped_fraction_is_a_metric():
    algorithm = forking_tokens.algorithm(forking_tokens.Config(top_fraction=0.5))
    batch = with_advantage(algorithm, example(algorithm))
    step, counts = prepare_step(algorithm.objectives[0], batch)
    dropped = compute_loss(algorithm.objectives[0], step, counts)[1]["dropped_fraction"]
    tokens = int(batch["mask"].sum())
    assert (int(dropped.total), int(dropped.weight)) == (tokens - tokens // 2, tokens)


def test_gspo_token_uses_the_advantage_of_each_token():
    algorithm = gspo_token.algorithm(gspo_token.Config(clip_low=1, clip_high=1e6))
    batch = with_advantage(algorithm, example(algorithm))
    expected = [
        -a * (logp - old).mean().exp() / len(a) for logp, old, a in rows(batch, "logp", "old_logp", "advantage")
    ]
    actual = policy_gradient_of(algorithm, batch)[batch["mask"]]
    torch.testing.assert_close(actual, torch.cat(expected) / len(expected))


def test_m2po_without_a_bound_is_the_unclipped_surrogate():
    algorithm = m2po.algorithm(m2po.Config(moment_bound=1e6))
    batch = with_advantage(algorithm, example(algorithm))
    ratio, mask = (batch["logp"] - batch["rollout_logp"]).exp(), batch["mask"]
    expected = (-batch["advantage"] * ratio)[mask].sum() / mask.sum()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), expected)


def test_m2po_bounds_the_second_moment():
    algorithm = m2po.algorithm()
    batch = with_advantage(algorithm, example(algorithm, seed=25))
    e = batch["old_logp"] - batch["rollout_logp"]
    candidates = batch["mask"] & (e * batch["advantage"] > 0)
    remaining = candidates & ~prepare_step(algorithm.objectives[0], batch)[0]["dropped"]
    assert float(e[remaining].square().mean()) <= 0.04 < float(e[candidates].square().mean())


def test_gradients_of_cispo_and_sapo_at_a_large_ratio():
    """The weight of CISPO is its cap, the weight of SAPO is close to 0."""
    batch = example(sapo.algorithm(), ONE_TOKEN_ROWS)
    batch = with_fields(batch, logp=batch["old_logp"] + 4)
    for module, weight in ((cispo, 5.0), (sapo, 0.0)):
        algorithm = with_reduction(module.algorithm(), token_mean)
        advantage = with_advantage(algorithm, batch)["advantage"]
        actual = policy_gradient_of(algorithm, batch) * int(batch["mask"].sum())
        torch.testing.assert_close(actual, -weight * advantage, atol=1e-9, rtol=0)


def test_kl_metric_matches_the_field_of_the_ratio():
    [old], [rollout] = cispo.algorithm().objectives, vespo.algorithm().objectives
    assert (old.reads, rollout.reads) == (("old_logp", "advantage"), ("rollout_logp", "advantage"))
    names = [[name for name, _ in dict(policy.metrics.keywords)["metrics"]] for policy in (old, rollout)]
    assert names == [["approx_kl", "weight", "entropy"], ["sampler_kl", "weight", "entropy"]]


# --- weights of complements, smoothed ratios, balanced bounds ----------------------------------------------------


def test_bpo_has_the_gradient_of_its_definition():
    """The detached weight of each token, and the mean over tokens and then over rows."""
    algorithm = bpo.algorithm(bpo.Config(eps=0.2, clip_low=0.1, clip_high=0.15, weight_cap=1.1))
    batch = with_advantage(algorithm, example(algorithm))
    expected, kinds = torch.zeros_like(batch["logp"]), set()
    counted = int(batch["mask"].any(-1).sum())
    for i, t in batch["mask"].nonzero().tolist():
        a, pi, mu = (
            float(x) for x in (batch["advantage"][i, t], batch["logp"][i, t].exp(), batch["rollout_logp"][i, t].exp())
        )
        w = (1.2 - mu) / (1.2 - pi)
        is_dropped = (a > 0 and w > 1.15) or (a < 0 and w < 0.9)
        kinds.add("dropped" if is_dropped else "capped" if w > 1.1 else "free")
        expected[i, t] = 0 if is_dropped else -a * min(w, 1.1) / int(batch["mask"][i].sum()) / counted
    assert kinds == {"dropped", "capped", "free"}
    torch.testing.assert_close(policy_gradient_of(algorithm, batch), expected)


def test_bpo_hardly_weights_rare_tokens_whatever_their_ratio():
    """From 1e-6 to 1e-3 the ratio is 1000, and the weight .999."""
    algorithm = bpo.algorithm()
    batch = example(algorithm, ONE_TOKEN_ROWS)
    batch["logp"], batch["rollout_logp"] = (
        torch.full_like(batch["logp"], 1e-3).log(),
        batch["logp"] * 0 + math.log(1e-6),
    )
    batch = with_advantage(algorithm, batch)
    on_policy = with_fields(batch, rollout_logp=batch["logp"])
    actual, expected = policy_gradient_of(algorithm, batch), policy_gradient_of(algorithm, on_policy)
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=0)
    assert float(expected.abs().max()) > 0.1


def test_pspo_is_grpo_without_a_clip_and_with_a_smaller_gradient():
    free, algorithm = (
        grpo.algorithm(grpo.Config(clip_low=1.0, clip_high=math.inf)),
        pspo.algorithm(pspo.Config(smoothing=0.3)),
    )
    batch = example(free)
    advantage, loss, gradient = advantage_losses_and_gradients(free, batch)
    same, smoothed, smaller = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close((same, smaller), (advantage, 0.7 * gradient))
    on_policy = loss_of(free.objectives[0], with_fields(with_advantage(free, batch), logp=batch["old_logp"]))
    torch.testing.assert_close(smoothed, 0.7 * loss + 0.3 * on_policy)


def _bounds_by_hand(batch: TensorDict, lows: list[float], highs: list[float], target: float) -> tuple[float, float]:
    """A loop as in the authors' code, which computes both sums for every candidate."""
    tokens = batch["mask"].nonzero().tolist()
    ratio = (batch["old_logp"] - batch["rollout_logp"]).exp()

    def is_balanced(low: float, high: float) -> bool:
        positive = sum(
            min(float(ratio[i, t]), high) * a for i, t in tokens if (a := float(batch["advantage"][i, t])) >= 0
        )
        negative = sum(
            max(float(ratio[i, t]), low) * -a for i, t in tokens if (a := float(batch["advantage"][i, t])) < 0
        )
        return positive >= target * negative

    low, high = 0, 0
    while not is_balanced(lows[low], highs[high]) and low + 1 < len(lows):
        low += 1
    while not is_balanced(lows[low], highs[high]) and high + 1 < len(highs):
        high += 1
    return lows[low], highs[high]


def test_bapo_raises_the_bounds_until_positive_tokens_contribute_enough():
    lows, highs = [0.6, 0.65, 0.7, 0.75, 0.8], [1.2 + 0.05 * k for k in range(17)]
    chosen = set()
    for seed in range(30):
        for target in (0.5, 0.9, 1.0, 1.1, 3.0):
            algorithm = bapo.algorithm(bapo.Config(target=target))
            batch = with_advantage(algorithm, example(algorithm, seed=seed))
            step, _ = prepare_step(algorithm.objectives[0], batch)
            expected = _bounds_by_hand(batch, lows, highs, target)
            for name, bound in zip(("ratio_low", "ratio_high"), expected, strict=True):
                torch.testing.assert_close(step[name], torch.full_like(step[name], bound))
            chosen.add(expected)
    assert {(0.6, 1.2), (0.8, highs[-1])} < chosen, "the first and the last pair, and others"
    assert any(0.6 < low < 0.8 for low, _ in chosen) or any(1.2 < high < 2.0 for _, high in chosen)


def test_bapo_clips_at_the_bounds_of_the_step():
    algorithm = bapo.algorithm()
    batch = with_advantage(algorithm, example(algorithm))
    step, _ = prepare_step(algorithm.objectives[0], batch)
    low, high = float(step["ratio_low"][0]), float(step["ratio_high"][0])
    losses = []
    for logp, mu, a in rows(batch, "logp", "rollout_logp", "advantage"):
        r = (logp - mu).exp()
        losses += torch.maximum(-a * r.clamp(max=3.0), -a * r.clamp(low, high)).tolist()
    torch.testing.assert_close(loss_of(algorithm.objectives[0], batch), torch.tensor(losses).double().mean())
