"""The kind `format`: a reward for completions that match a regular expression."""

from __future__ import annotations

import pytest

from purerl.rewards.kinds.format import Config, build

R1 = r"<think>.*?</think>\s*<answer>.*?</answer>"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>9 * 8\n= 72</think>\n72", 1.0),
        ("<think></think>", 1.0),
        ("<think>9 * 8", 0.0),
        ("So <think>9 * 8</think> 72", 0.0),
        ("<think>9 * <think>8</think></think> 72", 0.0),
        ("<think>9</think> and <think>8</think>", 0.0),
        ("", 0.0),
    ],
)
def test_the_default_is_one_block_of_thoughts_at_the_start(completion: str, reward: float) -> None:
    assert build(Config())(completion, {}) == reward


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>a</think><answer>b</answer>", 2.0),
        ("<think>a\nb</think>\n\n<answer>c\n</answer>", 2.0),
        ("<think>a</think> b <answer>c</answer>", -1.0),
        ("<think>a</think><answer>b</answer>!", -1.0),
    ],
)
def test_the_whole_completion_must_match(completion: str, reward: float) -> None:
    assert build(Config(pattern=R1, matched=2.0, otherwise=-1.0))(completion, {}) == reward
