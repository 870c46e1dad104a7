"""The laws run on the losses of verl and TRL, and find what is known about them."""

from __future__ import annotations

import attrs
import pytest

from purerl.testing import law_results
from purerl.testing.losses import VerlConfig

pytest.importorskip("verl", reason="verl is not installed: nox -s oracle")
pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
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
