"""A reward function of OpenRLHF under its executor of single turns and in purerl."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardRunner

from . import reward_functions as functions

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed: nox -s oracle")
agent = pytest.importorskip("openrlhf.utils.agent")

END = "$"
ROWS = [("9*8=", "72", "72"), ("9*8=", "it is 7", "72"), ("1+1=", "2", "3"), ("1+1=", "", "1")]
"""Prompts, completions and labels. Every completion ends with a special token."""


class Characters:
    """A tokenizer: the id of a character is its code point, and the end token is special."""

    def __call__(self, text: str, **settings: Any) -> dict[str, Any]:
        return {"input_ids": [SimpleNamespace(tolist=lambda: [*map(ord, text)])]}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        text = "".join(map(chr, ids))
        return text.replace(END, "") if skip_special_tokens else text


def _theirs(prompt: str, completion: str, label: str) -> dict[str, Any]:
    async def generate(*arguments: Any, **keywords: Any) -> Any:
        ids = [*map(ord, completion + END)]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, finish_reason="stop", logprobs=None)])

    executor = agent.SingleTurnAgentExecutor(functions.__file__)
    parameters = SimpleNamespace(max_tokens=8, logprobs=None)
    engine = SimpleNamespace(generate=generate)
    return asyncio.run(executor.execute(prompt, label, parameters, 64, Characters(), engine))


def test_a_function_gets_the_same_and_its_rewards_scores_and_logs_are_equal() -> None:
    name = "tests.oracle.reward_functions:reward_func"
    runner = RewardRunner([name], functions={}, timeout=60.0, num_workers=1)
    assert runner.reads_query
    inputs = [
        RewardInput(str(k), completion, {"label": label}, prompt=prompt, query=prompt + completion + END)
        for k, (prompt, completion, label) in enumerate(ROWS)
    ]
    with runner:
        results = runner.run(inputs)
    theirs = [_theirs(*row) for row in ROWS]
    assert [result.reward for result in results] == pytest.approx([each["reward"].item() for each in theirs])
    assert [result.metrics["scores"] for result in results] == [(each["scores"].item(), 1) for each in theirs]
    lengths = [each["extra_logs"]["length"].item() for each in theirs]
    assert [result.metrics["length"] for result in results] == [(length, 1) for length in lengths]
    assert len({*lengths}) > 1
