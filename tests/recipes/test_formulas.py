"""Formulas, scored in worker processes. No completion is written like the answer in the data."""

from __future__ import annotations

import re

import pytest

from purerl.loop.train import Summary
from purerl.store.rollouts import read_rollouts
from tests.data.made import assistant, user, write

from .made import records, train, write_model

DIGITS = range(1, 9)
STEPS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    r"""Three steps of GRPO with answers like `3+x`, from a model that was trained to write `\boxed{x+3}`."""
    folder = tmp_path_factory.mktemp("formulas")
    prompts = {digit: [user(f"Add {digit} to x.")] for digit in DIGITS}
    conversations = [{"messages": [*prompt, assistant(rf"\boxed{{x+{digit}}}")]} for digit, prompt in prompts.items()]
    chat_run = train(
        "chat", folder / "chat", f"model={write_model(folder / 'model')}",
        f"data={write(folder / 'conversations.jsonl', conversations)}", "max_steps=60", "batch_size=4",
        "trainer.lr=4e-3", "trainer.warmup_steps=5", "trainer.mixed_precision=off",
        "num_threads=1",
    )  # fmt: skip
    problems = [{"prompt": prompt, "answer": f"{digit}+x"} for digit, prompt in prompts.items()]
    data = write(folder / "problems.jsonl", problems)
    return train(
        "gsm8k", folder / "run", f"model={chat_run.model}", f"data={data}", f"test={data}", f"max_steps={STEPS}",
        'rewards=["purerl.rewards.math:boxed"]', "batch_size=4", "rollout.samples_per_prompt=4",
        "rollout.max_tokens=16", "evaluate.max_tokens=16", "trainer.mixed_precision=off", "trainer.lr=1e-4",
        "reward_workers.num_workers=1", "num_threads=1",
    )  # fmt: skip


@pytest.mark.slow
def test_equal_formulas_are_correct_in_every_form(run: Summary) -> None:
    rows = [row for step in range(1, STEPS + 1) for row in read_rollouts(run.directory / "rollouts", step)]
    answers = [(row, re.fullmatch(r"\\boxed\{x\+(\d)\}", row["completion"])) for row in rows]
    scores = [
        (sum(row["reward"]), float(int(answer[1]) == DIGITS[row["example"]])) for row, answer in answers if answer
    ]
    assert len(scores) > len(rows) / 4, "the model was trained to answer in this form"
    assert [reward for reward, _ in scores] == [correct for _, correct in scores]
    assert 0 < sum(correct for _, correct in scores) < len(rows), "some answers are correct and some incorrect"


def test_every_completion_is_scored_and_learned_from(run: Summary) -> None:
    before, *steps = records(run.directory)
    assert before["eval/valid_fraction"] == 1
    assert [(step["reward/valid_fraction"], step["reward/failed"]) for step in steps] == [(1, 0)] * STEPS
    assert any(step["policy/grad_norm"] > 0 for step in steps)
    assert run.after["eval/valid_fraction"] == 1
    assert not (run.directory / "failures.jsonl").exists()
