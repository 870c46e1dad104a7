"""`gsm8k_tool` from data to evaluation: a tiny model writes Python programs, which run in worker processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from purerl.config.check import check
from purerl.data.chat import Messages, open_chat
from purerl.data.files import read_table
from purerl.data.settings import Data
from purerl.data.turn_tokens import open_turns
from purerl.envs.protocol import ToolCall
from purerl.envs.python_tool import python
from purerl.envs.schema import tool_schema
from purerl.envs.tool_formats import write_call
from purerl.loop.train import Summary
from purerl.recipes import resolve
from purerl.recipes.gsm8k_tool import gsm8k_tool
from purerl.rewards.turns import gsm8k_answer
from purerl.store.rollouts import read_rollouts
from tests.data.made import assistant, system, tokenizer, user, write
from tests.envs.families import QWEN

from .made import (
    PROBLEMS,
    needs_published_problems,
    records,
    train,
    write_model,
    write_problems,
    write_published_problems,
)

pytestmark = pytest.mark.slow

SMALL = (
    "batch_size=4", "rollout.samples_per_prompt=4", "rollout.max_tokens=12", "evaluate.max_tokens=12",
    "environment.max_episode_tokens=80", "environment.num_workers=1", "trainer.warmup_ratio=0",
    "trainer.mixed_precision=off", "trainer.lr=1e-5", "reward_workers.num_workers=1", "num_threads=1",
)  # fmt: skip


def _system_prompt() -> str:
    """The system prompt of the recipe, with the description of the tool that the template adds to it."""
    chat = open_chat(tokenizer(QWEN), "messages")
    prompt = [system(gsm8k_tool("m", "d").data.system_prompt or ""), user("?")]
    text = open_turns(chat, [tool_schema(python)]).prompt(prompt, [tool_schema(python)]).text
    return text.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]


def _words() -> list[str]:
    """The parts of the conversations that are always the same."""
    before, after = write_call("hermes", ToolCall("python", {"code": "?"})).split("?")
    return [_system_prompt(), before, after, "<tool_response>", "</tool_response>", "#### "]


def _conversation(prompt: Messages, program: str, answer: str) -> dict[str, Messages]:
    call = assistant(write_call("hermes", ToolCall("python", {"code": program})))
    result = {"role": "tool", "content": answer}
    return {"messages": [system(_system_prompt()), *prompt, call, result, assistant(f"#### {answer}")]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that was trained to write a program, and to copy its result."""
    folder = tmp_path_factory.mktemp("model")
    rows = read_table(write_problems(folder)).to_pylist()
    programs = [problem["answer"].partition("<<")[2].partition("=")[0] for problem in PROBLEMS]
    answers = [row["reward_model"]["ground_truth"] for row in rows]
    conversations = [
        _conversation(row["prompt"], program, answer)
        for row, program, answer in zip(rows, programs, answers, strict=True)
    ]
    summary = train(
        "chat", folder / "chat", f"model={write_model(folder / 'model', QWEN, _words())}",
        f"data={write(folder / 'conversations.jsonl', conversations)}", "max_steps=80", "batch_size=4",
        "trainer.lr=4e-3", "trainer.warmup_steps=5", "trainer.mixed_precision=off", "num_threads=1",
    )  # fmt: skip
    return str(summary.model)


@pytest.fixture(scope="module")
def run(model: str, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = tmp_path_factory.mktemp("gsm8k_tool")
    data = write_problems(folder)
    return train("gsm8k_tool", folder / "run", f"model={model}", f"data={data}", f"test={data}", "max_steps=2", *SMALL)


def test_programs_run_and_the_answer_is_scored(run: Summary) -> None:
    problems = read_table(run.directory.parent / "problems.parquet").to_pylist()
    rows = [row for step in (1, 2) for row in read_rollouts(run.directory / "rollouts", step)]
    assert len(rows) == 32
    num_calls = 0
    for row in rows:
        turns = json.loads(row["messages"])[1:]
        calls = [call for turn in turns for call in turn.get("tool_calls", ()) if "error" not in call]
        results = [turn["content"] for turn in turns if turn["role"] == "tool" and turn["name"] == "python"]
        assert results == [python(**call["arguments"]) for call in calls]
        num_calls += len(calls)
        problem = problems[row["example"]]
        assert sum(row["reward"]) == gsm8k_answer(row["completion"], problem, turns)
        if re.fullmatch(r"#### \d", row["completion"]):
            assert sum(row["reward"]) == (row["completion"][-1] == problem["reward_model"]["ground_truth"])
    assert num_calls > 8
    assert sum(sum(row["reward"]) for row in rows) > 0, "some answers are correct"
    for record in records(run.directory)[1:]:
        assert (record["reward/valid_fraction"], record["rollout/failed"]) == (1, 0)
        assert record["environment/turns"] > 1.5


def test_the_evaluation_uses_the_tool(run: Summary) -> None:
    assert run.after["eval/accuracy"] > 0.7, "the model only copies what the tool has calculated"
    assert run.after["eval/valid_fraction"] == 1


def test_the_tool_and_its_system_prompt_are_shown(run: Summary) -> None:
    prompts = {row["prompt"] for row in read_rollouts(run.directory / "rollouts", 1)}
    assert all(prompt.startswith(f"<|im_start|>system\n{_system_prompt()}<|im_end|>\n") for prompt in prompts)
    assert '"name": "python"' in _system_prompt()


def test_settings_of_the_user_are_kept() -> None:
    config = resolve("gsm8k_tool", ["model=m", "data=d.parquet", "data.system_prompt=Be brief.", "max_steps=5"])
    check(config)
    assert (config.data.system_prompt, config.max_steps, config.num_epochs) == ("Be brief.", 5, None)
    assert gsm8k_tool("m", Data(files=("d",), system_prompt="")).data.system_prompt == ""
    assert gsm8k_tool("m", "d", test="t.parquet").evaluate.data == {"t": "t.parquet"}


@pytest.mark.parametrize(
    ("messages", "reward"),
    [
        ([assistant("#### 4")], 1.0),
        ([assistant("2 + 2"), {"role": "tool", "content": "4"}, assistant("#### 4")], 1.0),
        ([{**assistant(""), "tool_calls": [{"name": "python", "arguments": {"code": "print(4)"}}]}], 0.0),
        ([assistant('<tool_call>\n{"name": "python", "arguments": {"code": "4')], 0.0),
        ([assistant("#### 4"), {"role": "tool", "content": "Error"}], 0.0),
    ],
)
def test_only_an_answer_is_rewarded(messages: list[dict], reward: float) -> None:
    assert gsm8k_answer("#### 4", {"answer": "4"}, messages) == reward


@needs_published_problems
def test_the_published_problems_are_read(model: str, tmp_path: Path) -> None:
    write_published_problems(tmp_path)
    settings = (f"model={model}", f"data={tmp_path}/train.parquet", f"test={tmp_path}/test.parquet", "max_steps=1")
    summary = train("gsm8k_tool", tmp_path / "run", *settings, *SMALL)
    counts = json.loads((summary.directory / "data.json").read_text())
    assert (counts["rows"], counts["problems"]) == (12, 4)
    [record] = records(summary.directory)[1:]
    assert (record["reward/valid_fraction"], summary.after["eval/valid_fraction"]) == (1, 1)
