"""The modifier `clipped_surrogate`: both ratios by their definition, on-policy gradients, refusals and laws."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import gpg, grpo, ipo, kimi, max_rl, opo, otb, pass_k_leave_one_out, rae, reinforce, remax, rloo, topr
from purerl.algos.algebra import compute_loss, prepare_step
from purerl.algos.modifiers import bypass, clipped_surrogate, dual_clip, kl_reward
from purerl.batch import with_fields
from purerl.errors import ConfigError
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, loss_of, with_advantage

from .laws import check_laws

BARE = [gpg, kimi, max_rl, opo, otb, pass_k_leave_one_out, rae, reinforce, remax, rloo]
CLIP = dict(clip_low=0.1, clip_high=0.3)


def modified(base=rloo, **settings):
    return clipped_surrogate.modify(clipped_surrogate.Config(**settings), base.algorithm())


@pytest.mark.parametrize("base", [rloo, gpg, reinforce])
def test_loss_and_gradient_with_the_ratio_of_a_token_equal_their_definition(base):
    algorithm = modified(base, **CLIP)
    batch = example(algorithm)
    mask, advantage = batch["mask"], with_advantage(base.algorithm(), batch)["advantage"]

    def loss_by_hand(logp):
        ratio = (logp - batch["old_logp"]).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.3))
        if base is gpg:
            return loss[mask].mean()
        return torch.stack([loss[i][mask[i]].sum() for i in range(len(mask)) if mask[i].any()]).mean()

    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(loss, loss_by_hand(batch["logp"]))
    torch.testing.assert_close(gradient, gradient_of(loss_by_hand, batch["logp"]))


@pytest.mark.parametrize("base", [rloo, opo, max_rl])
def test_loss_and_gradient_with_the_ratio_of_a_sequence_are_those_of_trl(base):
    algorithm = modified(base, ratio="sequence", **CLIP)
    number_clipped = 0
    for seed in range(4):
        batch = example(algorithm, seed=seed)
        mask, advantage = batch["mask"], with_advantage(base.algorithm(), batch)["advantage"].sum(-1)
        rows = [i for i in range(len(mask)) if mask[i].any()]
        advantage = {i: advantage[i] / mask[i].sum() for i in rows}  # the same value at each token

        def loss_by_hand(logp, batch=batch, mask=mask, rows=rows, advantage=advantage):
            losses = []
            for i in rows:
                ratio = (logp[i][mask[i]].sum() - batch["old_logp"][i][mask[i]].sum()).exp()
                losses.append(torch.maximum(-advantage[i] * ratio, -advantage[i] * ratio.clamp(0.9, 1.3)))
            return torch.stack(losses).mean()

        _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
        torch.testing.assert_close(loss, loss_by_hand(batch["logp"]))
        torch.testing.assert_close(gradient, gradient_of(loss_by_hand, batch["logp"]))
        number_clipped += sum(not gradient[i].any() for i in rows if advantage[i] != 0)
    assert number_clipped


def test_tokens_with_different_advantages_have_gradients_of_their_own():
    algorithm = modified(reinforce, ratio="sequence", clip_low=1.0, clip_high=1e6)
    batch = example(algorithm)
    mask, advantage = batch["mask"], with_advantage(algorithm, batch)["advantage"]
    ratio = torch.where(mask, batch["logp"] - batch["old_logp"], 0).sum(-1).exp()
    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    rows = mask.any(-1).sum()
    expected = torch.where(mask, -advantage * ratio[:, None], 0) / rows
    torch.testing.assert_close(gradient, expected)
    means = [expected[i].sum() / mask[i].sum() for i in range(len(mask)) if mask[i].any()]
    torch.testing.assert_close(loss, torch.stack(means).sum())


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("base", BARE)
def test_on_policy_the_gradient_is_that_of_the_algorithm(base, ratio):
    algorithm = modified(base, ratio=ratio)
    batch = example(algorithm)
    batch = with_fields(batch, old_logp=batch["logp"])
    gradient, expected = (advantage_losses_and_gradients(a, batch)[2] for a in (algorithm, base.algorithm()))
    assert expected.any()
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_metrics(ratio):
    algorithm = modified(ratio=ratio)
    [policy] = algorithm.objectives
    step, counts = prepare_step(policy, with_advantage(algorithm, example(algorithm)))
    metrics = compute_loss(policy, step, counts)[1]
    actual = {name: float(metric.total / metric.weight) for name, metric in metrics.items()}
    mask, x = step["mask"], torch.where(step["mask"], step["logp"] - step["old_logp"], 0)
    ratios = x.exp() if ratio == "token" else x.sum(-1, keepdim=True).exp().expand_as(x)
    advantage = step["advantage"]
    low, high = (advantage < 0) & (ratios < 0.8), (advantage > 0) & (ratios > 1.2)
    expected = {
        "approx_kl": float(((x.exp() - 1 - x)[mask]).mean()),
        "ratio": float(ratios[mask].mean()),
        "clip_fraction": float((low | high)[mask].double().mean()),
        "clip_fraction_low": float(low[mask].double().mean()),
        "clip_fraction_high": float(high[mask].double().mean()),
        "entropy": float(step["entropy"][mask].mean()),
        "loss/policy": float(loss_of(policy, step)),
    }
    assert actual == pytest.approx(expected)
    assert 0 < actual["clip_fraction"] < 1


# --- composition -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_dual_clip_bounds_the_clipped_surrogate_and_is_refused_before_it(ratio):
    with pytest.raises(ConfigError, match="has no effect"):
        dual_clip.modify(dual_clip.Config(ratio=1.5), rloo.algorithm())
    plain = modified(ratio=ratio)
    algorithm = dual_clip.modify(dual_clip.Config(ratio=1.5), plain)
    batch = example(algorithm)
    batch = with_fields(batch, old_logp=batch["logp"] - 1.0)  # ratios of e and more
    advantage, _, gradient = advantage_losses_and_gradients(algorithm, batch)
    unbounded = advantage_losses_and_gradients(plain, batch)[2]
    assert not gradient.any()
    assert torch.equal(unbounded != 0, advantage < 0)


def test_bypass_comes_after_the_clipped_surrogate():
    algorithm = bypass.modify(bypass.Config(), modified())
    batch = example(algorithm)
    assert "old_logp" not in batch.keys()
    expected = advantage_losses_and_gradients(modified(), with_fields(batch, old_logp=batch["rollout_logp"]))
    torch.testing.assert_close(advantage_losses_and_gradients(algorithm, batch), expected)


def test_after_bypass_it_is_refused():
    penalized = kl_reward.modify(kl_reward.Config(), rloo.algorithm())
    with pytest.raises(ConfigError, match="got:  an algorithm after bypass") as refused:
        clipped_surrogate.modify(clipped_surrogate.Config(), bypass.modify(bypass.Config(), penalized))
    assert "do:   apply clipped_surrogate before bypass" in str(refused.value)


# --- refusals and laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "got"), [(grpo, "a loss other than -A logp"), (topr, "a loss other"), (ipo, "the loss preference")]
)
def test_an_algorithm_without_a_bare_policy_gradient_is_refused(base, got):
    with pytest.raises(ConfigError, match=f"has no effect\n  got:  {got}"):
        modified(base)


@pytest.mark.parametrize("setting", [dict(clip_low=1.1), dict(clip_high=-0.1), dict(ratio="row")])
def test_setting_out_of_bounds_is_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        clipped_surrogate.Config(**setting)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("base", [rloo, gpg, reinforce])
def test_laws(base, ratio):
    exempt = {*clipped_surrogate.exemptions(clipped_surrogate.Config(ratio=ratio))}
    if base is not reinforce:  # the only one whose tokens have different advantages
        exempt -= {"gradient_matches_finite_differences"}
    exempt |= {*getattr(base, "EXEMPTIONS", {})}
    check_laws(modified(base, ratio=ratio), exempt=exempt)
