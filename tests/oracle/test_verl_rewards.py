"""Reward functions under verl's reward managers and in purerl: the same rows give the same rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from purerl.rewards.adapters import RewardInput
from purerl.rewards.kinds import verl as table
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.sampled import length_penalty
from purerl.rollouts.settings import Overlong

from . import reward_functions as functions

verl = pytest.importorskip("verl", reason="verl is not installed: nox -s oracle")
reward_score = pytest.importorskip("verl.utils.reward_score")

PAD = "~"
MAX_TOKENS = 64

COMPLETIONS = {
    "openai/gsm8k": [("9 * 8 = 72\n#### 72", "72"), ("#### 1,234", "1234"), ("It is 72.", "72"), ("#### 7", "72")],
    "lighteval/MATH": [(r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{3}", "4"), ("3", "3")],
    "math_dapo": [("Answer: 34", "34"), ("Answer: 35", "34"), ("34", "34")],
    "aime2024": [("Answer: 204", "204"), ("", "204")],
    "numina_olympiads": [(r"\boxed{5}", "5"), (r"\boxed{6}", "5")],
    "hiyouga/geometry3k": [(r"<think>x</think> \boxed{3}", "3"), (r"\boxed{3}", "3"), ("4", "3")],
    "searchR1_nq": [("<answer>the Louvre</answer>", {"target": ["Louvre"]}), ("<answer>b</answer>", {"target": "a"})],
}


class Characters:
    """A tokenizer: the id of a character is its code point."""

    eos_token = "</s>"

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        text = "".join(map(chr, torch.as_tensor(ids).tolist()))
        return text.replace(PAD, "") if skip_special_tokens else text

    def batch_decode(self, rows: Any, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


def _rows() -> list[tuple[str, str, Any]]:
    return [(source, text, truth) for source, pairs in COMPLETIONS.items() for text, truth in pairs]


def _data(rows: Sequence[tuple[str, str, Any]]) -> Any:
    """`rows` as verl's data: prompts on the left, completions on the right, both padded."""
    prompts = torch.tensor([[ord(PAD), ord("p")]] * len(rows))
    texts = [text or "." for _, text, _ in rows]
    responses = torch.tensor([[*map(ord, text.ljust(MAX_TOKENS, PAD))] for text in texts])
    lengths = torch.tensor([len(text) for text in texts]).unsqueeze(-1)
    mask = torch.cat([prompts != ord(PAD), torch.arange(MAX_TOKENS) < lengths], -1).long()
    others = {
        "data_source": [source for source, *_ in rows],
        "reward_model": [{"ground_truth": truth} for *_, truth in rows],
        "extra_info": [{"index": k} for k in range(len(rows))],
        "__num_turns__": [2] * len(rows),
    }
    return verl.DataProto.from_dict(
        {"prompts": prompts, "responses": responses, "attention_mask": mask},
        non_tensors={name: numpy.array(values, dtype=object) for name, values in others.items()},
    )


def _inputs(rows: Sequence[tuple[str, str, Any]]) -> list[RewardInput]:
    examples = [
        {"data_source": source, "reward_model": {"ground_truth": truth}, "extra_info": {"index": k}}
        for k, (source, _, truth) in enumerate(rows)
    ]
    return [RewardInput(str(k), text or ".", examples[k]) for k, (_, text, _) in enumerate(rows)]


def _ours(reward: Any, rows: Sequence[tuple[str, str, Any]]) -> list[RewardResult]:
    functions = {"m:reward": reward} if callable(reward) else {}
    rewards = ["m:reward"] if callable(reward) else [reward]
    with RewardRunner(rewards, functions=functions, timeout=60.0, num_workers=1) as runner:
        return runner.run(_inputs(rows))


def _manager(name: str, function: Callable | None, **settings: Any) -> Any:
    module = pytest.importorskip(f"verl.workers.reward_manager.{name}")
    cls = {"naive": "Naive", "batch": "Batch", "prime": "Prime", "dapo": "DAPO"}[name] + "RewardManager"
    return getattr(module, cls)(Characters(), 0, compute_score=function, **settings)


def _assert_equal(results: Sequence[RewardResult], theirs: dict[str, Any]) -> None:
    """The rewards, and what is logged beside them."""
    totals = theirs["reward_tensor"].sum(-1).tolist()
    assert [result.reward for result in results] == pytest.approx(totals, rel=1e-6)
    for name, values in theirs.get("reward_extra_info", {}).items():
        if name == "score":
            continue
        texts = [result.columns.get(name) for result in results]
        assert texts == [str(value) for value in values], name


