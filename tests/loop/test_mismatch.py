"""The training-inference mismatch: closed forms in float64, and the same metrics however a step is computed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from attrs import evolve

from purerl.algos import grpo
from purerl.algos.algebra import Weighted, merge
from purerl.algos.modifiers import bypass
from purerl.batch import collate, with_fields
from purerl.composition import Composition
from purerl.loop.metrics import batch_metrics, means
from purerl.loop.metrics.mismatch import is_measured, with_mismatch
from purerl.loop.train import train
from purerl.types import TensorDict
from tests.loop.runs import records
from tests.loop.small import fake

NAMES = ("logp_abs_diff", "logp_abs_diff_max", "k3_kl", "perplexity_ratio", "effective_sample_size", "chi_square")


def batch_of(rollout_logp: list[float], old_logp: list[float]) -> TensorDict:
    """A row with a prompt of one token."""
    row = dict(tokens=[1] * (len(old_logp) + 1), action=[0] + [1] * len(old_logp), row=0, group=0)
    batch = collate([row])
    fields = {"old_logp": old_logp, "rollout_logp": rollout_logp}
    return with_fields(batch, **{n: torch.tensor([[0.0, *x]], dtype=torch.float64) for n, x in fields.items()})


def mismatch(batch: TensorDict) -> dict[str, float]:
    return {
        name.removeprefix("mismatch/"): x for name, x in batch_metrics(batch).items() if name.startswith("mismatch")
    }


def test_two_tokens_in_closed_form() -> None:
    """d = log 2 and -log 4, so that exp(d) = 2 and 1/4."""
    two, four = math.log(2), math.log(4)
    assert mismatch(batch_of([-1.0, -1.0], [two - 1.0, -four - 1.0])) == pytest.approx(
        {
            "logp_abs_diff": 1.5 * two,
            "logp_abs_diff_max": four,
            "k3_kl": ((1 - two) + (four - 0.75)) / 2,
            "perplexity_ratio": math.sqrt(2.0),
            "effective_sample_size": (9 / 8) ** 2 / ((4 + 1 / 16) / 2),
            "chi_square": (1 + (3 / 4) ** 2) / 2,
        },
        rel=1e-12,
    )


def test_no_mismatch() -> None:
    expected = {"logp_abs_diff": 0, "logp_abs_diff_max": 0, "k3_kl": 0, "perplexity_ratio": 1}
    assert mismatch(batch_of([-1.0, -2.0], [-1.0, -2.0])) == expected | {"effective_sample_size": 1, "chi_square": 0}


def test_log_normal_ratios() -> None:
    """For d = s z - s^2 / 2 with a normal z: KL = s^2 / 2, effective sample size exp(-s^2), perplexity exp(s^2 / 2).

    The chi-square divergence is the variance of exp(d), exp(s^2) - 1.
    """
    s, z = 0.3, torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = mismatch(batch_of([-5.0] * len(z), (s * z - s**2 / 2 - 5.0).tolist()))
    assert values["k3_kl"] == pytest.approx(s**2 / 2, rel=0.02)
    assert values["effective_sample_size"] == pytest.approx(math.exp(-(s**2)), rel=0.02)
    assert values["chi_square"] == pytest.approx(math.exp(s**2) - 1, rel=0.03)
    assert values["perplexity_ratio"] == pytest.approx(math.exp(s**2 / 2), rel=0.02)
    assert values["logp_abs_diff"] == pytest.approx(s * math.sqrt(2 / math.pi), rel=0.02)


def test_a_tiny_difference_keeps_its_digits() -> None:
    """k3 is d^2 / 2, which exp(d) - 1 - d has lost."""
    assert mismatch(batch_of([-1.0], [-1.0 + 2**-20]))["k3_kl"] == pytest.approx(2**-41, rel=1e-4)


def test_a_token_that_is_impossible_under_both_policies_has_no_difference() -> None:
    values = mismatch(batch_of([-1.0, -math.inf], [-1.5, -math.inf]))
    assert (values["logp_abs_diff"], values["logp_abs_diff_max"]) == (0.25, 0.5)


def test_a_token_that_the_trainer_cannot_sample_gives_finite_values() -> None:
    values = mismatch(batch_of([-1.0, -1.0], [-1.0, -math.inf]))
    assert values["logp_abs_diff_max"] == 999
    assert values["effective_sample_size"] == pytest.approx(0.5)
    assert all(math.isfinite(value) for value in values.values())


def test_a_batch_without_sampled_tokens_has_no_mismatch() -> None:
    assert mismatch(batch_of([], [])) == {}


def test_metrics_of_a_loss_equal_those_of_the_batch_however_it_is_divided() -> None:
    """Two parts of different sizes, with NaN in slots that are not counted."""
    rng = torch.Generator().manual_seed(1)
    old, rollout = torch.randn(2, 4, 7, generator=rng, dtype=torch.float64) / 3
    action = torch.rand(4, 7, generator=rng) < 0.6
    batch = collate([dict(tokens=[1] * 7, action=row.tolist(), row=k, group=0) for k, row in enumerate(action)])
    whole = with_fields(batch, old_logp=old, rollout_logp=rollout)
    holes = torch.where(action, old, torch.nan)
    parts = with_fields(whole, logp=holes, mask=action)
    objective = with_mismatch(grpo.algorithm().objectives[0]._replace(metrics=_nothing))
    merged: dict[str, Weighted] = merge(*(objective.metrics(part) for part in (parts[:1], parts[1:])))
    values = means({f"policy/{name}": value for name, value in merged.items()})
    expected = mismatch(whole)
    assert values == pytest.approx({f"mismatch/{name}": expected[name] for name in NAMES}, rel=1e-12)


def _nothing(batch: TensorDict) -> dict[str, Weighted]:
    return {}


@pytest.mark.parametrize("version", [None, 3])
def test_only_tokens_of_a_version_count(version: int | None) -> None:
    """d = -1, -2, -4, of which the last two tokens have version 3."""
    batch = with_fields(
        batch_of([0.0, 0.0, 0.0], [-1.0, -2.0, -4.0]),
        logp=torch.tensor([[0.0, -1.0, -2.0, -4.0]], dtype=torch.float64),
        version=torch.tensor([[3, 2, 3, 3]]),
    )
    objective = with_mismatch(grpo.algorithm().objectives[0]._replace(metrics=_nothing), version)
    assert is_measured(objective)
    assert ("version" in objective.reads) == (version is not None)
    total, weight = objective.metrics(batch)["mismatch/size"]
    assert float(total / weight) == (3.0 if version == 3 else pytest.approx(7 / 3))


@pytest.mark.parametrize(("num_minibatches", "ppo_epochs"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_with_bypass_measures_tokens_of_its_own_version_in_the_first_optimizer_step(
    tmp_path: Path, num_minibatches: int, ppo_epochs: int, staleness: int
) -> None:
    """With a large learning rate, later optimizer steps and older tokens would differ by far more than rounding."""
    composition = Composition(grpo.Config(), (bypass.Config(),))
    base = fake()
    config = evolve(
        base,
        algorithm=composition,
        trainer=evolve(base.trainer, lr=0.3),
        rollout=evolve(base.rollout, max_staleness=staleness),
        num_minibatches=num_minibatches,
        ppo_epochs=ppo_epochs,
        max_steps=4,
        evaluate=None,
    )
    steps = records(train(config, directory=tmp_path / "run"))[1:]
    measured = [record["mismatch/logp_abs_diff"] for record in steps if "mismatch/logp_abs_diff" in record]
    assert len(measured) == (1 if staleness else 4)  # with staleness 1, only the first step has new tokens
    assert max(measured) < 1e-5


@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_every_step_has_them(tmp_path: Path, num_minibatches: int) -> None:
    """Also if a step is one optimizer step, whose loss computes them."""
    config = fake(trainer=evolve(fake().trainer, lr=1e-12), num_minibatches=num_minibatches, max_steps=3, evaluate=None)
    for record in records(train(config, directory=tmp_path / "run"))[1:]:
        values = {name: record[f"mismatch/{name}"] for name in NAMES}
        assert values == pytest.approx(dict(zip(NAMES, (0, 0, 0, 1, 1, 0), strict=True)), abs=1e-5)
