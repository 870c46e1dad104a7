"""Presets of libraries that cannot be installed: their formulas, written here once more from what was read."""

from __future__ import annotations

import torch

from purerl.algos import dr_grpo
from purerl.batch import with_fields
from purerl.config.presets import presets
from purerl.explain.algorithm import algorithm_named
from tests.algos.helpers import advantage_losses_and_gradients, example, group_with_rewards, with_advantage

ONE_GROUP = ((3, "..aax.a"), (3, ".aa"), (3, ".a.a.aa"), (3, ".aaaa"))


def _batch(name):
    algorithm = algorithm_named(name)
    return algorithm, example(algorithm, layout=ONE_GROUP)


def _token_mean(loss, mask):
    return torch.where(mask, loss, 0).sum() / mask.sum()


def test_every_preset_that_was_only_read_is_tested_here():
    assert {p.name for p in presets().values() if p.checked == "read"} == {"grpo@nemo_rl", "importance@prime_rl"}


def test_nemo_rl_divides_by_the_standard_deviation_of_the_other_rows():
    algorithm = algorithm_named("grpo@nemo_rl")
    fields = dict(old_logp=[[0.0] * 3] * 4, ref_logp=[[0.0] * 3] * 4)
    advantage = with_advantage(algorithm, group_with_rewards([1.0, 0.0, 0.0, 0.0], **fields))["advantage"]
    expected = torch.tensor([1.0, *[-(1 / 3) / (3**-0.5 + 1e-6)] * 3])
    torch.testing.assert_close(advantage[:, 1], expected)


def test_loss_of_nemo_rl():
    algorithm, batch = _batch("grpo@nemo_rl")
    advantage, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    logp = batch["logp"].clone().requires_grad_()
    ratio, x = (logp - batch["old_logp"]).exp(), batch["ref_logp"] - logp
    clipped = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    kl = (logp - logp.detach()).exp() * (x.exp() - 1 - x)
    expected = _token_mean(clipped + 0.01 * kl, batch["mask"])
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logp)[0])


def test_gradient_of_prime_rl():
    algorithm, batch = _batch("importance@prime_rl")
    rng = torch.Generator().manual_seed(0)
    current, rollout = torch.rand(2, *batch["mask"].shape, generator=rng, dtype=torch.float64).log()
    batch = with_fields(batch, logp=current, rollout_logp=rollout)
    advantage, _, gradient = advantage_losses_and_gradients(algorithm, batch)
    assert torch.equal(advantage, with_advantage(dr_grpo.algorithm(), batch)["advantage"])
    mask = batch["mask"]
    logp, mu = batch["logp"].clone().requires_grad_(), batch["rollout_logp"]
    kept = (logp.exp() - mu.exp()).abs() <= 0.3
    with_the_advantage = advantage * (logp - mu) > 0
    assert all((mask & kind).any() for kind in (kept, ~kept & with_the_advantage, ~kept & ~with_the_advantage))
    expected = _token_mean(torch.where(kept, -advantage * (logp - mu).exp(), 0), mask)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logp)[0])
