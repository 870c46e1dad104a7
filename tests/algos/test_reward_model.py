"""The loss of a reward model, compared with its definition, and what has no effect on it."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import reward_model
from purerl.algos.algebra import compute_loss, prepare_step, reads_of
from purerl.batch import collate, with_fields
from purerl.errors import ConfigError
from tests.algos.helpers import f64

CASES = {
    "plain": {},
    "margin": dict(margin=0.5),
    "margin of the data": dict(margin=0.25, margin_coef=2.0),
    "centering": dict(centering_coef=0.3),
    "all": dict(margin=-0.5, margin_coef=0.5, centering_coef=0.1),
}


def pairs(scores, margins):
    """Rows of two tokens in pairs, the chosen one first: these scores at the last token, and 100 at the first."""
    rows = [
        dict(tokens=[1, 2, 3], action=[0, 1, 1], row=k, group=k // 2, chosen=k % 2 == 0) for k in range(len(scores))
    ]
    batch = collate(rows)
    score = torch.full(batch["action"].shape, 100.0, dtype=torch.float64)
    score[:, 2] = torch.tensor(scores, dtype=torch.float64)
    return with_fields(batch, classifier_score=score, margin=torch.tensor(margins, dtype=torch.float64))


def loss_and_gradient(batch, **settings):
    [objective] = reward_model.algorithm(reward_model.Config(**settings)).objectives
    score = batch["classifier_score"].clone().requires_grad_()
    step, counts = prepare_step(objective, with_fields(batch, classifier_score=score))
    loss, metrics = compute_loss(objective, step, counts)
    return loss.detach(), torch.autograd.grad(loss, score)[0], metrics


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_value_and_gradient_equal_the_definition(settings):
    scores, margins = [1.0, -0.5, 0.25, 2.0], [1.0, 7.0, 0.5, 7.0]
    loss, gradient, _ = loss_and_gradient(pairs(scores, margins), **settings)
    constant, coef, center = (settings.get(name, 0.0) for name in ("margin", "margin_coef", "centering_coef"))
    expected, slopes = 0.0, []
    for k in (0, 2):
        chosen, rejected, margin = (
            scores[k],
            scores[k + 1],
            constant + coef * margins[k],
        )  # the rejected row's is unread
        distance, total = chosen - rejected - margin, chosen + rejected
        expected += (math.log1p(math.exp(-distance)) + center * total**2) / 2
        slope = -1 / (1 + math.exp(distance)) / 2
        slopes += [slope + center * total, -slope + center * total]
    assert float(loss) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient[:, 2], f64(*slopes))
    assert not gradient[:, :2].any()  # only the score at the last token counts


def test_metrics_are_means_over_pairs():
    _, _, metrics = loss_and_gradient(pairs([1.0, -0.5, 0.25, 2.0], [0.0] * 4))
    means = {name: float(metric.total / metric.weight) for name, metric in metrics.items()}
    assert (means["accuracy"], means["margin"], means["score"]) == (0.5, -0.125, 0.6875)


def test_a_row_without_a_partner_has_no_effect():
    batch = pairs([1.0, -0.5, 0.25, 2.0], [0.0] * 4)
    mask = batch["mask"].clone()
    mask[3] = False
    masked = loss_and_gradient(with_fields(batch, mask=mask), centering_coef=0.1, margin_coef=1.0)
    alone = loss_and_gradient(batch[:2], centering_coef=0.1, margin_coef=1.0)
    torch.testing.assert_close(masked[0], alone[0])
    assert not masked[1][2:].any()


def test_the_score_is_at_the_last_counted_token():
    batch = pairs([1.0, -0.5], [0.0] * 2)
    mask = batch["mask"].clone()
    mask[0, 2] = False
    _, gradient, _ = loss_and_gradient(with_fields(batch, mask=mask))
    assert gradient[0].ne(0).tolist() == [False, True, False]


def test_the_margin_of_the_data_is_read_only_with_its_coefficient():
    assert "margin" not in reads_of(reward_model.algorithm())
    assert "margin" in reads_of(reward_model.algorithm(reward_model.Config(margin_coef=1.0)))


@pytest.mark.parametrize("name", ["margin_coef", "centering_coef"])
def test_a_negative_coefficient_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}\\n  got:  -1.0\\n  need: a number at least 0"):
        reward_model.Config(**{name: -1.0})
