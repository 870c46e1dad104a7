r"""GRPO on GSM8K with a Python tool: an instruct model of 0.5 to 3 billion parameters learns when to calculate.

    purerl data convert gsm8k SOURCE gsm8k      SOURCE: the directory of train.jsonl and test.jsonl, as published
    purerl train gsm8k_tool --set model=Qwen/Qwen2.5-1.5B-Instruct --set data=gsm8k/train.parquet \
        --set test=gsm8k/test.parquet

The model can write Python programs, as calls of the tool `purerl.envs.python_tool:python` in the format of its chat
template. Each program runs in a sandbox (docs/explanation/sandbox.md). It needs Linux with user namespaces:
`purerl doctor` tests it. `--set 'environment.tools=["purerl.envs.python_tool:Interpreter"]'` keeps variables from call
to call.

An episode ends with the first turn without a call, which is the answer. The reward is 1 if its number is correct, and 0
if it is not or if there is no answer. Nothing rewards a call. The evaluation uses the same tool. The chat template must
show tools, as those of Qwen and Llama do.

The data and `test` are those of the recipe `gsm8k`, and so are the settings, except for these:

    4 turns                       three programs and an answer; a failed program can be corrected
    512 new tokens in a turn, 1024 in an episode
                                  the results of programs count, so an endless output cannot fill the memory
    system prompt                 names the tool; small models seldom call one only because it is described. Your
                                  data.system_prompt replaces it
"""

from __future__ import annotations

from typing import Annotated

from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.envs.settings import EnvironmentSettings
from purerl.recipes.gsm8k import gsm8k
from purerl.settings import Model

__all__ = ["gsm8k_tool"]

_SYSTEM_PROMPT = (
    "Solve the problem step by step. Use the tool python for calculations: write a program that prints the result. "
    "Then give the final answer."
)


def gsm8k_tool(
    model: str | Model,
    data: str | Data,
    test: Annotated[str | None, "a file of problems to evaluate on, instead of a fraction of the data"] = None,
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """GRPO on grade-school math problems with a Python tool, two epochs by default.

    >>> gsm8k_tool(model="Qwen/Qwen2.5-1.5B-Instruct", data="gsm8k/train.parquet").environment.tools
    ('purerl.envs.python_tool:python',)
    """
    config = gsm8k(model, data, test, max_steps, num_epochs)
    prompted = (
        config.data if config.data.system_prompt is not None else evolve(config.data, system_prompt=_SYSTEM_PROMPT)
    )
    return evolve(
        config,
        name="gsm8k_tool",
        data=prompted,
        rewards=("purerl.rewards.turns:gsm8k_answer",),
        environment=EnvironmentSettings(
            tools=("purerl.envs.python_tool:python",), max_turns=4, max_episode_tokens=1024
        ),
    )
