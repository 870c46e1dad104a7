"""Curricula: probabilities of prompts, and the law that weighted draws have the gradient of uniform ones."""

from __future__ import annotations

import itertools

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import dr_grpo, grpo, ppo, rloo
from purerl.algos.algebra import Algorithm, bind, compute_advantages, compute_loss, prepare_step
from purerl.algos.modifiers import kl_loss
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.data.curriculum import (
    bands_of,
    draw_position,
    importance_weights,
    is_retired,
    pass_rate,
    probabilities,
)
from purerl.data.curriculum_settings import Curriculum
from purerl.errors import ConfigError, DataError
from purerl.rollouts.settings import with_draw_weights
from purerl.testing import check_algorithm
from purerl.testing.batches import STRICT_SEED

SOLVED, ATTEMPTS = torch.tensor([0.0, 0, 4, 8, 16]).double(), torch.tensor([0.0, 8, 8, 8, 16]).double()


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- probabilities -----------------------------------------------------------------------------------------------


def test_difficulty_prefers_prompts_that_are_solved_half_of_the_time():
    rates = f64(1 / 2, 1 / 10, 1 / 2, 9 / 10, 17 / 18)
    torch.testing.assert_close(pass_rate(SOLVED, ATTEMPTS), rates)
    weight = rates * (1 - rates)
    actual = probabilities(Curriculum(uniform_share=0.5), SOLVED, ATTEMPTS)
    torch.testing.assert_close(actual, 0.5 * weight / weight.sum() + 0.1)


def test_bands_have_their_shares_of_the_draws():
    """Two easy prompts, two normal ones and a hard one."""
    settings = Curriculum(by="bands", shares=(1, 2, 1))
    assert bands_of(settings, SOLVED, ATTEMPTS).tolist() == [1, 2, 1, 0, 0]
    torch.testing.assert_close(probabilities(settings, SOLVED, ATTEMPTS), f64(0.25, 0.25, 0.25, 0.125, 0.125))


def test_the_share_of_a_band_without_prompts_goes_to_the_others():
    settings = Curriculum(by="bands", shares=(1, 1, 2))
    actual = probabilities(settings, f64(0, 8, 8), f64(0, 8, 8))
    torch.testing.assert_close(actual, f64(0.5, 0.25, 0.25))
    only_easy = Curriculum(by="bands", shares=(0, 1, 0), unbiased=False)
    torch.testing.assert_close(probabilities(only_easy, f64(8, 8), f64(8, 8)), f64(0.5, 0.5))


@pytest.mark.parametrize("settings", [{"by": "uniform"}, {"by": "difficulty"}, {"by": "bands"}])
def test_a_retired_prompt_is_not_drawn(settings):
    curriculum = Curriculum(**settings, retire_above=0.9, retire_after=8)
    assert is_retired(curriculum, SOLVED, ATTEMPTS).tolist() == [False, False, False, True, True]
    actual = probabilities(curriculum, SOLVED, ATTEMPTS)
    assert actual[3:].tolist() == [0, 0]
    assert float(actual.sum()) == pytest.approx(1)
    assert importance_weights(actual)[3:].tolist() == [0, 0]


def test_a_curriculum_without_prompts_is_refused():
    settings = Curriculum(retire_above=0.5)
    with pytest.raises(DataError, match="no prompt can be drawn\n  got:  1 prompts, all of which are retired"):
        probabilities(settings, f64(8), f64(8))


def test_prompts_are_drawn_with_their_probabilities():
    probability = probabilities(Curriculum(), SOLVED, ATTEMPTS)
    cumulative = probability.cumsum(0)
    drawn = torch.bincount(torch.tensor([draw_position(cumulative, 3, n) for n in range(20_000)]), minlength=5)
    chi_square = float(((drawn - 20_000 * probability).square() / (20_000 * probability)).sum())
    assert chi_square < 18.5  # of four degrees of freedom, with a probability of .999


# --- the law -----------------------------------------------------------------------------------------------------

PROMPTS, TOKENS, ROWS = 4, 3, 2
OUTCOMES = torch.tensor([*itertools.product(range(TOKENS), repeat=ROWS)])
"""Every group of two completions of one token."""
LOGITS = torch.randn(PROMPTS, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
REWARD = torch.randn(PROMPTS, TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
REFERENCE = torch.randn(PROMPTS, TOKENS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def expected_gradient(algorithm: Algorithm, probability: Tensor, weight: Tensor, draws: int) -> Tensor:
    """The expected gradient of a step of several independent draws, over all prompts and completions."""
    prompts = torch.cartesian_prod(*[torch.arange(PROMPTS)] * draws).reshape(-1, draws)
    cases = torch.cartesian_prod(torch.arange(len(prompts)), *[torch.arange(len(OUTCOMES))] * draws)
    prompt = prompts[cases[:, 0]].repeat_interleave(ROWS, -1)
    token = OUTCOMES[cases[:, 1:]].flatten(1)
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(-1)[prompt, token]
    batch = _batch(prompt, token, logp, weight[prompt])
    share = probability[prompts[cases[:, 0]]].prod(-1) * logp.detach().sum(-1).exp()
    losses = torch.func.vmap(bind(_loss, algorithm=algorithm))(batch)
    return torch.autograd.grad(share @ losses, logits)[0]


def _loss(batch: TensorDict, *, algorithm: Algorithm) -> Tensor:
    policy, outputs = algorithm.objectives[0], {name: batch[name] for name in ("logp", "entropy")}
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), batch.exclude(*outputs))
    step, counts = prepare_step(policy, after)
    return compute_loss(policy, with_fields(step, **outputs), counts)[0]


def _batch(prompt: Tensor, token: Tensor, logp: Tensor, weight: Tensor) -> TensorDict:
    """A batch [cases, rows] of completions of one token."""
    action = torch.tensor([False, True]).expand(*token.shape, 2)

    def at_action(value: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(value), value], -1)

    row = torch.arange(token.shape[1]).expand(token.shape)
    fields = {
        "attention_mask": torch.ones_like(action), "action": action, "mask": action, "row": row, "group": row // ROWS,
        "reward": at_action(REWARD[prompt, token]), "old_logp": at_action(logp.detach()), "logp": at_action(logp),
        "ref_logp": at_action(REFERENCE.log_softmax(-1)[prompt, token]), "entropy": at_action(torch.zeros_like(logp)),
        "draw_weight": weight,
    }  # fmt: skip
    return TensorDict(fields, batch_size=token.shape)


