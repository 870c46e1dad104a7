"""The laws run on the losses of verl, TRL and OpenRLHF, and find what is known about them."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
import torch

from purerl.testing import law_results
from purerl.testing.losses import VerlConfig

pytest.importorskip("verl", reason="verl is not installed: nox -s oracle")
pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
pytest.importorskip("openrlhf", reason="OpenRLHF is not installed: nox -s oracle")
peers = pytest.importorskip("benchmarks.peer_losses")


def _failed(peer, *laws: str) -> set[str]:
    results = law_results(peer.loss, laws=laws, batches=1, **peer.options)
    return {result.law for result in results if result.status == "failed"}


def test_a_loss_of_verl_divides_by_the_tokens_of_the_mini_batch() -> None:
    laws = ("microbatch_invariance", "padding_invariance", "reinforce_gradient_on_policy")
    [vanilla] = [peer for peer in peers.verl_losses() if peer.name == "vanilla"]
    assert _failed(vanilla, *laws) == set()


def test_bnpo_of_trl_divides_by_the_tokens_of_the_micro_batch() -> None:
    laws = ("microbatch_invariance", "padding_invariance", "reinforce_gradient_on_policy")
    losses = {peer.name: peer for peer in peers.trl_losses()}
    assert _failed(losses["bnpo"], *laws) == {"microbatch_invariance"}
    assert _failed(losses["dapo"], *laws) == set()


def test_the_stand_in_for_the_configuration_of_verl_has_its_defaults() -> None:
    config = next(peers.verl_losses()).options["arguments"]["config"]
    ours = attrs.asdict(VerlConfig())
    assert {name: getattr(config, name) for name in ours} == ours


def test_a_row_of_the_table() -> None:
    [gspo] = [peer for peer in peers.verl_losses() if peer.name == "gspo"]
    cells = peers.row(gspo, 1).split(" | ")
    assert cells[:2] == ["| verl", "`gspo`"]
    assert "`gradient_matches_finite_differences`" in cells[-1]


def test_the_page_has_the_text_of_the_benchmark_and_every_loss() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "peer_losses.md").read_text(encoding="utf-8")
    assert page.startswith(peers.introduction())
    assert page.endswith(peers.EXPLANATION)
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith(("| verl", "| TRL", "| OpenRLHF"))]
    losses = [*peers.verl_losses(), *peers.trl_losses(), *peers.openrlhf_losses()]
    assert rows == [[f"| {peer.library}", f"`{peer.name}`"] for peer in losses]


# --- OpenRLHF: each failure of the table, by hand ----------------------------------------------------------------


def _openrlhf(name: str):
    return {peer.name: peer for peer in peers.openrlhf_losses()}[name]


def _row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def _value_and_gradient(name: str, logp: torch.Tensor, *others: torch.Tensor) -> tuple[float, list[float]]:
    """The loss of OpenRLHF of one row in float32, and its gradient. The first argument of the loss is `logp`."""
    logp = logp.clone().requires_grad_()
    loss = _openrlhf(name).loss(logp, *others)
    loss = loss[0] if isinstance(loss, tuple) else loss
    [gradient] = torch.autograd.grad(loss, logp)
    return loss.item(), gradient[0].tolist()


POLICY_LOSSES = ("ppo", "seq-mean-token-mean", "dual_clip", "gspo", "tis", "icepop", "seq-mask-tis", "binary_kl")


def test_openrlhf_divides_by_the_counts_of_the_mini_batch() -> None:
    laws = ("microbatch_invariance", "rank_invariance", "padding_invariance", "reinforce_gradient_on_policy")
    for name in POLICY_LOSSES:
        assert _failed(_openrlhf(name), *laws) == set()


def test_openrlhf_without_the_counts_divides_by_those_of_the_micro_batch() -> None:
    forward = _openrlhf("ppo").loss

    def without_counts(log_probs, old_log_probs, advantages, action_mask):
        return forward(log_probs, old_log_probs, advantages, action_mask)

    changed = _openrlhf("ppo")._replace(loss=without_counts)
    assert "microbatch_invariance" in _failed(changed, "microbatch_invariance", "gradients_only_through_outputs")


# the gradient at the first of two tokens: without the second one, -1 and -1/2; nan; or 0, because the row is dropped
_WITH_NAN = dict.fromkeys(POLICY_LOSSES, -1.0) | {"gspo": math.nan, "seq-mask-tis": 0.0, "binary_kl": 0.0}
_WITH_IMPOSSIBLE = dict.fromkeys(POLICY_LOSSES, -0.5) | {"gspo": math.nan, "seq-mask-tis": 0.0}


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_nan_at_a_masked_out_token_makes_a_policy_loss_of_openrlhf_nan(name: str) -> None:
    values, mask = _row(-1.0, math.nan), torch.tensor([[1, 0]])
    loss, gradient = _value_and_gradient(name, values, values, -values, mask, values)
    assert math.isnan(loss)
    assert gradient[0] == pytest.approx(_WITH_NAN[name], nan_ok=True)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_an_impossible_token_makes_a_policy_loss_of_openrlhf_nan(name: str) -> None:
    logp = _row(-1.0, -math.inf)
    loss, gradient = _value_and_gradient(name, logp, logp, _row(1.0, 1.0), torch.ones(1, 2), logp)
    assert math.isnan(loss)
    assert gradient[0] == pytest.approx(_WITH_IMPOSSIBLE[name], nan_ok=True)


def test_the_ratio_of_gspo_of_openrlhf_overflows() -> None:
    others = _row(-1000.0, -1000.0), _row(-1.0, -1.0), torch.ones(1, 2)
    assert _value_and_gradient("gspo", _row(-1.0, -1.0), *others) == (math.inf, [math.inf, math.inf])
    loss, gradient = _value_and_gradient("ppo", _row(-1.0, -1.0), *others)
    assert loss == pytest.approx(math.exp(20))
    assert gradient == [0.0, 0.0]


def test_a_row_with_a_bounded_mean_has_an_infinite_weight_in_openrlhf() -> None:
    old, sampler = _row(-1.0, -101.0), _row(-101.0, -1.0)  # the geometric mean of the two ratios is 1
    others = old, _row(1.0, 1.0), torch.ones(1, 2), sampler
    loss, gradient = _value_and_gradient("seq-mask-tis", old, *others)
    assert loss == gradient[0] == -math.inf
    for name in ("tis", "icepop"):
        assert math.isfinite(_value_and_gradient(name, old, *others)[0])


def test_two_unlikely_tokens_have_an_infinite_weight_in_the_trust_region_of_openrlhf() -> None:
    old, sampler = _row(-20.0, -20.0), _row(-120.0, -120.0)  # both probabilities are below its bound of 1e-6
    loss, gradient = _value_and_gradient("binary_kl", old, old, _row(1.0, 1.0), torch.ones(1, 2), sampler)
    assert (loss, gradient) == (-math.inf, [-math.inf, -math.inf])


def test_masked_out_nan_and_impossible_tokens_in_other_losses_of_openrlhf() -> None:
    mask, counts = torch.tensor([[1, 0]]), (torch.tensor(1), torch.tensor(1))
    loss, gradient = _value_and_gradient("value", _row(1.0, math.nan), _row(1.0, 1.0), _row(0.0, 0.0), mask)
    assert math.isnan(loss)
    assert gradient == pytest.approx([1.0, math.nan], nan_ok=True)
    loss, gradient = _value_and_gradient("sft", _row(-1.0, math.nan), mask, *counts)
    assert math.isnan(loss)
    assert gradient == [-1.0, 0.0]
    assert _value_and_gradient("sft", _row(-math.inf, -1.0), mask, *counts) == (math.inf, [-1.0, 0.0])


def test_a_loss_of_a_critic_faces_the_laws_that_apply() -> None:
    critics = [_openrlhf("value"), *(peer for peer in peers.verl_losses() if peer.name == "value")]
    for critic in critics:
        results = law_results(critic.loss, laws=peers.LAWS_OF_TABLE, batches=1, **critic.options)
        of_policies = {result.law for result in results if result.status == "does not apply"}
        assert of_policies >= {"finite_at_extreme_ratios", "reinforce_gradient_on_policy"}
        assert {result.law for result in results if result.status == "failed"} == {"masked_token_invariance"}
