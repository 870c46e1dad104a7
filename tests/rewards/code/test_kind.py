"""The kind `code` and the two functions: settings, checks before a run, and scoring in worker processes."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.errors import ConfigError, SandboxError
from purerl.recipes.addition import addition
from purerl.rewards.adapters import RewardInput
from purerl.rewards.check import check_rewards
from purerl.rewards.code import function_tests, stdin_tests
from purerl.rewards.kinds.code import Config, seconds
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward, RewardWorkers, to_rewards
from purerl.sandbox import Limits, SandboxSettings
from tests.sandbox.attacks import marker, processes_with

from .exploits import marked
from .problems import ADD, BODY, PROGRAM, SUM

FUNCTION, STDIN = "purerl.rewards.code:function_tests", "purerl.rewards.code:stdin_tests"


# --- settings ----------------------------------------------------------------------------------------------------


def test_settings_are_written_beside_the_weight() -> None:
    text = '{kind = "code", tests = "stdin", timeout = 2.0, sandbox = {limits = {max_memory = "1GiB"}}, weight = 0.5}'
    config = apply(addition(), [f"rewards=[{text}]"])
    sandbox = SandboxSettings(limits=Limits(max_memory=1024))
    expected = Config(tests="stdin", timeout=2.0, sandbox=sandbox)
    assert config.rewards == (Reward(config=expected, weight=0.5),)
    assert config.rewards[0].full_name == "code"
    assert from_dict(RunConfig, to_dict(config)) == config


_NEED = "one that `purerl config` lists"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('test = "stdin"', f"rewards.test\n  got:  no such setting\n  need: {_NEED}\n  do:   did you mean 'tests'?"),
        (
            "timeout = 0.0",
            "rewards.timeout\n  got:  0.0\n  need: a finite number above 0\n  do:   leave it out for 4.0",
        ),
        (
            'comparison = "lines"',
            ("rewards.comparison has no effect\n  got:  'lines'\n  need: tests = \"stdin\"\n"
            "  do:   leave comparison out"),
        ),
        (
            'tests = "stdin", language = "phyton"',
            "rewards.language\n  got:  'phyton'\n  do:   did you mean 'python'?",
        ),
        (
            "sandbox = {limits = {timeout = 3.0}}",
            ("rewards.sandbox.limits.timeout has no effect\n  got:  3.0\n  need: a program that has no timeout of its "
            "own\n  do:   set timeout, beside sandbox"),
        ),
        (
            'sandbox = {remote = "http://host:8080"}',
            ("rewards.sandbox.remote\n  got:  http://host:8080\n  need: a sandbox on this computer: a function is "
            'called many times in one process\n  do:   set tests = "stdin"'),
        ),
    ],
)  # fmt: skip
def test_invalid_setting_is_refused(settings: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(addition(), [f'rewards=[{{kind = "code", {settings}}}]'])
    assert str(caught.value) == message


def test_partial_credit_depends_on_the_tests_unless_it_is_set() -> None:
    assert [Config(tests=tests).all_or_nothing for tests in ("function", "stdin")] == [True, False]
    assert [Config(tests=tests, partial_credit=True).all_or_nothing for tests in ("function", "stdin")] == [
        False,
        False,
    ]


# --- checks before a run -----------------------------------------------------------------------------------------


def _check(reward: Any, workers: RewardWorkers = RewardWorkers()) -> None:  # noqa: B008 -- immutable
    check_rewards(to_rewards([reward]), [], workers, {})


@pytest.mark.parametrize("reward", [FUNCTION, STDIN])
def test_workers_must_let_a_program_reach_its_own_limits(reward: Any) -> None:
    _check(reward)
    with pytest.raises(ConfigError, match="reward_workers.timeout") as caught:
        _check(reward, RewardWorkers(timeout=5.0))
    assert "at least 9.5: " in str(caught.value)


@pytest.mark.parametrize("config", [Config(), Config(tests="stdin", timeout=10.0, total_timeout=60.0)])
def test_the_timeout_of_workers_does_not_apply_to_the_kind(config: Config) -> None:
    assert seconds(config) == (18.0 if config.tests == "function" else 70.0)
    _check(config)
    with pytest.raises(ConfigError, match=r"reward_workers\.timeout has no effect"):
        _check(config, RewardWorkers(timeout=5.0))
    slow = "import time\ndef add(a, b):\n    time.sleep(0.4)\n    return a + b\n"
    if config.tests == "function":
        with RewardRunner([config], functions={}, timeout=0.1, num_workers=1) as runner:
            assert runner.run(_inputs([slow], ADD))[0].reward == 1.0


def test_a_sandbox_that_cannot_be_built_is_an_error_before_the_run() -> None:
    with pytest.raises(SandboxError, match="No module named 'missing_module'"):
        _check(Config(sandbox=SandboxSettings(preload=("missing_module",))))
    with pytest.raises(ConfigError, match=r"python\n  got:  /missing/python"):
        _check(Config(sandbox=SandboxSettings(python="/missing/python")))


def test_columns_are_checked() -> None:
    for reward in (FUNCTION, Config()):
        runner = RewardRunner([reward], functions={}, timeout=30.0, num_workers=1)
        runner.check_columns(["prompt", "test", "entry_point"])
        with pytest.raises(ConfigError, match="also test or test_list or inputs"):
            runner.check_columns(["prompt", "answer"])


# --- scoring -----------------------------------------------------------------------------------------------------


def _inputs(completions: list[str], example: dict[str, Any]) -> list[RewardInput]:
    return [RewardInput(str(k), completion, example) for k, completion in enumerate(completions)]


def test_functions_score_in_this_process() -> None:
    assert function_tests(BODY, ADD) == 1.0
    assert function_tests("    return a\n", ADD) == 0.0
    assert stdin_tests(PROGRAM, SUM) == 1.0
    assert stdin_tests("print(3)", SUM) == pytest.approx(1 / 3)


@pytest.mark.parametrize("reward", [FUNCTION, Config(timeout=1.0)])
def test_functions_score_in_workers_and_leave_nothing(reward: Any) -> None:
    word = marker()
    daemon = "\nif os.fork() == 0:\n    import time\n    time.sleep(1000)\ndef add(a, b): return a + b\n"
    completions = [BODY, "    return a\n", "    while True: pass\n", marked(daemon, word)]
    with RewardRunner([reward], functions={}, timeout=30.0, num_workers=2) as runner:
        results = runner.run(_inputs(completions, ADD))
    assert [result.reward for result in results] == [1.0, 0.0, 0.0, 1.0]
    assert processes_with(word) == []


def test_tests_that_cannot_be_used_are_failures_of_their_rows() -> None:
    broken = {**ADD, "test": "def check("}
    inputs = [RewardInput("0", BODY, ADD), RewardInput("1", BODY, broken), RewardInput("2", "    return a\n", broken)]
    with RewardRunner([FUNCTION], functions={}, timeout=30.0, num_workers=1) as runner:
        results = runner.run(inputs)
    assert [result.reward for result in results] == [1.0, None, None]
    assert "the tests of an example cannot be used" in results[1].failure.traceback


def test_a_sandbox_that_cannot_be_built_is_a_failure_and_no_reward_of_0() -> None:
    config = Config(sandbox=SandboxSettings(preload=("missing_module",)))
    with RewardRunner([config], functions={}, timeout=30.0, num_workers=1) as runner:
        (result,) = runner.run(_inputs([BODY], ADD))
    assert isinstance(result.failure, Failure)
    assert "SandboxError" in result.failure.traceback
    assert result.reward is None


def test_a_fork_of_this_process_has_sandboxes_of_its_own() -> None:
    assert function_tests(BODY, ADD) == 1.0
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(function_tests(BODY, ADD)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"1.0"
    os.close(read)


def test_sandboxes_end_with_the_worker_that_is_terminated() -> None:
    word = marker()
    source = marked("import time\ndef add(a, b): time.sleep(1000)", word)
    with RewardRunner([FUNCTION], functions={}, timeout=3.0, num_workers=1) as runner:
        (result,) = runner.run(_inputs([source], ADD))
    assert result.failure.kind == "timed out"
    end = time.monotonic() + 20
    while processes_with(word) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes_with(word) == []