UNIFORM, ONE = torch.full((PROMPTS,), 1 / PROMPTS).double(), torch.ones(PROMPTS).double()
HISTORY = f64(0, 1, 4, 8), f64(0, 8, 8, 8)
CURRICULA = {
    "difficulty": Curriculum(),
    "bands": Curriculum(by="bands", shares=(0.2, 0.2, 0.6)),
    "difficulty with retirement": Curriculum(retire_above=0.9),
}


@pytest.mark.parametrize("name", CURRICULA)
@pytest.mark.parametrize(("base", "draws"), [(dr_grpo, 1), (rloo, 2)])
def test_weighted_draws_have_the_gradient_of_uniform_ones(name: str, base, draws: int):
    """Over all draws and completions; of the prompts that are not retired. Without the weight, it is another one."""
    algorithm = with_draw_weights(base.algorithm())
    probability = probabilities(CURRICULA[name], *HISTORY)
    uniform = (probability > 0) / (probability > 0).sum().double()
    exact = expected_gradient(algorithm, uniform, ONE, draws)
    weighted = expected_gradient(algorithm, probability, importance_weights(probability), draws)
    torch.testing.assert_close(weighted, exact)
    for mutant in (ONE, probability, importance_weights(probability).square(), 1 / probability.clamp(min=1e-3)):
        assert not torch.allclose(expected_gradient(algorithm, probability, mutant, draws), exact, rtol=1e-2)


def test_the_weight_is_a_factor_of_every_term_of_the_loss():
    algorithm = with_draw_weights(with_modifiers(grpo.algorithm(), kl_loss.Config(coef=0.5)))
    probability = probabilities(Curriculum(), *HISTORY)
    exact = expected_gradient(algorithm, UNIFORM, ONE, 1)
    torch.testing.assert_close(expected_gradient(algorithm, probability, importance_weights(probability), 1), exact)
    [policy] = algorithm.objectives
    first, *others = policy.terms
    only_first = policy._replace(terms=(first, *(term._replace(scales=()) for term in others)))
    mutant = algorithm._replace(objectives=(only_first,))
    biased = expected_gradient(mutant, probability, importance_weights(probability), 1)
    assert not torch.allclose(biased, exact, rtol=1e-2)


@pytest.mark.parametrize("base", [grpo, ppo])
def test_weighted_algorithms_satisfy_the_laws(base):
    exempt = {*getattr(base, "EXEMPTIONS", {}), "compiled_equals_eager"}
    check_algorithm(with_draw_weights(base.algorithm()), seed=STRICT_SEED, batches=1, exempt=exempt)


def test_all_objectives_are_weighted():
    algorithm = with_draw_weights(ppo.algorithm())
    assert [objective.role for objective in algorithm.objectives] == ["critic", "policy"]
    assert all("draw_weight" in term.scales for objective in algorithm.objectives for term in objective.terms)


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": (1, 1, 1)}, 'shares has no effect\n  got:  .*\n  need: by = "bands"'),
        ({"by": "bands", "uniform_share": 0.5}, 'uniform_share has no effect\n  got:  0.5\n  need: by = "difficulty"'),
        ({"by": "bands", "shares": (1, 1)}, "shares\n  got:  .*\n  need: three numbers of at least 0"),
        ({"by": "bands", "shares": (0, 1, 1)}, "shares\n  got:  .*\n  need: numbers above 0 with unbiased"),
        ({"by": "bands", "limits": (0.9, 0.1)}, "limits\n  got:  .*\n  need: two numbers between 0 and 1"),
        ({"uniform_share": 0.0}, "uniform_share\n  got:  0.0\n  need: a number above 0 with unbiased"),
        ({"by": "uniform"}, "by has no effect\n  got:  uniform\n  need: retire_above or focus"),
        ({"by": "uniform", "focus": 4}, "focus\n  got:  4\n  need: 0 with unbiased"),
        ({"retire_after": 9}, "retire_after has no effect\n  got:  9\n  need: retire_above"),
        ({"retire_above": 1.5}, "retire_above\n  got:  1.5"),
        ({"by": "luck"}, "by\n  got:  'luck'\n  need: one of: difficulty, bands, uniform"),
    ],
)
def test_settings_without_an_effect_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Curriculum(**settings)
