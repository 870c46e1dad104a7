"""Judges, classifiers, remote environments and remote sandboxes, each with servers that answer without end."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest

from purerl.envs.failures import EnvironmentFailure
from purerl.envs.hosts import episode
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import SandboxError
from purerl.rewards.endpoint.errors import EndpointError
from purerl.rewards.endpoint.settings import Endpoint
from purerl.rewards.kinds import judge, remote_classifier
from purerl.sandbox import Limits, SandboxSettings, remote, run_python
from purerl.system.bounded_http import MAX_BYTES
from tests.envs.hosts import hosted
from tests.rewards.servers import Server, compressed, dribble, endless, raw, serve, status

SHORT, LONG = 1.0, 30.0  # seconds; the long one is for what ends by itself, on a busy machine as well
EXAMPLE = {"prompt": [{"role": "user", "content": "6 * 7?"}]}
MESSAGES = [{"role": "assistant", "content": "It is 42."}]


def _endpoint(server: Server, seconds: float, retries: int) -> Endpoint:
    return Endpoint(url=server.url, model="m", timeout=seconds, deadline=seconds, max_retries=retries)


def _reward(reward: judge.JudgeReward | remote_classifier.RemoteClassifier) -> str:
    async def run() -> str:
        try:
            with pytest.raises(EndpointError) as error:
                await reward("It is 42.", EXAMPLE, MESSAGES)
        finally:
            await reward.aclose()
        return str(error.value)

    return asyncio.run(run())


def ask_judge(server: Server, seconds: float, retries: int = 0) -> str:
    return _reward(judge.build(judge.Config(endpoint=_endpoint(server, seconds, retries))))


def ask_classifier(server: Server, seconds: float, retries: int = 0) -> str:
    return _reward(remote_classifier.build(remote_classifier.Config(endpoint=_endpoint(server, seconds, retries))))


def ask_environment(server: Server, seconds: float) -> str:
    async def main(host) -> str:
        async with episode(host) as opened:
            with pytest.raises(EnvironmentFailure) as error:
                await opened.reset({}, 0)
            return f"{error.value.failure.kind}\n{error.value.failure.traceback}"

    return hosted(main, EnvironmentSettings(url=server.url, timeout=seconds))


def ask_sandbox(server: Server, seconds: float) -> str:
    settings = SandboxSettings(remote=server.url, limits=Limits(timeout=seconds))
    with pytest.raises(SandboxError) as error:
        run_python("print(1)", settings=settings)
    return str(error.value)


TOO_LARGE, TOO_DEEP = f"an answer of more than {MAX_BYTES:,} bytes", "an answer of more than 100 lists and objects"
SERVERS = {
    "endless": (endless(), TOO_LARGE),
    "a gzip bomb": (compressed(b"{}", size=2**28), TOO_LARGE),
    "deep": (raw(b"[" * 10**5 + b"]" * 10**5), TOO_DEEP),
    "nested": (raw(b"[" * 200 + b"]" * 200), TOO_DEEP),
    "dripping": (dribble(0.05), "1 s"),
    "another compression": (compressed(b"{}", encoding="deflate"), "an answer with the Content-Encoding 'deflate'"),
    "a redirect": (status(307, "elsewhere", location="http://127.0.0.1:9/"), "status 307"),
}


@pytest.mark.parametrize("ask", [ask_judge, ask_classifier, ask_environment, ask_sandbox])
@pytest.mark.parametrize("name", SERVERS)
def test_time_and_memory_are_limited(
    name: str, ask: Callable[[Server, float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.0)
    behavior, message = SERVERS[name]
    with serve(behavior) as server:
        tracemalloc.start()
        start = time.monotonic()
        try:
            text = ask(server, SHORT if name == "dripping" else LONG)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert message in text
    assert peak < 6 * MAX_BYTES
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "ask", [partial(ask_judge, retries=3), partial(ask_classifier, retries=3), ask_environment, ask_sandbox]
)
def test_attempts_and_slow_bytes_end_within_one_time_out(
    ask: Callable[[Server, float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is busy, and then answers byte by byte. No single wait is as long as the time-out."""
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.0)
    start = time.monotonic()
    with serve(status(503), dribble(0.05)) as server:
        text = ask(server, 3.0)
        assert [request.path for request in server.requests[:2]] == [server.requests[0].path] * 2, "it is sent again"
    assert "3 s" in text
    assert 2.9 < time.monotonic() - start < 15


def test_a_program_that_prints_without_end_has_a_result() -> None:
    start = b'{"status":"Success","message":"","compile_result":null,"run_result":{"status":"Finished","stdout":"'
    with serve(endless(start=start)) as server:
        result = run_python("while True: print('a')", settings=SandboxSettings(remote=server.url))
    assert result == ("output", None, b"", b"", 0.0, 0)


def test_attempts_at_a_sandbox_end_with_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(remote, "_WAIT_SECONDS", 100.0)
    start = time.monotonic()
    with serve(status(503)) as server:
        assert "does not answer\n  got:  status 503; no answer within 1 s" in ask_sandbox(server, SHORT)
    assert time.monotonic() - start < 15
