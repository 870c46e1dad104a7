"""The recipes on expressions in postfix notation learn what their pages state, each in seconds on a CPU."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from purerl.config.check import check
from purerl.loop.train import Summary, claim_directory
from purerl.loop.train import train as run_training
from purerl.recipes import resolve
from purerl.recipes.code import problems, values
from purerl.recipes.postfix_sft import prepare
from purerl.store.rollouts import read_rollouts
from tests.docs.figures import figures

from .made import records

CONTINUED = ("postfix_dpo", "postfix_kto", "postfix_ppo", "postfix_reward_model", "postfix_rl", "postfix_distillation")
LOST = 0.1
"""By how much a run may be below the smallest figure of its page, on another kind of processor."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Summary]:
    """A function that returns the run of a recipe. Each is done once, and all have the same initial run."""
    summaries: dict[tuple[str, ...], Summary] = {}
    root = tmp_path_factory.mktemp("postfix")

    def find(recipe: str, *settings: str) -> Summary:
        key = (recipe, *settings)
        if key not in summaries:
            config, directory = resolve(recipe, settings), root / f"{recipe}{len(summaries)}"
            first = next((done for names, done in summaries.items() if names[0] in CONTINUED), None)
            if first is not None and recipe in CONTINUED:
                claim_directory(directory, config).release()
                for part in ("prepared", "initial_run"):
                    shutil.copytree(first.directory / part, directory / part)
            summaries[key] = run_training(config, directory=directory)
        return summaries[key]

    return find


@pytest.mark.training
def test_sft_learns_the_demonstrations(run: Callable[..., Summary]) -> None:
    summary = run("postfix_sft")
    assert summary.before["eval/accuracy"] < 0.05
    assert summary.after["eval/accuracy"] > min(figures("sft.md", "after 160 steps")) - LOST


@pytest.mark.training
def test_dpo_raises_the_accuracy_of_sampled_answers(run: Callable[..., Summary]) -> None:
    summary = run("postfix_dpo")
    assert summary.before["eval/accuracy"] < max(figures("dpo.md", "accuracy before")) + LOST
    assert summary.after["eval/accuracy"] > min(figures("dpo.md", "accuracy after 20 steps")) - LOST
    assert summary.after["validation/accuracy"] > min(figures("dpo.md", "held-out pairs after 20 steps")) - LOST


@pytest.mark.training
def test_kto_raises_the_accuracy_of_sampled_answers(run: Callable[..., Summary]) -> None:
    summary = run("postfix_kto")
    assert summary.before["eval/accuracy"] < max(figures("kto.md", "accuracy before")) + LOST
    assert summary.after["eval/accuracy"] > min(figures("kto.md", "after 20 steps")) - LOST
    last = records(summary.directory)[-1]
    assert last["policy/desirable_reward"] > last["policy/undesirable_reward"] + 0.3


@pytest.mark.training
def test_ppo_learns_from_one_answer_to_each_prompt(run: Callable[..., Summary]) -> None:
    summary = run("postfix_ppo")
    assert summary.before["eval/accuracy"] < max(figures("ppo.md", "accuracy before")) + LOST
    assert summary.after["eval/accuracy"] > min(figures("ppo.md", "after 40 steps")) - LOST
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert len({row["group"] for row in rows}) == len(rows) == 256
    early = [record["critic/explained_variance"] for record in records(summary.directory)[1:11]]
    assert max(early) > 0.02  # a critic that knows nothing has at most 0
    assert all("policy/grad_norm" not in record for record in records(summary.directory)[1:3])


@pytest.mark.training
def test_distillation_brings_the_student_close_to_its_teacher(run: Callable[..., Summary]) -> None:
    summary = run("postfix_distillation", f"teacher_model={run('postfix_sft').model}")
    assert summary.before["eval/accuracy"] < max(figures("distillation.md", "student before")) + LOST
    assert summary.after["eval/accuracy"] > min(figures("distillation.md", "after 50 steps")) - LOST
    rows = read_rollouts(summary.directory / "rollouts", summary.steps)
    assert all(sum(row["reward"]) in (0, 1) for row in rows)


@pytest.mark.training
def test_rl_against_a_reward_model_raises_the_accuracy_that_it_does_not_see(run: Callable[..., Summary]) -> None:
    classifier = run("postfix_reward_model")
    held_out = figures("reward_models.md", "reward model, held-out pairs")
    assert classifier.after["validation/accuracy"] > min(held_out) - LOST
    summary = run("postfix_rl", f"reward_model={classifier.model}")
    assert summary.before["eval/accuracy"] < max(figures("reward_models.md", "accuracy of the policy before")) + LOST
    assert summary.after["eval/accuracy"] > min(figures("reward_models.md", "after 40 steps")) - LOST
    last = records(summary.directory)[-1]
    assert last["reward/mean"] == pytest.approx(last["reward/preferred"])


# --- the data, and the configurations ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=3)
    return {path.stem: parquet.read_table(path).to_pylist() for path in folder.glob("*.parquet")}


def test_held_out_problems_are_in_no_training_set(data: dict[str, list[dict[str, str]]]) -> None:
    held_out = {row["prompt"] for row in data["held_out"]}
    assert len(held_out) + len(data["train"]) == len({problem.postfix for problem in problems()})
    assert {row["prompt"] for row in data["held_out_pairs"]} == held_out
    for name in ("train", "demonstrations", "pairs", "labeled"):
        assert not held_out & {row["prompt"] for row in data[name]}


def test_answers_are_correct_and_a_quarter_of_the_demonstrations_has_parentheses(
    data: dict[str, list[dict[str, str]]],
) -> None:
    by_prompt = {f"{problem.postfix}=": problem for problem in problems()}
    for row in data["train"]:
        assert row["completion"] == row["answer"] == by_prompt[row["prompt"]].infix
    correct = [row["completion"] == row["answer"] for row in data["demonstrations"]]
    assert sum(correct) / len(correct) == pytest.approx(0.25, abs=1e-3)


def test_the_rejected_answer_of_a_pair_is_not_the_chosen_one_and_half_have_no_parentheses(
    data: dict[str, list[dict[str, str]]],
) -> None:
    pairs = data["pairs"]
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)
    plain = [pair for pair in pairs if pair["rejected"] == pair["chosen"].replace("(", "").replace(")", "")]
    assert len(plain) / len(pairs) == pytest.approx(0.5, abs=0.03)
    for pair in random.Random(0).sample(plain, 50):
        assert values(pair["rejected"]) != values(pair["chosen"])


def test_a_labeled_answer_is_one_of_the_pair_of_its_problem(data: dict[str, list[dict[str, str]]]) -> None:
    labels = [row["label"] for row in data["labeled"]]
    assert sum(labels) == len(labels) // 2 + len(labels) % 2
    for row, pair in zip(data["labeled"], data["pairs"], strict=True):
        assert (row["prompt"], row["completion"]) == (pair["prompt"], pair["chosen" if row["label"] else "rejected"])


def test_the_seed_determines_the_data(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        prepare(tmp_path / name, seed)
    a, b, c = ((tmp_path / name / "pairs.parquet").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("recipe", ["postfix_sft", *CONTINUED])
@pytest.mark.parametrize("length", ["max_steps=7", "num_epochs=0.5"])
def test_the_length_can_be_set(recipe: str, length: str) -> None:
    needed = {"postfix_rl": ["reward_model=m"], "postfix_distillation": ["teacher_model=m"]}.get(recipe, [])
    config = resolve(recipe, [*needed, length])
    check(config)
    assert (config.max_steps, config.num_epochs) == ((7, None) if "steps" in length else (None, 0.5))
