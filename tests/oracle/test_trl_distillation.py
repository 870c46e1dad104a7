"""Distillation against TRL's trainers, which run here without a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from purerl.batch import with_fields
from purerl.explain.algorithm import algorithm_named

from .agreement import assert_agree
from .compositions import Result, completions, result_of

pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
gkd_trainer = pytest.importorskip("trl.experimental.gkd.gkd_trainer")
iw_opd_trainer = pytest.importorskip("trl.experimental.iw_opd.iw_opd_trainer")

SEEDS = range(10)
VOCABULARY = 5


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """TRL makes tensors of the default dtype from numbers. Here they are float64, so that rounding hides nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def distributions(seed: int, shape: torch.Size) -> list[torch.Tensor]:
    """Log-probabilities of the whole vocabulary under the policy and under the teacher."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, VOCABULARY, generator=rng).log_softmax(-1) for _ in range(2)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.5, 0.1, 0.9])
def test_gkd_over_the_whole_vocabulary_has_the_value_and_gradient_of_trl(beta: float, seed: int) -> None:
    """The rest has a probability of 1e-7 under both models here, which cancels, and none in TRL."""
    batch = completions(seed)
    logp, teacher = distributions(seed, batch["mask"].shape)
    logp.requires_grad_()
    labels = torch.where(batch["mask"], 0, -100)
    loss = gkd_trainer.GKDTrainer.generalized_jsd_loss(logp, teacher, labels, beta=beta)
    [gradient] = torch.autograd.grad(loss, logp)
    fields = {"topk_logp": logp.detach(), "teacher_topk_logp": teacher, "entropy": batch["entropy"]}
    ours = result_of(algorithm_named("gkd", [f"beta={beta}"]), with_fields(batch, **fields))
    # TRL normalizes what it gets, so its gradient has no part along the probabilities of the policy.
    normalized = ours.gradient - logp.detach().exp() * ours.gradient.sum(-1, keepdim=True)
    assert_agree("TRL", ours._replace(gradient=normalized), Result(ours.advantage, loss.detach(), gradient))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.5, 0.1, 0.9])
def test_gkd_of_some_tokens_has_the_value_and_gradient_of_trl(beta: float, seed: int) -> None:
    """TRL's divergence of k tokens and a tail, with the tokens that the teacher selects."""
    batch = completions(seed)
    policy, teacher = (x[..., :3] for x in distributions(seed, batch["mask"].shape))
    logp = policy.clone().requires_grad_()
    support = torch.ones_like(logp, dtype=torch.bool)
    pairs = [iw_opd_trainer._add_tail_bucket(x, support) for x in (logp, teacher)]
    values = iw_opd_trainer._jsd_divergence(pairs[0][0], pairs[1][0], beta, pairs[0][1]).sum(-1)
    loss = values[batch["mask"]].mean()
    [gradient] = torch.autograd.grad(loss, logp)
    fields = {"topk_logp": policy, "teacher_topk_logp": teacher, "entropy": batch["entropy"]}
    ours = result_of(algorithm_named("gkd", [f"beta={beta}"]), with_fields(batch, **fields))
    assert_agree("TRL", ours, Result(ours.advantage, loss.detach(), gradient))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_iw_opd_has_the_gradient_of_trl(gamma: float, seed: int) -> None:
    """The policy has not moved. The value is another one: TRL's loss is -A logp, and here it is -A r."""
    batch = completions(seed)
    stub = SimpleNamespace(
        temperature=1.0,
        iw_opd_gamma=gamma,
        iw_opd_epsilon=1e-8,
        model=SimpleNamespace(training=False),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    # Two tokens: the sampled one, and one with the rest of the probability.
    sampled = -batch["logp"].abs() - 0.01
    batch = with_fields(batch, logp=sampled, old_logp=sampled, teacher_logp=batch["ref_logp"])
    ours = result_of(algorithm_named("iw_opd", [f"weight_coef={gamma}"]), batch)
    logp = sampled.clone().requires_grad_()
    logits = torch.stack([logp, torch.log1p(-sampled.exp())], -1)
    labels = torch.where(batch["mask"], 0, -100)
    tokens = torch.zeros_like(labels)
    loss = iw_opd_trainer.IWOPDTrainer._compute_iw_opd_loss(stub, logits, tokens, labels, batch["teacher_logp"])
    [gradient] = torch.autograd.grad(loss, logp)
    # The derivative of the softmax with respect to the first of two logits.
    theirs = Result(ours.advantage, ours.loss, gradient / (1 - sampled.exp()))
    assert_agree("TRL", ours, theirs)
