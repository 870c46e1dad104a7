"""Formulas judged by math-verify, in workers, while a run goes on: answers are written as no gold answer is."""

from __future__ import annotations

import re

import pytest

from purerl.loop.train import Summary
from purerl.store.rollouts import read_rollouts
from tests.data.made import assistant, user, write

from .made import lines, train, write_model

pytest.importorskip("math_verify")
DIGITS = range(1, 9)
STEPS = 3


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    r"""A model that was taught to answer `\boxed{x+3}`, and three steps of GRPO with rewards that say `3+x`."""
    folder = tmp_path_factory.mktemp("formulas")
    asked = {digit: [user(f"Add {digit} to x.")] for digit in DIGITS}
    talks = [{"messages": [*prompt, assistant(rf"\boxed{{x+{digit}}}")]} for digit, prompt in asked.items()]
    taught = train(
        "chat", folder / "chat", f"model={write_model(folder / 'model')}",
        f"data={write(folder / 'talks.jsonl', talks)}", "max_steps=80", "batch_size=4", "trainer.lr=4e-3",
        "trainer.warmup_steps=5", "trainer.mixed_precision=off", "num_threads=1",
    )  # fmt: skip
    problems = [{"prompt": prompt, "answer": f"{digit}+x"} for digit, prompt in asked.items()]
    data = write(folder / "problems.jsonl", problems)
    return train(
        "gsm8k", folder / "run", f"model={taught.model}", f"data={data}", f"test={data}", f"max_steps={STEPS}",
        'rewards=["purerl.rewards.math:boxed"]', "batch_size=4", "rollout.samples_per_prompt=4",
        "rollout.max_tokens=16",
        "evaluate.max_tokens=16", "trainer.mixed_precision=off", "trainer.lr=1e-4",
        "reward_workers.num_workers=1", "num_threads=1",
    )  # fmt: skip


def test_equal_formulas_are_right_however_they_are_written(done: Summary) -> None:
    rows = [row for step in range(1, STEPS + 1) for row in read_rollouts(done.directory / "rollouts", step)]
    answers = [(row, re.fullmatch(r"\\boxed\{x\+(\d)\}", row["completion"])) for row in rows]
    found = [(sum(row["reward"]), float(int(answer[1]) == DIGITS[row["example"]])) for row, answer in answers if answer]
    assert len(found) > len(rows) / 4, "the model was taught to answer so"
    assert [reward for reward, _ in found] == [right for _, right in found]
    assert 0 < sum(right for _, right in found) < len(rows), "right ones and wrong ones"


def test_all_of_it_is_judged_and_learned_from(done: Summary) -> None:
    before, *steps = lines(done.directory)
    assert before["eval/valid_fraction"] == 1
    assert [(step["reward/valid_fraction"], step["reward/failed"]) for step in steps] == [(1, 0)] * STEPS
    assert any(step["policy/grad_norm"] > 0 for step in steps)
    assert done.after["eval/valid_fraction"] == 1
    assert not (done.directory / "reward_errors.jsonl").exists()
