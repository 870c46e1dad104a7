"""The differences of two algorithms, and the effect of each on a batch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.algos import clip_cov, dapo, dpo, grpo, opd_top_k, ppo, rloo, sft
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import advantage_scale, clipped_surrogate, entropy_bonus, kl_loss, reduction
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.errors import BatchError, DataError, InputError
from purerl.explain.algorithm import algorithm_named, anatomy
from purerl.explain.comparison import (
    Difference,
    Effect,
    compare,
    effect_texts,
    example_completions,
    read_completions,
    stored_completions,
)
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
    assert {difference.part: difference.effect for difference in differences}["loss: preference / policy"] is None
    assert total.loss[1] != 0


def test_pairs_are_generated_for_an_algorithm_that_learns_from_them() -> None:
    batch = example_completions(dpo.algorithm(), GRPO)
    assert len(batch) == len(example_completions(GRPO))
    assert torch.equal(batch["group"].unique(return_counts=True)[1], torch.full([64], 2))
    assert torch.equal(batch["reward"].sum(-1), batch["chosen"].double())
    _, total = compare(dpo.algorithm(), GRPO, batch)
    assert total.loss[0] == pytest.approx(0.69, abs=0.02)
    assert total.cosine > 0.5


def test_loss_of_another_name_replaces_the_first_loss() -> None:
    first, second = sft.algorithm(), dpo.algorithm()
    batch = example_completions(first, second)
    differences, total = compare(first, second, batch)
    effects = {difference.part: difference.effect for difference in differences}
    assert [*effects] == ["before each step", "loss: nll / preference", "reduction: nll / preference"]
    loss = effects["loss: nll / preference"]
    assert loss is not None
    [policy] = second.objectives
    nll = first.objectives[0].terms[0]
    replaced = first._replace(objectives=(policy._replace(terms=(policy.terms[0]._replace(reduce=nll.reduce),)),))
    assert loss.loss == compare(first, replaced, batch)[1].loss
    assert total.loss[1] == compare(second, first, batch)[1].loss[0]


def test_loss_of_another_model_is_a_difference_without_an_effect_on_the_policy() -> None:
    differences, _ = _compare(ppo.algorithm(), GRPO)
    critic = differences[-1]
    assert (critic.part, critic.second) == ("loss of the critic", "-")
    assert critic.first.startswith("token_mean of clipped_value_loss(")
    assert critic.effect is not None
    assert (critic.effect.advantage, critic.effect.gradient_norm) == (0, 1)
    [difference], _ = _compare(ppo.algorithm(), ppo.algorithm(ppo.Config(value_clip=0.1)))
    assert (difference.part, "value_clip=0.1" in difference.second) == ("loss of the critic", True)
    assert "value" not in example_completions(ppo.algorithm()).keys(), "the loss of the critic is not computed"


def test_computation_before_each_step_is_a_difference() -> None:
    fewer = clip_cov.algorithm(clip_cov.Config(fraction=0.5))
    [difference], total = _compare(clip_cov.algorithm(), fewer)
    assert (difference.part, difference.effect) == ("before each step", total)
    assert total.gradient_norm < 1


def test_gradient_is_that_of_all_outputs_of_the_policy() -> None:
    topk = opd_top_k.algorithm()
    [policy] = topk.objectives
    doubled = topk._replace(objectives=(policy._replace(terms=(policy.terms[0]._replace(weight=2.0),)),))
    _, total = _compare(topk, doubled)
    assert (total.gradient_norm, total.cosine) == (pytest.approx(2), pytest.approx(1))
    _, total = _compare(GRPO, topk)
    assert total.gradient_norm > 0
    assert math.isnan(total.cosine), "gradients of different outputs"
    _, total = _compare(GRPO, with_modifiers(GRPO, entropy_bonus.Config(coef=0.1)))
    assert total.gradient_norm > 1.005
    assert total.cosine < 0.999


def test_change_of_advantages_is_not_defined_without_advantages() -> None:
    _, total = _compare(dpo.algorithm(), GRPO)
    assert math.isnan(total.advantage)
    assert effect_texts(total)[0] == "-"


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
    with pytest.raises(InputError, match="got:  no column ref_logp\n  need: ref_logp: under the reference model"):
        stored_completions(summary.directory, None, with_modifiers(GRPO, kl_loss.Config()))


def _write(path: Path, **changes: Any) -> Path:
    """A JSON Lines file with two rows of a batch, changed by `changes`; a column is removed by None."""
    rows = [
        {"tokens": [1, 2, 3], "action": [0, 1, 1], "row": 0, "group": 0, "reward": [0, 0, 1.0], "text": "ab"},
        {"tokens": [1, 2], "action": [0, 1], "row": 1, "group": 0, "reward": [0, 0.0], "text": "b"},
    ]
    logp = {"old_logp": -0.5}
    rows = [{**row, **{name: [value] * len(row["tokens"]) for name, value in logp.items()}, **changes} for row in rows]
    lines = (json.dumps({name: value for name, value in row.items() if value is not None}) for row in rows)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_batch_is_read_from_a_file(tmp_path: Path) -> None:
    batch = read_completions(_write(tmp_path / "rows.jsonl"), GRPO, dapo.algorithm())
    assert torch.equal(batch["logp"], batch["old_logp"])
    assert batch["mask"].tolist() == [[False, True, True], [False, True, False]]
    _, total = compare(GRPO, dapo.algorithm(), batch)
    assert total.gradient_norm == pytest.approx(math.sqrt((3 / 9) / (1 / 4 * (1 / 4 + 1 / 4 + 1))), rel=1e-6)


def test_file_of_rollouts_is_the_batch_of_its_run(tmp_path: Path) -> None:
    summary = train(fake(max_steps=1, num_minibatches=2), directory=tmp_path / "run")
    stored = stored_completions(summary.directory, 1, GRPO)
    batch = read_completions(tmp_path / "run" / "rollouts" / "000001.parquet", GRPO)
    assert set(batch.keys()) == set(stored.keys())
    assert all(torch.equal(batch[name], stored[name]) for name in stored.keys())
    assert "advantage" not in batch.keys()


def test_rows_of_several_steps_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", step=3)
    assert len(read_completions(path, GRPO)) == 2
    path.write_text(path.read_text().replace('"step": 3', '"step": 4', 1))
    with pytest.raises(InputError, match="got:  2 steps\n  need: the rows of one step\n  do:   name the file"):
        read_completions(path, GRPO)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"reward": None}, InputError, "got:  no column reward\n  need: reward: an outcome reward is on the last"),
        ({"old_logp": None}, InputError, "got:  no column logp, old_logp\n  need: logp: under the current model"),
        ({"action": None, "group": None}, InputError, "got:  no column action, mask, group\n"),
        ({"reward": 1.0}, InputError, "column 'reward' of batch .*\n  got:  double\n  need: a list of float32, an out"),
        ({"group": "a"}, InputError, "column 'group' of batch .*\n  got:  string\n  need: int64, rows of the"),
        ({"reward": [None, 1.0]}, InputError, "column 'reward' of batch .*\n  got:  2 nulls\n  need: a value in"),
        ({"reward": [1.0]}, BatchError, "field 'reward' of row 0\n  got:  1 values\n  need: 3, one per token"),
        ({"action": [1, 1, 1], "tokens": [1, 1, 1], "reward": [0, 0, 0], "old_logp": [-1.0, -1.0, -1.0]}, BatchError,
         "an action token at position 0"),
    ],
)  # fmt: skip
def test_file_that_is_no_batch_is_refused(
    changes: dict[str, Any], error: type[InputError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read_completions(_write(tmp_path / "rows.jsonl", **changes), GRPO)


def test_columns_are_checked_before_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.explain.comparison.batches.to_batch", lambda table: pytest.fail("rows have been read"))
    with pytest.raises(InputError, match="no column ref_logp, chosen"):
        read_completions(_write(tmp_path / "rows.jsonl"), GRPO, dpo.algorithm())


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "rows.parquet"
    damaged.write_text("no")
    with pytest.raises(DataError, match=r"rows.parquet"):
        read_completions(damaged, GRPO)
    with pytest.raises(DataError, match="got:  no such file"):
        read_completions(tmp_path / "other.parquet", GRPO)


def test_anatomy_names_the_modifiers_their_settings_and_the_papers() -> None:
    found = anatomy("grpo@trl", ["kl_loss=0.1"])
    assert found.text.startswith("grpo@trl: TRL 1.16.0, executed. ")
    assert "Modifier kl_loss: A KL penalty against the reference model, in the loss." in found.text
    assert ("kl_loss.coef", "0.1") in [(key, value) for key, value, _ in found.settings]
    assert ("a reference", "logp") in found.needs
    assert "https://arxiv.org/abs/2402.03300" in found.citations
    assert algorithm_named("grpo") == GRPO
