"""Runs whose rewards come from a server: what becomes of its answers, of those without use, and of its costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError, RewardError
from purerl.loop.train import train
from purerl.rewards.endpoint.settings import Endpoint, check_served
from purerl.rewards.judges.settings import Answer, Judge
from purerl.rewards.kinds import judge, remote_classifier
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.store.rollouts import read_rollouts
from tests.data.made import CHATML, user
from tests.recipes.made import write_model
from tests.rewards.model_server import serve_model
from tests.rewards.servers import Request, answer, drop, serve, status

from .runs import failures, records
from .small import fake
from .test_model_rewards import real

UNIT = {"minimum": 0.0, "maximum": 9.0}
SECRET = "sk-not-for-anyone"


def endpoint_of(url: str, **settings: Any) -> Endpoint:
    return Endpoint(url=url, model="m", **{"deadline": 20.0, "timeout": 10.0, "max_retries": 0} | settings)


def judge_of(url: str, question: Judge, **settings: Any) -> Reward:
    return Reward(config=judge.Config(endpoint=endpoint_of(url, **settings), judge=question), name="judge", weight=0.5)


def run_of(reward: Reward, max_failure_rate: float = 0.9, **changes: Any) -> RunConfig:
    workers = RewardWorkers(num_workers=1, max_failure_rate=max_failure_rate)
    return fake(rewards=("tests.loop.rewards:digits", reward), reward_workers=workers, max_steps=2, **changes)


def repeats(request: Request) -> Any:
    """The score of a completion is its last digit, or 0 without any; an equals sign at the end has none."""
    last = request.question[-1]
    return answer("I like it." if last == "=" else f"Score: {last.replace('+', '0')}", prompt=10, completion=2)


DIGIT = Judge(template="+{{ completion }}", answer=Answer(**UNIT))


def test_answers_are_a_component_and_those_without_a_score_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    with serve(repeats) as server:
        reward = judge_of(server.url, DIGIT, api_key_variable="JUDGE_KEY", input_price=1e6, output_price=2e6)
        summary = train(run_of(reward), directory=tmp_path / "run")
        requests = [*server.requests]
    rows = read_rollouts(summary.directory / "rollouts", 1)
    missing = [row for row in rows if row["completion"].endswith("=")]
    assert 0 < len(missing) < len(rows)
    for row in rows:
        last = ("0" + row["completion"])[-1].replace("+", "0")
        expected = None if row in missing else int(last) / 9
        assert row["reward/judge"] == expected
        assert sum(row["reward"]) == pytest.approx(0.0 if expected is None else row["reward/digits"] + expected / 2)
        assert any(row["mask"]) == (row not in missing)
    first, second, *_ = records(summary)
    assert second["reward/failed"] == len(missing) / len(rows)
    totals = {name.rpartition("/")[2]: value for name, value in second.items() if name.startswith("reward/judge/")}
    counted = {"requests": 16, "retries": 0, "cached": 0, "prompt_tokens": 160, "completion_tokens": 32, "cost": 224}
    assert totals == counted
    assert first["eval/reward/judge/requests"] == 16
    [failure, *_] = [each for each in failures(summary.directory) if each["step"] == 1]
    assert failure["traceback"].count("\n") == 2  # without the frames of purerl and of httpx
    assert failure["traceback"].startswith("purerl.rewards.endpoint.errors.EndpointError: POST http://127.0.0.1:")
    assert "'I like it.'" in failure["traceback"]
    assert {request.headers["authorization"] for request in requests} == {f"Bearer {SECRET}"}
    files = [path for path in summary.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_second_run_finds_the_answers_in_the_cache(tmp_path: Path) -> None:
    question = Judge(template="{{ completion | length }}", answer=Answer(pattern=r"(\d)", minimum=0.0, maximum=99.0))
    with serve(lambda request: answer(request.question)) as server:
        config = run_of(judge_of(server.url, question, cache=str(tmp_path / "cache")))
        one, two = (records(train(config, directory=tmp_path / name)) for name in ("one", "two"))
        asked = len(server.requests)
    sent = sum(record.get("reward/judge/requests", 0) + record.get("eval/reward/judge/requests", 0) for record in one)
    assert asked == sent > 0
    assert sum(record.get("reward/judge/requests", 0) for record in two) == 0
    assert two[1]["reward/judge/cached"] == 16
    assert [record["reward/judge"] for record in one[1:]] == [record["reward/judge"] for record in two[1:]]


def test_an_endpoint_that_is_down_gives_missing_samples_and_never_a_zero(tmp_path: Path) -> None:
    with serve(drop()) as server:
        _check_that_nothing_is_scored(server.url, tmp_path)


def _check_that_nothing_is_scored(url: str, tmp_path: Path) -> None:
    tolerant = run_of(judge_of(url, DIGIT), max_failure_rate=1.0, evaluate=None)
    summary = train(tolerant, directory=tmp_path / "tolerant")
    record = records(summary)[1]
    assert record["reward/failed"] == 1.0
    assert not {"reward/mean", "reward/judge", "reward/digits"} & record.keys()
    with pytest.raises(RewardError) as error:
        train(run_of(judge_of(url, DIGIT), max_failure_rate=0.1), directory=tmp_path / "run")
    first, raised, shown, reason, *_ = str(error.value).splitlines()
    assert first == "too many completions failed; the first failure:"
    assert raised == "  | judge raised"
    assert shown.startswith(f"  | purerl.rewards.endpoint.errors.EndpointError: POST {url}/chat/completions: ")
    assert reason == "  |   RemoteProtocolError: Server disconnected without sending a response."


@pytest.mark.parametrize("kind", ["judge", "remote_classifier"])
def test_an_endpoint_that_nobody_serves_is_an_error_before_models_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("purerl.loop.run.open_engines", lambda *args, **kwargs: pytest.fail("models are loaded"))
    with serve(answer("Score: 1")) as server:
        url = server.url
    config = remote_classifier.Config(endpoint=endpoint_of(url))
    reward = judge_of(url, DIGIT) if kind == "judge" else Reward(config=config)
    with pytest.raises(ConfigError) as error:
        train(run_of(reward), directory=tmp_path / "run")
    assert str(error.value) == (
        f"reward '{kind}'.endpoint.url\n"
        f"  got:  {url}, where nobody answers: [Errno 111] Connection refused\n"
        "  need: a server that accepts connections\n"
        "  do:   start the server of 'm', or correct the address"
    )


def test_an_endpoint_whose_answers_are_cached_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    endpoint = endpoint_of("http://127.0.0.1:1/v1", cache=str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="nobody answers"):
        check_served(endpoint)
    (tmp_path / "cache" / "answer").touch()
    check_served(endpoint)


def test_a_run_that_stopped_resumes_when_the_endpoint_is_back(tmp_path: Path) -> None:
    broken = [True]

    def respond(request: Request) -> Any:
        return status(503) if broken[0] else answer("Score: 5")

    with serve(respond) as server:
        config = run_of(judge_of(server.url, DIGIT), max_failure_rate=0.1)
        with pytest.raises(RewardError, match="status 503"):
            train(config, directory=tmp_path / "run")
        broken[0] = False
        summary = train(config, directory=tmp_path / "run")
    assert records(summary)[-1]["reward/judge"] == pytest.approx(5 / 9)


def classify(request: Request) -> Any:
    from tests.rewards.servers import text

    assert request.body["messages"][-1]["role"] == "assistant"
    last = request.body["messages"][-1]["content"][-1:]
    return text(f'{{"data": [{{"probs": [{0.25 if last == "1" else 0.5}]}}]}}', "application/json")


def test_a_reward_model_behind_a_server_is_a_component_too(tmp_path: Path) -> None:
    with serve(classify) as server:
        config = remote_classifier.Config(endpoint=endpoint_of(server.url))
        summary = train(run_of(Reward(config=config, weight=2.0)), directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert {row["reward/remote_classifier"] for row in rows} == {0.25, 0.5}
    for row in rows:
        assert row["reward/remote_classifier"] == (0.25 if row["completion"].endswith("1") else 0.5)


def test_a_judge_behind_a_server_gives_the_scores_of_the_same_one_in_the_process(tmp_path: Path) -> None:
    """The whole path is real: a policy, a language model as the judge, and a server in front of it."""
    path = write_model(tmp_path / "judge", CHATML)
    labels = {character: float(k) for k, character in enumerate("0123456789abcdefghijklmnopqrstuvwxyz")}
    answered = Answer(pattern="([0-9A-Za-z])", labels=labels, minimum=0.0, maximum=35.0)
    question = Judge(template="{{ prompt }} {{ completion }}", system_prompt="Grade.", answer=answered, max_tokens=6)
    workers = RewardWorkers(num_workers=1, max_failure_rate=0.9)
    with serve_model(path) as server:
        remote = judge_of(server.url, question, deadline=60.0, timeout=60.0)
        config = real(tmp_path, [[user(f"{k} + {k}?")] for k in range(4)], rewards=(remote,), reward_workers=workers)
        role = Role(model=path, judge=question)
        config = evolve(config, roles={"rewards": {"local": role}}, rewards=(remote, Reward(role="local")))
        summary = train(config, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    scored = [row for row in rows if row["reward/judge"] is not None]
    assert len({row["reward/judge"] for row in scored}) > 1
    assert [row["reward/local"] for row in scored] == [row["reward/judge"] for row in scored]
    assert records(summary)[1]["reward/judge/prompt_tokens"] > 100


def test_the_deadline_of_the_endpoint_is_that_of_a_call_and_the_timeout_of_workers_has_no_effect() -> None:
    config = fake(rewards=(judge_of("http://localhost:1/v1", DIGIT),))
    check(config)  # although the deadline is 20 seconds, and the timeout 10
    with pytest.raises(ConfigError) as error:
        check(evolve(config, reward_workers=RewardWorkers(timeout=20.0)))
    assert str(error.value).splitlines() == [
        "reward_workers.timeout has no effect",
        "  got:  20.0",
        "  need: a reward that has no time limit of its own, as judges have",
        "  do:   leave it out",
    ]


def test_a_missing_key_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError) as error:
        check(run_of(judge_of("http://localhost:1/v1", DIGIT, api_key_variable="JUDGE_KEY")))
    assert str(error.value).splitlines() == [
        "reward 'judge'.endpoint.api_key_variable JUDGE_KEY",
        "  got:  no such environment variable",
        "  need: the key of http://localhost:1/v1",
        "  do:   export JUDGE_KEY=..., or leave api_key_variable out",
    ]
