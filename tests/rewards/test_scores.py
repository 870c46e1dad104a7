"""The usual spellings of a score in the answer of a judge, and answers without one: never a guess, and never 0."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.rewards.endpoint.errors import UnusableAnswerError
from purerl.rewards.judges.answers import parse_score
from purerl.rewards.judges.settings import Answer

PLAIN = {"normalize": False}
YES = {"labels": {"yes": 1, "no": 0, "not sure": 0.5}, "minimum": 0.0, "maximum": 1.0}

SEVEN = [
    "Score: 7",
    "**Score:** 7",
    "score: 7",
    "SCORE: 7",
    "**Score: 7**",
    "**Score**: **7**",
    "__Score:__ 7",
    "*Score*: _7_",
    "Score : 7",
    "Score = 7",
    "Score\uff1a7",
    "Score: 7.",
    "Score: 7.0",
    "Score: 07",
    "Score: +7",
    "Score: `7`",
    'Score: "7"',
    "Score: (7)",
    "Score: $\\boxed{7}$",
    "Score: 7 points",
    "Score: 7\n",
    "Score:\n7",
    "## Score\n\n7",
    "### Final Score\n**7/10**",
    "- Score: 7",
    "Final score: 7",
    "My overall score: 7",
    "<score>7</score>",
    "<answer>\nScore: 7\n</answer>",
    '{"score": 7}',
    '"Score: 7"',
    "```\nScore: 7\n```",
    "[[7]]",
    "Score: [[7]]",
    "Rating: [[7]]",
    "I give it [[7]].",
    "It is right. Score: 7",
    "It is right. **Score: 7**",
    "It is right, so Score: 7, and not more.",
    "Score: 7 - a good answer",
    "Score: 7 (a good answer)",
    "Score: 7/10",
    "Score: 7 / 10",
    "Score: 7 out of 10.",
    "Score: 7 of 10",
    "Score: 7 (out of 10)",
    "Score: **7**/10",
    "Score: **7/10**",
    "Score: [[7]]/10",
    "Score: 7/10.0",
    "[[7/10]]",
    "Score (1-10): 7",
    "Score (from 1 to 10): 7",
    "Score [out of 10]: 7/10",
]


@pytest.mark.parametrize("text", SEVEN)
def test_a_usual_spelling_is_a_score(text: str):
    assert parse_score(Answer(normalize=False), text) == 7
    if text[0] not in '"`':  # in quotes only if there is nothing else
        assert parse_score(Answer(normalize=False), f"The task is clear.\n\n{text}") == 7


# Some of these have digits that look like a score. A number that is none is worse than no number.
NONE = [
    "It is good.",
    "",
    "Score: N",
    "Score: ten",
    "Score: not applicable",
    "Score 7",
    "Score: about 7",
    "Score: ~~5~~ 7",
    "Score: 1e1",
    "Score: 7,5",
    "Score: 7-8",
    "Score: 7 - 8",
    "Score: 7\u20138",
    "Score: 7 to 8",
    "Score: 7 or 8",
    "Score: 7, 8",
    "Score: 7 and a half",
    "Score: 7 1/2",
    "Score: 7\u00bd",
    "Score: 7%",
    "Score: 70 %",
    "Score: 7+",
    "Score: 7th",
    "Score: 7.5.1",
    "Score: 1,000",
    "Score: 0x7",
    "Score: \u0667",
    "Score: - 7",
    "Score: 7/5",
    "Score: 7/100",
    "Score: 7 out of 8",
    "Score: 7/10/10",
    "[[7/5]]",
    "[[7-8]]",
    "[[1e1]]",
    "Score (1-5): 4",
    "Score (out of 100): 7",
    "Score: 11",
    "Score: -7",
    "z-score: 7",
    "Underscore: 7",
    "Score: 3 is too low and Score: 9 too high.",
    "[[3]] or [[9]]",
    "Score: 7\nScore: 7-8",
    "Score: 7-8. It is right. Score: 7",
]


@pytest.mark.parametrize("text", NONE)
def test_anything_else_is_no_score(text: str):
    with pytest.raises(UnusableAnswerError):
        parse_score(Answer(), text)


THREE = [
    'Score: 3\n\nThe answer contains "Score: 10", which is not for me.',
    "Score: 3\nThe answer says \u201cScore: 10\u201d.",
    "Score: 3\nIt ends with `Score: 10`.",
    "Score: 3\nIt ends with 'Score: 10'.",
    'Score: 3\n\n"The best answer.\nScore: 10"',
    "Score: 3\n\n```\nScore: 10\n```",
    "Score: 3\n\n```text\nGood.\nScore: 10",
    "Score: 3\n\n> Good.\n> Score: 10",
    'Score: 3\n\nIt has "[[10]]" at its end.',
    'Score: 3 ("Score: 10" is a part of the answer)',
    "Score: 3\n\nFor a Score: 10 it would need a proof.",
    'It is wrong. Score: 3. It says that it has "Score: 10".',
    'The answer says "Score: 10". Score: 3',
    "I thought of Score: 9 at first.\nScore: 3",
    "Score: 9\n\nNo, a step is missing.\n\nScore: 3",
    "Style score: 9\nProof score: 1\nOverall score: 3",
    '[[3]], although it says "[[10]]"',
    'Score: 3\n\nIt says "</think>\nScore: 10".',
    'A 5" pipe fits, and a 6" pipe does not. Score: 3',
    "It's the students' answer. Score: 3. Isn't it?",
]


@pytest.mark.parametrize("text", THREE)
def test_quotes_and_other_mentions_do_not_count(text: str):
    assert parse_score(Answer(normalize=False), text) == 3


@pytest.mark.parametrize(
    "text", ['It says "Score: 10".', "> Score: 10", "It ends with\n```\nScore: 10\n```", '"[[10]]" is in it']
)
def test_a_score_that_is_only_quoted_is_none(text: str):
    with pytest.raises(UnusableAnswerError, match="no line 'Score: N'"):
        parse_score(Answer(), text)


THOUGHTS = [
    "<think>Score: 9</think>Score: 3",
    "Score: 9</think>\nScore: 3",
    "<think>\nScore: 9\n</think>\n\nIt is wrong.\n<think>Score: 8</think> Score: 3",
    "<Thinking>Score: 9</Thinking> Score: 3",
    "<thought>Score: 9</thought> Score: 3",
    "[THINK]Score: 9[/THINK]Score: 3",
    "\u25c1think\u25b7Score: 9\u25c1/think\u25b7Score: 3",
    "<seed:think>Score: 9</seed:think>Score: 3",
    "<|begin_of_thought|>Score: 9<|end_of_thought|>Score: 3",
    "<|channel|>analysis<|message|>Score: 9<|end|><|start|>assistant<|channel|>final<|message|>Score: 3",
    '<think>He said "hm</think>Score: 3, which is "low".',
]


@pytest.mark.parametrize("text", THOUGHTS)
def test_a_score_in_thoughts_does_not_count(text: str):
    assert parse_score(Answer(normalize=False), text) == 3
    assert parse_score(Answer(pattern=r"(?s).*Score: (\d)", normalize=False), text) == 3


@pytest.mark.parametrize(
    "text",
    [
        "<think>Score: 9",
        "<thinking>\nScore: 9\n",
        "[THINK]Score: 9",
        "Score: 9</think>",
        "<think>Score: 9</think>It is.",
    ],
)
def test_thoughts_alone_have_no_score(text: str):
    with pytest.raises(UnusableAnswerError):
        parse_score(Answer(), text)


@pytest.mark.parametrize(
    ("settings", "text", "score"),
    [
        ({"minimum": 0.0, "maximum": 1.0}, "Score: .25", 0.25),
        ({"minimum": -1.0, "maximum": 1.0}, "Score: -0.25", -0.25),
        ({"minimum": -1.0, "maximum": 1.0}, "Score: \u22120.25", -0.25),
        ({"maximum": 5.0}, "Score: 4/5", 4),
        ({"maximum": 5.0}, "Score (1 to 5): 4", 4),
        ({"pattern": r"Grade (\S+)"}, "Grade 7/10", 7),
        ({"json_field": "score"}, '{"score": "7/10"}', 7),
        ({"json_field": "score"}, '{"score": 7.0}', 7),
        (YES, "Score: yes", 1),
        (YES, "**Score:** *No*", 0),
        (YES, "It is unclear. Score: Not sure.", 0.5),
        (YES, "[[Yes]]", 1),
        (YES, 'Score: no\nIt says "Score: yes".', 0),
    ],
)
def test_the_settings_say_what_is_valid(settings: dict[str, Any], text: str, score: float):
    assert parse_score(Answer(**settings, normalize=False), text) == score


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"maximum": 5.0}, "Score: 4/10"),
        ({"minimum": 0.0, "maximum": 1.0}, "Score: 1/10"),
        ({"pattern": r"Grade (\S+)"}, "Grade 1e1"),
        ({"pattern": r"Grade (\S+)"}, "Grade 7,5"),
        ({"pattern": r"Grade (\S+)"}, "Grade 7-8"),
        ({"pattern": r"Grade (\S+)"}, "Grade 7/5"),
        ({"pattern": r"Grade (\S+)"}, "Grade 1_0"),
        ({"pattern": r"Grade( \d)?"}, "Grade"),
        ({"json_field": "score"}, '{"score": "1e1"}'),
        ({"json_field": "score"}, '{"score": true}'),
        ({"json_field": "score"}, '{"score": 1e400}'),
        ({"json_field": "score"}, '{"score": NaN}'),
        ({"json_field": "score"}, '{"score": 1%s}' % ("0" * 400)),
        (YES, "Score: 1"),
        (YES, "Score: yesterday"),
        (YES, "Score: yes. Or Score: no"),
        (YES, "[[maybe]]"),
    ],
)
def test_other_numbers_and_words_are_no_scores(settings: dict[str, Any], text: str):
    with pytest.raises(UnusableAnswerError):
        parse_score(Answer(**settings), text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("It is good.", "no line 'Score: N': 'It is good.'"),
        ("Score: 7-8", "'7-8' is no number: 'Score: 7-8'"),
        ("Score: 7/5", "'7/5', and the maximum of the judge is 10: 'Score: 7/5'"),
        ("Score (1-5): 4", "'Score (1-5):', and the maximum of the judge is 10: 'Score (1-5): 4'"),
        ("Score: 3. Score: 9", "several scores, and no line that is only one: 3, 9: 'Score: 3. Score: 9'"),
        ("<think>Score: 5", "an answer that ends before the end of its thoughts, <think>: '<think>Score: 5'"),
    ],
)
def test_the_message_says_why_there_is_no_score(text: str, message: str):
    with pytest.raises(UnusableAnswerError) as error:
        parse_score(Answer(), text)
    assert str(error.value) == message


def test_long_answers_are_read_in_time():
    for text in ("\u201c" * 200_000, '"a ' * 100_000, "Score: " * 50_000, "`" * 200_000, "\n" * 200_000, "7" * 200_000):
        assert parse_score(Answer(normalize=False), f"{text}\n\nScore: 3") == 3
