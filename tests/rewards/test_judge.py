"""Judges behind an endpoint: what they are asked, what is read from their answers, and what fails."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from jinja2 import UndefinedError

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.endpoint import client
from purerl.rewards.endpoint.errors import EndpointError, UnusableAnswerError
from purerl.rewards.endpoint.settings import Endpoint
from purerl.rewards.judges.answers import combine, parse_score
from purerl.rewards.judges.question import Question
from purerl.rewards.judges.settings import Answer, Judge
from purerl.rewards.kinds import judge
from purerl.rewards.loading import as_reward
from purerl.rewards.outcomes import Measured
from purerl.rewards.runner import RewardRunner

from .servers import Server, answer, raw, serve, slow, status

ENDPOINT = Endpoint(url="http://localhost:1/v1", model="m")
EXAMPLE = {"prompt": [{"role": "user", "content": "6 * 7?"}], "answer": "42"}


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_DELAY", 0.01)


# --- what is read from an answer -----------------------------------------------------------------------------------

UNIT = {"minimum": 0.0, "maximum": 1.0}


@pytest.mark.parametrize(
    ("settings", "text", "score"),
    [
        ({}, "Score: 10", 1.0),
        ({}, "I thought of Score: 2 at first.\nScore: 5.5", 0.5),
        ({}, "<think>Score: 1? Score: 9?</think>\nScore: 10", 1.0),
        ({"normalize": False}, "Score: 7", 7.0),
        ({"minimum": -1.0, "maximum": 1.0, "normalize": False}, "Score: -0.25", -0.25),
        ({"pattern": r"\[\[(\d+)\]\]"}, "[[1]] or [[4]]", 1 / 3),
        ({"pattern": r"(result|grade)=(?P<score>\d)"}, "result=4", 1 / 3),
        ({"pattern": r"(?i)(yes|no)\W*$", "labels": {"yes": 1, "no": 0}, **UNIT}, "I say YES.", 1.0),
        ({"json_field": "score"}, '{"score": 10}', 1.0),
        ({"json_field": "score"}, '```json\n{"why": "{x}", "score": "4"}\n```', 1 / 3),
        ({"json_field": "grades.style"}, 'a {b} {"grades": {"style": 1}} {"grades": {"style": 10}} {"other": 3}', 1.0),
        ({"json_field": "is_correct", "labels": {"true": 1, "false": 0}, **UNIT}, '{"is_correct": false}', 0.0),
    ],
)
def test_a_score_is_read_from_an_answer(settings: dict[str, Any], text: str, score: float):
    assert parse_score(Answer(**settings), text) == pytest.approx(score)


def test_the_number_of_a_label_is_a_score_without_scaling_too():
    answer = Answer(pattern="(yes|no)", labels={"yes": 1, "no": 0}, normalize=False, **UNIT)
    score = parse_score(answer, "yes")
    assert (score, type(score)) == (1.0, float)


@pytest.mark.parametrize(
    ("settings", "text", "message"),
    [
        ({}, "It is good.", "no line 'Score: N': 'It is good.'"),
        ({"pattern": r"Grade: (\d)"}, "It is good.", "no text that matches 'Grade: (\\\\d)': 'It is good.'"),
        ({}, "Score: 11", "a score of 11, which is not from 1 to 10: 'Score: 11'"),
        ({}, "<think>Score: 5", "an answer that ends before the end of its thoughts, <think>: '<think>Score: 5'"),
        ({}, "Score: 5</think>", "no line 'Score: N'"),
        ({"pattern": r"Score: (\w+)"}, "Score: ten", "'ten' is no number: 'Score: ten'"),
        ({"pattern": r"Score: (\w+)"}, "Score: nan", "'nan' is no number"),
        ({"pattern": r"(\w+)$", "labels": {"yes": 1, "no": 0}, **UNIT}, "maybe", "'maybe' is none of yes, no: 'maybe'"),
        ({"json_field": "score"}, '{"score": ', "no JSON object with the field 'score': '{\"score\": '"),
        ({"json_field": "score"}, '{"score": null}', "no JSON object with the field 'score'"),
        ({"json_field": "score"}, '{"score": [1]}', "'[1]' is no number"),
        ({"json_field": "score"}, '{"score": NaN}', "a score of nan, which is not from 1 to 10"),
        ({}, "", "no line 'Score: N'"),
    ],
)
def test_an_answer_without_a_valid_score_cannot_be_used(settings: dict[str, Any], text: str, message: str):
    with pytest.raises(UnusableAnswerError) as error:
        parse_score(Answer(**settings), text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("how", "scores", "expected"),
    [
        ("mean", [0.0, 0.5, 1.0], 0.5),
        ("majority", [0.25, 1.0, 0.25], 0.25),
        ("majority", [0.0, 1.0, 0.5], 0.5),
        ("median", [0.0, 0.2, 1.0], 0.2),
        ("min", [0.3, 0.2], 0.2),
        ("max", [0.3, 0.2], 0.3),
    ],
)
def test_several_scores_are_combined(how, scores, expected):
    judge = Judge(samples=max(2, len(scores)), temperature=1.0, combine=how)
    assert combine(scores, judge) == expected


# --- what is asked -------------------------------------------------------------------------------------------------


def asked(settings: dict[str, Any], example: dict[str, Any] = EXAMPLE, messages: Any = ()) -> list[dict[str, str]]:
    return Question(Judge(**settings))("It is 42.", example, messages)


def test_the_default_question_shows_the_task_and_the_answer():
    [message] = asked({"answer": Answer(minimum=0.0, maximum=5.0)})
    assert message["role"] == "user"
    assert "<task>\n6 * 7?\n</task>" in message["content"]
    assert "<answer>\nIt is 42.\n</answer>" in message["content"]
    assert "number from 0 (the answer is useless) to 5 (it could not be better)" in message["content"]


def test_a_template_may_use_columns_and_the_conversation(tmp_path: Path):
    (tmp_path / "judge.jinja").write_text("{{ answer }} {{ example.answer }} {{ conversation }}\n")
    messages = [{"role": "assistant", "content": "It is"}, {"role": "tool", "content": None}]
    settings = {"template_file": str(tmp_path / "judge.jinja"), "system_prompt": "Be strict."}
    assert asked(settings, messages=messages) == [
        {"role": "system", "content": "Be strict."},
        {"role": "user", "content": "42 42 assistant: It is\n\ntool: "},
    ]


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ({"question": "Why?"}, "Why?"),
        ({"prompt": "Why?"}, "Why?"),
        (
            {"prompt": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Why?"}]},
            "system: Be.\n\nuser: Why?",
        ),
        ({"completion": "a column of this name", "prompt": "p"}, "p"),
    ],
)
def test_the_prompt_is_text(example: dict[str, Any], expected: str):
    assert asked({"template": "{{ prompt }}|{{ completion }}"}, example)[0]["content"] == f"{expected}|It is 42."


def test_text_of_a_completion_is_no_template():
    [message] = Question(Judge(template="{{ completion }}"))("{{ answer }} {% for %}", EXAMPLE, ())
    assert message["content"] == "{{ answer }} {% for %}"


def test_a_column_that_an_example_does_not_have_is_an_error():
    with pytest.raises(UndefinedError, match="'source' is undefined"):
        asked({"template": "{{ source }} {{ completion }}"})


def config_of(endpoint: Endpoint = ENDPOINT, extra_body: Any = MappingProxyType({}), **settings: Any) -> judge.Config:
    return judge.Config(endpoint=endpoint, extra_body=dict(extra_body), judge=Judge(**settings))


def test_the_columns_of_a_template_are_known_before_the_run():
    config = config_of(template="{{ prompt }} {{ source }} {{ example.x }} {{ completion }}")
    assert judge.columns(config) == [("prompt", "question", "problem"), "source"]
    assert judge.columns(config_of()) == [("prompt", "question", "problem")]


# --- asking --------------------------------------------------------------------------------------------------------


def score(server: Server, completion: str = "It is 42.", **settings: Any) -> Any:
    endpoint = Endpoint(url=server.url, model="grader", **settings.pop("endpoint", {}))
    reward = judge.build(config_of(endpoint, **settings))

    async def run() -> Any:
        try:
            return await reward(completion, EXAMPLE, [{"role": "assistant", "content": completion}])
        finally:
            await reward.aclose()

    return asyncio.run(run())


def test_a_judge_is_a_reward_function_of_purerl():
    reward = as_reward("judge", judge.build(config_of()))
    assert reward.convention.name == "purerl"
    assert [*inspect.signature(reward.function).parameters] == ["completion", "example", "messages"]


def test_the_deadline_is_that_of_a_call_in_a_worker():
    with serve(slow(1.5, answer("Score: 10"))) as server:
        config = config_of(Endpoint(url=server.url, model="grader"))
        with RewardRunner([config], functions={}, timeout=0.2, num_workers=1) as runner:
            [result] = runner.run([RewardInput("0", "It is 42.", EXAMPLE)])
    assert result.components == {"judge": 1.0}, result.failure


def test_the_reward_is_the_score_and_everything_is_counted():
    prices = {"input_price": 1e6, "output_price": 2e6}
    with serve(answer("Score: 7", prompt=50, completion=4)) as server:
        result = score(server, endpoint=prices, extra_body={"reasoning_effort": "low"}, max_tokens=64)
        [request] = server.requests
    totals = {"requests": 1.0, "retries": 0.0, "cached": 0.0, "prompt_tokens": 50.0, "completion_tokens": 4.0}
    assert result == Measured(pytest.approx(2 / 3), {**totals, "cost": 58.0})
    body = {name: value for name, value in request.body.items() if name != "messages"}
    assert body == {"model": "grader", "temperature": 0.0, "max_tokens": 64, "reasoning_effort": "low"}
    assert "It is 42." in request.question


def test_nonsense_is_asked_for_again():
    with serve(answer("Well."), answer("Score: 99"), raw(b"[]"), answer("Score: 1")) as server:
        result = score(server)
    assert result.value == 0.0
    assert result.totals["requests"] == 4


def test_nonsense_is_a_failure_after_all_attempts_with_its_cost():
    with serve(answer("Well.", prompt=10)) as server, pytest.raises(EndpointError) as error:
        score(server, endpoint={"max_retries": 1, "input_price": 1e6})
    assert str(error.value).splitlines() == [
        f"POST {server.url}/chat/completions: 2 attempts failed",
        *["  no line 'Score: N': 'Well.'"] * 2,
    ]
    assert (error.value.totals["requests"], error.value.totals["cost"]) == (2, 20.0)


@pytest.mark.parametrize(
    ("behavior", "message"),
    [
        (answer("So", finish="length"), "(the answer was cut at max_tokens, 1024)"),
        (answer(None), "an answer without text: {'index': 0, "),
        (raw(b'{"choices": []}'), "an answer that is no chat completion: {'choices': []}"),
        (raw(b'"text"'), "an answer that is no chat completion: 'text'"),
    ],
)
def test_an_answer_of_another_form_is_a_failure_that_shows_it(behavior: Any, message: str):
    with serve(behavior) as server, pytest.raises(EndpointError) as error:
        score(server, endpoint={"max_retries": 0})
    assert message in str(error.value)


def votes(*scores: int | None) -> Any:
    """Answers by the seed of the request: each sample has its own."""
    return lambda request: (
        status(400) if scores[request.body["seed"]] is None else answer(f"Score: {scores[request.body['seed']]}")
    )


def test_several_samples_are_different_requests_and_the_majority_decides():
    with serve(votes(10, 1, 10)) as server:
        result = score(server, samples=3, temperature=0.7, combine="majority")
        assert sorted(request.body["seed"] for request in server.requests) == [0, 1, 2]
    assert result.value == 1.0


def test_more_than_half_of_the_samples_are_enough():
    with serve(votes(10, None, 1)) as server:
        assert score(server, samples=3, temperature=0.7).value == 0.5
    with serve(votes(10, None)) as server, pytest.raises(EndpointError, match="the server refuses the request"):
        score(server, samples=2, temperature=0.7)


def test_samples_are_kept_in_the_cache_each(tmp_path: Path):
    with serve(votes(10, 1, 10)) as server:
        settings = dict(samples=3, temperature=0.7, endpoint={"cache": str(tmp_path)})
        first, second = (score(server, **settings) for _ in range(2))
        assert len(server.requests) == 3
    assert first.value == second.value
    assert (second.totals["cached"], second.totals["requests"], second.totals["cost"]) == (3, 0, 0)


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Answer(pattern="Score: \\d"), "pattern\n  got:  'Score: \\\\d'\n  need: a group, in parentheses"),
        (lambda: Answer(pattern="(a"), "pattern\n  got:  '(a'\n  need: a regular expression: missing )"),
        (lambda: Answer(pattern="(a)", json_field="b"), "pattern or json_field\n  got:  pattern = (a), json_field = b"),
        (lambda: Answer(minimum=2.0, maximum=1.0), "minimum\n  got:  2.0\n  need: less than maximum, 1"),
        (
            lambda: Answer(labels={"yes": 1, "no": 0}),
            "labels.no\n  got:  0\n  need: from minimum, 1, to maximum, 10\n  do:   set minimum and maximum",
        ),
        (lambda: Judge(combine="median"), "combine has no effect\n  got:  'median'\n  need: several samples"),
        (lambda: Judge(samples=3), "samples has no effect\n  got:  3\n  need: a temperature above 0: otherwise all"),
        (
            lambda: Judge(template="a", template_file="b"),
            "template or template_file\n  got:  template = a, template_fi",
        ),
        (lambda: Judge(max_tokens=0), "max_tokens\n  got:  0\n  need: an integer, at least 1"),
        (lambda: judge.check(config_of(template="{{ a")), "judge.template\n  got:  unexpected end of"),
        (
            lambda: judge.check(config_of(template="{{ answer }}")),
            "judge.template\n  got:  a template that uses answer\n  need: one that shows the completion: ",
        ),
        (
            lambda: judge.check(config_of(template_file="no-such-file")),
            "judge.template_file\n  got:  [Errno 2] No such file or directory: 'no-such-file'\n  need: a text file",
        ),
    ],
)
def test_invalid_settings_are_refused(make: Any, message: str):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value).startswith(message)