@pytest.mark.parametrize("function", [functions.verl_number, functions.verl_mapping])
def test_naive(function: Callable) -> None:
    theirs = _manager("naive", function)(_data(_rows()), return_dict=True)
    _assert_equal(_ours(function, _rows()), theirs)


def test_batch() -> None:
    theirs = _manager("batch", functions.verl_batch)(_data(_rows()), return_dict=True)
    _assert_equal(_ours(functions.verl_batch, _rows()), theirs)


def test_prime() -> None:
    """Only functions that return numbers: of a mapping, the manager takes the entry 0."""
    theirs = _manager("prime", functions.verl_number)(_data(_rows()), return_dict=True)
    _assert_equal(_ours(functions.verl_number, _rows()), theirs)


def test_dapo_is_the_function_and_the_penalty_for_length_of_the_run() -> None:
    buffer = SimpleNamespace(enable=True, len=40, penalty_factor=1.5, log=False)
    manager = _manager("dapo", functions.verl_mapping, max_resp_len=MAX_TOKENS, overlong_buffer_cfg=buffer)
    theirs = manager(_data(_rows()), return_dict=True)
    penalty = length_penalty(Overlong(buffer=40, factor=1.5), MAX_TOKENS)
    results, lengths = _ours(functions.verl_mapping, _rows()), [len(text or ".") for _, text, _ in _rows()]
    ours = [result.reward + penalty(length) for result, length in zip(results, lengths, strict=True)]
    assert ours == pytest.approx(theirs["reward_tensor"].sum(-1).tolist(), rel=1e-6)
    assert any(penalty(length) for length in lengths)


@pytest.mark.parametrize("function", [functions.verl_number, functions.verl_mapping, functions.verl_async])
def test_the_managers_of_the_reward_loop(function: Callable) -> None:
    module = pytest.importorskip("verl.experimental.reward_loop.reward_manager.naive", reason="aiohttp is missing")
    asyncio.set_event_loop(asyncio.new_event_loop())  # another manager may have closed the last one
    manager = module.NaiveRewardManager(SimpleNamespace(), Characters(), function)
    data = _data(_rows())
    theirs = [manager.loop.run_until_complete(manager.run_single(data[k : k + 1])) for k in range(len(data))]
    results = _ours(function, _rows())
    assert [result.reward for result in results] == pytest.approx([each["reward_score"] for each in theirs], rel=1e-6)
    for result, each in zip(results, theirs, strict=True):
        extra = {name: str(value) for name, value in each["reward_extra_info"].items() if name != "score"}
        assert result.columns == (extra if function is not functions.verl_number else {}), (
            "a number is also acc in verl"
        )


@pytest.fixture(scope="module")
def of_verl() -> list[RewardResult]:
    """The results of all rows with the functions of verl."""
    return _ours(table.Config(functions="verl"), _rows())


def test_the_kind_verl_with_its_functions_is_the_default_of_its_managers(of_verl: list[RewardResult]) -> None:
    totals = [
        _manager("naive", None)(_data([row]), return_dict=True)["reward_tensor"].sum().item() for row in _rows()
    ]  # each row by itself, because verl logs other entries for each data source
    assert [result.reward for result in of_verl] == pytest.approx(totals, rel=1e-6)
    assert {0.0, 1.0, -1.0} < {*totals}


def test_every_data_source_of_the_kind_is_in_the_table_of_verl() -> None:
    """Names with a pattern are tried with something in its place. Functions may raise: they get no valid answer."""
    for pattern in table.data_sources(table.Config(functions="verl")):
        try:
            reward_score.default_compute_score(pattern.replace("*", "2024"), "x", "y")
        except NotImplementedError as error:
            raise AssertionError(f"verl has no function for {pattern}") from error
        except Exception:  # noqa: BLE001 - of the function
            continue
    with pytest.raises(NotImplementedError):
        reward_score.default_compute_score("no such source", "x", "y")


def test_functions_of_purerl_accept_what_those_of_verl_accept(of_verl: list[RewardResult]) -> None:
    for (source, text, _), ours, theirs in zip(_rows(), _ours(table.Config(), _rows()), of_verl, strict=True):
        assert ours.reward in (0.0, 1.0)
        assert (ours.reward == 1) >= (theirs.reward >= 0.9), (source, text)
