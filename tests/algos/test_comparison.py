"""The differences of two algorithms, and the effect of each on a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from purerl.algos import dapo, dpo, grpo, rloo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import advantage_scale, clipped_surrogate, kl_loss, reduction
from purerl.anatomy import algorithm_named, anatomy
from purerl.batch import with_fields
from purerl.comparison import Difference, Effect, compare, example_completions, stored_completions
from purerl.composition import with_modifiers
from purerl.errors import InputError
from purerl.loop.train import train
from tests.loop.small import fake

GRPO = grpo.algorithm()


def _compare(first: Algorithm, second: Algorithm) -> tuple[list[Difference], Effect]:
    return compare(first, second, example_completions(first, second))


def test_equal_algorithms_have_no_differences() -> None:
    differences, total = _compare(GRPO, grpo.algorithm(grpo.Config()))
    assert differences == []
    assert (total.advantage, total.gradient_norm) == (0.0, 1.0)
    assert total.cosine == pytest.approx(1)


def test_every_part_that_differs_is_listed() -> None:
    differences, _ = _compare(GRPO, dapo.algorithm())
    assert [(d.part, d.first, d.second) for d in differences if d.part != "loss: policy"] == [
        ("rows that are kept", "-", "groups_with_variance"),
        ("reduction: policy", "sequence_mean_of_token_mean", "token_mean"),
    ]
    [loss] = [difference for difference in differences if difference.part == "loss: policy"]
    assert loss.first == loss.second.replace("0.28", "0.2") != loss.second


def test_effect_of_one_difference_is_that_of_the_algorithm_with_only_this_difference() -> None:
    second = with_modifiers(GRPO, reduction.Config(by="token_mean"), advantage_scale.Config(by="none"))
    batch = example_completions(GRPO, second)
    differences, total = compare(GRPO, second, batch)
    alone = {
        "advantage": with_modifiers(GRPO, advantage_scale.Config(by="none")),
        "reduction: policy": with_modifiers(GRPO, reduction.Config(by="token_mean")),
    }
    assert {difference.part: difference.effect for difference in differences} == {
        part: compare(GRPO, algorithm, batch)[1] for part, algorithm in alone.items()
    }
    assert total == compare(GRPO, second, batch)[1]


def test_scaled_advantages_scale_the_gradient() -> None:
    [difference], total = _compare(grpo.algorithm(), with_modifiers(GRPO, reduction.Config(by="token_sum")))
    assert difference.effect == total
    assert total.advantage == 0
    assert total.gradient_norm > 100
    first, second = with_modifiers(GRPO, kl_loss.Config(coef=0.1)), with_modifiers(GRPO, kl_loss.Config(coef=0.2))
    [difference], _ = _compare(first, second)
    assert difference.part == "loss: ref_kl"
    assert (difference.first[:3], difference.second[:3]) == ("0.1", "0.2")


def test_added_term_is_a_difference() -> None:
    [difference], total = _compare(GRPO, with_modifiers(GRPO, kl_loss.Config(coef=0.5)))
    assert (difference.part, difference.first) == ("loss: ref_kl", "-")
    assert difference.effect == total
    assert total.loss[0] < total.loss[1]


def test_bare_and_clipped_policy_gradient_agree_on_policy() -> None:
    bare, clipped = rloo.algorithm(), with_modifiers(rloo.algorithm(), clipped_surrogate.Config())
    batch = example_completions(bare, clipped)
    on_policy = with_fields(batch, old_logp=batch["logp"])
    [difference], total = compare(bare, clipped, on_policy)
    assert difference.part == "loss: policy"
    assert total.cosine == pytest.approx(1)
    assert total.gradient_norm == pytest.approx(1)


def test_part_that_cannot_be_exchanged_alone_has_no_effect() -> None:
    differences, total = _compare(dpo.algorithm(), GRPO)
    assert {difference.part: difference.effect for difference in differences}["loss: policy"] is None
    assert total.loss[1] != 0


def test_missing_field_is_refused() -> None:
    batch = example_completions(GRPO).exclude("old_logp")
    with pytest.raises(InputError, match="a batch\n  got:  no field old_logp\n  need: the fields of both algorithms"):
        compare(GRPO, dapo.algorithm(), batch)


def test_stored_rollouts_are_a_batch(tmp_path: Path) -> None:
    summary = train(fake(max_steps=2, num_minibatches=2), directory=tmp_path / "run")
    batch = stored_completions(summary.directory, None, GRPO, dapo.algorithm())
    assert batch["logp"].dtype == torch.float64
    _, total = compare(GRPO, dapo.algorithm(), batch)
    assert total.gradient_norm > 0
    with pytest.raises(InputError, match="got:  steps 1 to 2\n  need: step 7"):
        stored_completions(summary.directory, 7, GRPO)
    with pytest.raises(InputError, match="got:  no rollouts\n  need: the directory of a run"):
        stored_completions(tmp_path, None, GRPO)
    with pytest.raises(InputError, match="got:  no field ref_logp\n  need: the fields that both algorithms read"):
        stored_completions(summary.directory, None, with_modifiers(GRPO, kl_loss.Config()))


def test_anatomy_names_the_modifiers_their_settings_and_the_papers() -> None:
    found = anatomy("grpo@trl", ["kl_loss=0.1"])
    assert found.text.startswith("grpo@trl: TRL 1.16.0, executed. ")
    assert "Modifier kl_loss: A KL penalty against the reference model, in the loss." in found.text
    assert ("kl_loss.coef", "0.1") in [(key, value) for key, value, _ in found.settings]
    assert ("a reference", "logp") in found.needs
    assert "https://arxiv.org/abs/2402.03300" in found.citations
    assert algorithm_named("grpo") == GRPO
