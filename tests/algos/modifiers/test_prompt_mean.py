"""The modifier `reduction` with prompt_mean: the mean over prompts of the mean over the tokens of each prompt."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import grpo
from purerl.algos.modifiers import entropy_bonus, kl_loss, reduction
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, with_advantage

from .laws import check_laws

PROMPT_MEAN = reduction.Config(by="prompt_mean")
ALGORITHM = with_modifiers(grpo.algorithm(), PROMPT_MEAN)


def loss_by_hand(batch: TensorDict, logp: Tensor) -> Tensor:
    mask, group = batch["mask"], batch["group"]
    ratio = (logp - batch["old_logp"]).exp()
    loss = torch.maximum(-batch["advantage"] * ratio, -batch["advantage"] * ratio.clamp(0.8, 1.2))
    prompts = [loss[group == label][mask[group == label]] for label in group.unique()]
    return torch.stack([tokens.mean() for tokens in prompts if len(tokens)]).mean()


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_equal_their_definition(seed: int):
    batch = example(ALGORITHM, seed=seed)
    _, loss, gradient = advantage_losses_and_gradients(ALGORITHM, batch)
    by_hand = with_advantage(ALGORITHM, batch)
    torch.testing.assert_close(loss, loss_by_hand(by_hand, batch["logp"]))
    torch.testing.assert_close(gradient, gradient_of(lambda logp: loss_by_hand(by_hand, logp), batch["logp"]))


def test_prompts_without_counted_tokens_have_no_weight():
    batch = example(ALGORITHM)
    is_left_out = batch["group"] == batch["group"][0]
    masked = with_fields(batch, mask=batch["mask"] & ~is_left_out.unsqueeze(-1))
    for first, second in zip(
        advantage_losses_and_gradients(ALGORITHM, masked)[1:],
        advantage_losses_and_gradients(ALGORITHM, masked[~is_left_out])[1:],
        strict=True,
    ):
        torch.testing.assert_close(first[~is_left_out] if first.ndim else first, second)


@pytest.mark.parametrize("term", [kl_loss, entropy_bonus])
def test_both_orders_are_the_same_algorithm(term):
    pair = (term.Config(), PROMPT_MEAN)
    first, second = (with_modifiers(grpo.algorithm(), *modifiers) for modifiers in (pair, pair[::-1]))
    assert first.objectives[0].terms == second.objectives[0].terms
    assert [each.scales for each in first.objectives[0].terms] == [("prompt_weight",)] * 2


def test_laws():
    check_laws(ALGORITHM)
