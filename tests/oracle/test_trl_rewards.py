"""Reward functions as TRL's GRPO trainer calls them and in purerl: the same rows give the same rewards and logs."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from purerl.rewards.adapters import RewardInput, RunLength
from purerl.rewards.kinds import cosine_length, repetition
from purerl.rewards.kinds import format as format_kind
from purerl.rewards.results import RewardResult, logged_metrics
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward

from . import reward_functions as functions

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer")
rewards = pytest.importorskip("trl.rewards")

STEP, LENGTH = 30, RunLength(max_steps=100, steps_per_epoch=40.0)
OWN = [functions.trl_columns, functions.trl_sometimes, functions.trl_async, functions.trl_progress]
TEXTS = [
    r"<think>9 * 8</think> So it is \boxed{72}",
    r"<think>a <think>b</think></think> \boxed{72}",
    r"\boxed{7}",
    "<think>no end 72",
    r"it is \boxed{\frac{144}{2}}, it is it is it is it is",
    "x" * 30,
]


def _rows(*, as_messages: bool) -> list[RewardInput]:
    prompt: Any = [{"role": "user", "content": "9 * 8"}] if as_messages else "9 * 8 ="
    examples = [{"prompt": prompt, "level": k, "solution": r"$72$"} for k in range(len(TEXTS))]
    return [RewardInput(str(k), text, examples[k], tokens=[*text.encode()], step=STEP) for k, text in enumerate(TEXTS)]


@pytest.fixture
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop in which TRL's trainer calls async functions."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Trainer(grpo_trainer.GRPOTrainer):
    """TRL's trainer without a model: only its methods that compute rewards are called."""

    def __init__(self, functions: Sequence[Callable], loop: asyncio.AbstractEventLoop) -> None:
        self.reward_funcs, self.async_loop = [*functions], loop
        self.reward_func_names = [getattr(function, "__name__", "") for function in functions]
        self.reward_processing_classes, self.environments = [None] * len(functions), None
        self.accelerator = SimpleNamespace(device="cpu", is_main_process=True)
        self.args = SimpleNamespace(report_to=[])
        self.state = SimpleNamespace(global_step=STEP, max_steps=100, epoch=STEP / 40)
        self._pending_metrics, self._pending_extra_logs = defaultdict(list), defaultdict(list)


def _theirs(functions: Sequence[Callable], rows: Sequence[RewardInput], loop: Any) -> tuple[torch.Tensor, Trainer]:
    trainer = Trainer(functions, loop)
    inputs = [dict(row.example) for row in rows]
    is_text = isinstance(inputs[0]["prompt"], str)
    completions = [row.completion if is_text else row.conversation for row in rows]
    values = trainer._calculate_rewards(
        inputs, [each["prompt"] for each in inputs], completions, [[*row.tokens] for row in rows]
    )
    return values, trainer


def _ours(functions: Sequence[Any], rows: Sequence[RewardInput], weights: Sequence[float]) -> list[RewardResult]:
    here = {f"m:f{k}": function for k, function in enumerate(functions) if callable(function)}
    listed = [
        Reward(f"m:f{k}", weight) if callable(each) else Reward(config=each, weight=weight, name=f"f{k}")
        for k, (each, weight) in enumerate(zip(functions, weights, strict=True))
    ]
    runner = RewardRunner(listed, functions=here, timeout=60.0, num_workers=1)
    runner.length = LENGTH
    with runner:
        return runner.run(rows)


def _matrix(results: Sequence[RewardResult], count: int) -> torch.Tensor:
    """The value of each function for each row, NaN if it does not apply."""
    return torch.tensor([[r.components.get(f"f{k}", float("nan")) for k in range(count)] for r in results])


@pytest.mark.parametrize("as_messages", [False, True])
def test_functions_of_a_user(event_loop: Any, *, as_messages: bool) -> None:
    rows, weights = _rows(as_messages=as_messages), (1.0, 0.5, 2.0, -1.0)
    theirs, trainer = _theirs(OWN, rows, event_loop)
    results = _ours(OWN, rows, weights)
    torch.testing.assert_close(_matrix(results, len(OWN)), theirs, equal_nan=True)
    assert theirs.isnan().any()
    total = (theirs * torch.tensor(weights)).nansum(-1)
    torch.testing.assert_close(torch.tensor([result.reward for result in results]), total)
    means = {f"logged/{name}": sum(values) / len(values) for name, values in trainer._pending_metrics.items()}
    assert logged_metrics(results) == pytest.approx(means)
    assert {*means} == {"logged/tokens", "logged/progress"}
    assert [result.columns["length"] for result in results] == [str(n) for n in trainer._pending_extra_logs["length"]]


def test_functions_of_trl(event_loop: Any) -> None:
    every = [
        rewards.think_format_reward,
        rewards.accuracy_reward,
        rewards.get_cosine_scaled_reward(max_len=40),
        rewards.get_repetition_penalty_reward(ngram_size=2),
        rewards.get_soft_overlong_punishment(max_completion_len=40, soft_punish_cache=20),
    ]
    rows = _rows(as_messages=True)
    theirs, _ = _theirs(every, rows, event_loop)
    torch.testing.assert_close(_matrix(_ours(every, rows, [1.0] * len(every)), len(every)), theirs)
    assert all(column.unique().numel() > 1 for column in theirs.T)


def test_a_row_to_which_no_function_applies_has_no_reward(event_loop: Any) -> None:
    rows = _rows(as_messages=False)
    theirs, _ = _theirs([functions.trl_sometimes], rows, event_loop)
    results = _ours([functions.trl_sometimes], rows, [1.0])
    assert [result.reward is None for result in results] == theirs.isnan().all(-1).tolist()


def test_kinds_for_form_length_and_repetition(event_loop: Any) -> None:
    """Of the kinds, and what TRL's functions of the same equations return."""
    rng, alphabet = random.Random(0), ("<think>", "</think>", "a", "b\n", r"\boxed{72}")
    prompt = [{"role": "user", "content": ""}]
    texts = ["".join(rng.choices(alphabet, k=rng.randrange(12))) for _ in range(60)]
    rows = [
        RewardInput(str(k), text, {"prompt": prompt, "solution": "$72$"}, tokens=[*text.encode()])
        for k, text in enumerate(texts)
    ]
    cosine = cosine_length.Config(correctness="tests.oracle.reward_functions:accuracy", max_tokens=25)
    kinds = [format_kind.Config(), cosine, repetition.Config(ngram_size=2, penalty=1.5)]
    theirs, _ = _theirs(
        [
            rewards.think_format_reward,
            rewards.get_cosine_scaled_reward(max_len=25),
            rewards.get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.5),
        ],
        rows,
        event_loop,
    )
    torch.testing.assert_close(_matrix(_ours(kinds, rows, [1.0] * 3), 3), theirs)
    assert all(column.unique().numel() > 1 for column in theirs.T)
