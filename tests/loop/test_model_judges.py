"""Judges in the process of a run: what they are asked, what their answers become, and what fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake.model import BIGRAM, export_weights
from purerl.backends.hf import generator as hf_generator
from purerl.config.check import check
from purerl.config.schema import Role, RunConfig
from purerl.data.chat import open_chat
from purerl.errors import ConfigError, RewardError
from purerl.evaluation.problem_results import metrics
from purerl.loop.train import train
from purerl.planning.plan import plan_memory
from purerl.protocols import Completion
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.judges.question import Question
from purerl.rewards.judges.settings import Answer, Judge
from purerl.rewards.outcomes import Failure
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.rollouts.scoring.judge import ModelJudge
from purerl.runs.dry_run import dry_run
from purerl.runs.evaluation import evaluation_of_run, run_evaluation
from purerl.store.rollouts import read_batch, read_rollouts
from tests.data.made import CHATML, tokenizer, user

from .runs import failures, records, train_until, without_times
from .small import fake
from .test_model_rewards import DIGITS, EVEN, real

pytestmark = pytest.mark.slow

ONE_DIGIT = Answer(pattern=r"(\d)", minimum=0.0, maximum=9.0, normalize=False)


def parrot(folder: Path, answers: str = "01234567890=") -> str:
    """Write a fake language model, which continues each of the characters 0123456789+= with the one in `answers`."""
    own = character_tokenizer()
    own.save_pretrained(folder)
    ids = own.convert_tokens_to_ids([*"0123456789+="])
    table = torch.zeros(14, 14)
    table[ids, own.convert_tokens_to_ids([*answers])] = 100.0
    export_weights({BIGRAM: table}, folder)
    return str(folder)


def with_judge(config: RunConfig, path: str, **settings: Any) -> RunConfig:
    """`config` with a judge that reads the digits of a completion, and answers with one character."""
    own = {"template": "+{{ completion }}", "answer": ONE_DIGIT, "max_tokens": 1} | settings
    role = Role(model=path, judge=Judge(**own), generator=fake_generator.Config(vocab_size=14))
    rewards = (*config.rewards, Reward(role="strict", weight=0.5))
    return evolve(config, roles={"rewards": {"strict": role}}, rewards=rewards)


def answered(completion: str) -> float | None:
    """The text of the parrot about `completion`."""
    return None if completion.endswith("=") else float(completion[-1]) if completion[-1:].isdecimal() else 0.0


TOLERANT = RewardWorkers(max_failure_rate=0.9)


def test_the_number_in_the_answer_is_a_component_of_the_reward_at_the_last_token(tmp_path: Path) -> None:
    config = with_judge(fake(rewards=(DIGITS,), reward_workers=TOLERANT), parrot(tmp_path / "judge"))
    summary = train(config, directory=tmp_path / "run")
    rows, batch = (read(summary.directory / "rollouts", 1) for read in (read_rollouts, read_batch))
    assert 0 < sum(row["reward/strict"] is None for row in rows) < len(rows)
    for row, reward, action in zip(rows, batch["reward"], batch["action"], strict=True):
        score = answered(row["completion"])
        assert row["reward/strict"] == score
        expected = torch.zeros_like(reward)
        if score is not None:
            expected[action.nonzero()[-1]] = row["reward/digits"] + 0.5 * score
        torch.testing.assert_close(reward, expected)


def test_an_answer_without_a_number_is_a_counted_failure_and_the_run_continues(tmp_path: Path) -> None:
    config = with_judge(fake(rewards=(), reward_workers=TOLERANT), parrot(tmp_path / "judge", "+1234567891="))
    summary = train(config, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    missing = [row for row in rows if row["reward/strict"] is None]
    assert [row["completion"][-1:] in ("0", "=") for row in rows] == [row in missing for row in rows]
    assert not any(any(row["mask"]) for row in missing)
    record = records(summary)[1]
    assert record["reward/failed"] == len(missing) / len(rows)
    logged = [entry for entry in failures(summary.directory) if entry["step"] == 1]
    assert [entry["function"] for entry in logged] == ["strict"] * len(missing)
    message = "no text that matches '(\\\\d)': '{}' (the answer was cut at max_tokens, 1)\n"
    assert {entry["traceback"] for entry in logged} <= {message.format("+"), message.format("=")}


def test_a_run_stops_if_no_answer_has_a_number(tmp_path: Path) -> None:
    config = with_judge(fake(rewards=()), parrot(tmp_path / "judge", "++++++++++++"))
    with pytest.raises(RewardError, match="\n  \\| strict failed\n  \\| no text that matches"):
        train(config, directory=tmp_path / "run")


def test_an_evaluation_a_resumed_run_and_a_gate(tmp_path: Path) -> None:
    config = with_judge(fake(rewards=(DIGITS,), gates=(EVEN,), reward_workers=TOLERANT), parrot(tmp_path / "judge"))
    summary = train(config, directory=tmp_path / "run")
    train_until(3, config, directory=tmp_path / "cut")
    assert without_times(records(train(config, directory=tmp_path / "cut"))) == without_times(records(summary))
    evaluation = evaluation_of_run(summary.directory, {})
    measured, last = metrics(run_evaluation(evaluation), evaluation.settings), records(summary)[-1]
    assert measured["eval/reward/strict"] == last["eval/reward/strict"] > 0
    for row in read_rollouts(summary.directory / "rollouts", 1):
        if row["reward/first_is_even"] == 0:
            assert sum(row["reward"]) == 0


def test_several_samples_are_combined_and_their_seeds_differ(tmp_path: Path) -> None:
    path = tmp_path / "judge"
    parrot(path)
    export_weights({BIGRAM: torch.zeros(14, 14)}, path)  # every token is equally likely
    settings = {"samples": 16, "temperature": 1.0, "combine": "mean"}
    config = with_judge(fake(rewards=(), reward_workers=TOLERANT), str(path), **settings)
    summary = train(config, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    scores = [row["reward/strict"] for row in rows if row["reward/strict"] is not None]
    assert len(scores) > len(rows) / 2
    assert len({*scores}) > 1  # another question has another seed
    assert all(1 < score < 8 for score in scores)
    assert any(score != round(score) for score in scores)


def test_thoughts_between_special_tokens_are_no_answer() -> None:
    own = tokenizer(CHATML)  # its tokens <think> and </think> are special
    unused: Any = SimpleNamespace()
    judge = ModelJudge("strict", Question(Judge()), unused, open_chat(own, "messages"), 0)

    def score(text: str) -> float | Failure:
        ids = own(text, add_special_tokens=False)["input_ids"]
        return judge._score([Completion("a", ids, [0.0] * len(ids), [0] * len(ids), "stop")])

    assert score("<think>Score: 10</think>Score: 1<|im_end|>") == 0.0
    assert score("Score: 10</think>Score: 1<eos>") == 0.0
    for text in ("<think>Score: 10", "<think>Score: 10</think>I do not know.<|im_end|>"):
        assert isinstance(score(text), Failure)


# --- a real model ---------------------------------------------------------------------------------------------------


def test_a_real_model_answers_the_question_in_its_chat_template(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.recipes.made import write_model

    prompts = [[user(f"{k} + {k}?")] for k in range(4)]
    config, path = real(tmp_path, prompts), write_model(tmp_path / "judge", CHATML)
    answer = Answer(pattern=r"([a-z])", labels={chr(c): c for c in range(97, 123)}, minimum=0.0, maximum=1000.0)
    settings = {"template": "Task: {{ prompt }}\nAnswer: {{ completion }}", "system_prompt": "Judge.", "max_tokens": 5}
    role = Role(model=path, judge=Judge(answer=answer, **settings))
    rewards = (Reward(role="strict"),)
    config = evolve(config, roles={"rewards": {"strict": role}}, rewards=rewards, reward_workers=TOLERANT)
    summary = train(config, directory=tmp_path / "run")
    own, model, found = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path), list[bool]()
    for row in read_rollouts(summary.directory / "rollouts", 1):
        question = f"Task: {prompts[row['example']][0]['content']}\nAnswer: {row['completion']}"
        messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": question}]
        inputs = own.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        new = model.generate(**inputs, do_sample=False, max_new_tokens=5)[0, inputs["input_ids"].shape[1] :]
        text = own.decode(new, skip_special_tokens=True)
        letters = [character for character in text if character.isascii() and character.islower()]
        assert row["reward/strict"] == (pytest.approx(ord(letters[-1]) / 1000) if letters else None)
        found.append(bool(letters))
    assert 0 < sum(found) < len(found)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"judge": None},
            (
                "roles.rewards.strict.generator has no effect\n  got:  'fake'\n"
                "  need: a judge; a classifier samples nothing\n"
                "  do:   set roles.rewards.strict.judge, or leave roles.rewards.strict.generator out"
            ),
        ),
        (
            {"trainer": hf_generator.Config()},
            "roles.rewards.strict.trainer has no effect\n  got:  'hf'\n  need: a classifier; a judge has a generator",
        ),
        (
            {"judge": Judge(template="{{ prompt }}")},
            "roles.rewards.strict.judge.template\n  got:  a template that uses prompt\n  need: one that shows",
        ),
        (
            {"generator": hf_generator.Config(), "model": None},
            "roles.rewards.strict.model is missing\n  need: a classifier, such as purerl train reward_model makes, or",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    config = with_judge(fake(), "m")
    role = evolve(config.roles["rewards"]["strict"], **changes)
    with pytest.raises(ConfigError) as error:
        check(evolve(config, roles={"rewards": {"strict": role}}))
    assert str(error.value).startswith(message)


def test_a_column_that_the_data_does_not_have_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    config = with_judge(real(tmp_path, ["1?"]), parrot(tmp_path / "judge"), template="{{ completion }} {{ solution }}")
    with pytest.raises(ConfigError) as error:
        dry_run(config)
    assert str(error.value).splitlines() == [
        "reward 'roles.rewards.strict' reads columns that the data set does not have",
        "  got:  prompt",
        "  need: also solution",
        "  do:   rename a column of the data set, or use another reward function",
    ]


def test_a_system_prompt_for_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    config = with_judge(real(tmp_path, ["1?"]), parrot(tmp_path / "judge"), system_prompt="Judge.")
    with pytest.raises(ConfigError, match="^roles.rewards.strict.judge.system_prompt has no effect\n  got:  plain"):
        dry_run(config)


def test_a_plan_of_memory_has_the_weights_of_the_judge(tmp_path: Path) -> None:
    config = real(tmp_path, ["1?"])
    counted = evolve(config, roles={"rewards": {"strict": Role(model=config.model, judge=Judge())}})
    sizes = plan_memory(counted).device
    assert sizes["rewards.strict: parameters"] == sizes["policy: parameters"]
