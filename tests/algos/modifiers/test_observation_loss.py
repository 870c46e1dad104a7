"""The modifier `observation_loss`: the loss by its definition, the tokens that it covers, refusals and laws."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import dapo, dpo, echo, grpo, ppo, rloo, sft
from purerl.algos.algebra import Algorithm, compute_loss, fingerprint, prepare_step
from purerl.algos.modifiers import observation_loss
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import example_batch, fields_of
from tests.algos.helpers import example, with_advantage

from .laws import check_laws


def modified(base, **settings):
    return observation_loss.modify(observation_loss.Config(**settings), base.algorithm())


def loss_and_gradient(algorithm: Algorithm, batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of the policy and its gradient. The model predicts the tokens after the step has been prepared."""
    [policy] = algorithm.objectives
    logp = batch["logp"].clone().requires_grad_()
    step, counts = prepare_step(policy, with_advantage(algorithm, batch).exclude("logp", "entropy"))
    loss, _ = compute_loss(policy, with_fields(step, logp=logp, entropy=batch["entropy"]), counts)
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def test_loss_and_gradient_equal_their_definition():
    """The tokens after the first action token that are no action, in rows with a counted token."""
    batch = example(grpo.algorithm())
    loss, gradient = loss_and_gradient(grpo.algorithm(), batch)
    actual, actual_gradient = loss_and_gradient(modified(grpo, coef=0.3), batch)
    rows = [".....x.", "...", "..x.x..", "....", "...", "....."]
    tokens = torch.tensor([[c == "x" for c in row.ljust(7, ".")] for row in rows])
    torch.testing.assert_close(actual - loss, -0.3 * batch["logp"][tokens].mean())
    torch.testing.assert_close(actual_gradient - gradient, -0.3 * tokens.double() / tokens.sum())


def test_the_mean_is_over_the_tokens_of_the_term_and_not_of_the_actions():
    """With more actions, the gradient of an answer stays the same."""
    short, long = ((0, ".a.a"), (0, ".a")), ((0, ".aaaa.a"), (0, ".aaa"))
    for layout, position in ((short, 2), (long, 5)):
        algorithm = modified(grpo, coef=0.5)
        _, gradient = loss_and_gradient(algorithm, example_batch(fields_of(algorithm), layout))
        assert float(gradient[0, position]) == pytest.approx(-0.5)


def test_rows_of_one_turn_change_nothing():
    layout = ((0, "..aa"), (0, "..aaa"))
    algorithm = modified(grpo)
    batch = example_batch(fields_of(algorithm), layout)
    assert loss_and_gradient(algorithm, batch)[0] == loss_and_gradient(grpo.algorithm(), batch)[0]


def test_echo_is_grpo_with_the_modifier():
    assert fingerprint(echo.algorithm()) == fingerprint(modified(grpo, coef=0.1))
    assert fingerprint(echo.algorithm(echo.Config(observation_coef=0))) == fingerprint(grpo.algorithm())


@pytest.mark.parametrize("base", [dpo, sft])
def test_an_algorithm_without_episodes_is_refused(base):
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm without log-probabilities of episodes"):
        modified(base)


def test_a_second_term_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  a loss that has the term 'observation'"):
        observation_loss.modify(observation_loss.Config(), echo.algorithm())


@pytest.mark.parametrize("base", [dapo, ppo, rloo])
def test_laws(base):
    exempt = {*observation_loss.EXEMPTIONS, *getattr(base, "EXEMPTIONS", {})}
    check_laws(modified(base), exempt=exempt)
