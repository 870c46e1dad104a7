"""The answer that a sentence states."""

from __future__ import annotations

import pytest

from purerl.rewards.sentences import stated_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The smallest such prime is 23.", "23"),
        (r"The largest $n$ with $n^2 < 1200$ is \(34\).", r"\(34\)"),
        ("The value which is largest is 7", "7"),
        ("The remainder when 100 is divided by 7 is 2.", "2"),
        ("It's 12.", "12"),
        ("That should be exactly 12", "12"),
        ("There are 12 ways to arrange 3 books.", "12 ways"),
        ("The ratio is 3 to 1.", "3 to 1"),
        ("The capital is Paris.", "Paris"),
        ("f(5) is 7.", "7"),
        ("She has 3.5 kg left.", "3.5 kg left"),
        ("The total equals 7 because 3 + 4 is 7", "7"),
        ("clearly $12$.", "$12$"),
        ("23 is the smallest prime", "23"),
        ("n = 23 is our answer", "n = 23"),
        ("12, since x = 9", "12"),
        ("12 for even n", "12"),
        ("$x = 5$ or $x = -5$. It is even.", "$x = 5$ or $x = -5$"),
        ("**The sum is 5**", "5"),
        ("12.5.", "12.5"),
        ("5! = 120", "5! = 120"),
        ("no solution", "no solution"),
        ("June 20", "June 20"),
        (r"\ln 2", r"\ln 2"),
        ("ln 2", "ln 2"),
    ],
)
def test_stated_answer(text: str, answer: str) -> None:
    assert stated_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "It is not 23",
        "It isn't 23",
        "I don't think it is 23",
        "The value is at least 23",
        "The value is 23 or 24",
        "The value is between 23 and 24",
        "The value is 23 more than 5",
        "The value is about 23",
        "The first is 23 and the second is 24",
        "If x is 5, it is 23",
        "She has 3 red and 4 blue balls",
        "She has no more than 23",
        "Step 23",
    ],
)
def test_sentence_that_states_no_number_stays_as_it_is(text: str) -> None:
    assert stated_answer(text) == text


@pytest.mark.parametrize("text", ["23 is wrong", "23 is the wrong answer", "23 is not the answer"])
def test_rejected_number_at_the_start_is_not_taken(text: str) -> None:
    assert stated_answer(text) == text
