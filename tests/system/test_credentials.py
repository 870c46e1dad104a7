"""Passwords, keys and tokens in settings are refused by every setting, and hidden in every error."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from attrs import frozen

from purerl.backends.serving.settings import ServerSettings
from purerl.data.settings import Data
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, EngineError
from purerl.monitoring.trackers import mlflow, wandb
from purerl.monitoring.trackers.trackers import Trackers
from purerl.recipes import apply
from purerl.recipes.addition import addition
from purerl.rewards.endpoint.settings import Endpoint
from purerl.rewards.kinds import judge, remote_classifier, verl
from purerl.rewards.outcomes import Failure
from purerl.rewards.settings import Reward
from purerl.sandbox import SandboxSettings
from purerl.settings import Model, setting
from purerl.system.credentials import find_credential, hide_credentials, is_server_address

ENDPOINT = Endpoint(url="http://h/v1", model="m")
ENDPOINT_TABLE = "{url = 'http://h', model = 'm'}"
OPENAI = "sk-" + "aB3" * 12
HUB = "hf_" + "x" * 34
SECRET = "hunter2"

SETTINGS = [
    lambda value: EnvironmentSettings(url=value),
    lambda value: EnvironmentSettings(mcp=(value,)),
    lambda value: SandboxSettings(remote=value),
    lambda value: Endpoint(url=value, model="m"),
    lambda value: ServerSettings(urls=(value,)),
    lambda value: verl.Config(functions="verl", sandbox_fusion_url=value),
    lambda value: mlflow.Config(uri=value),
    lambda value: Data(files=(value,)),
    Model,
    lambda value: judge.Config(endpoint=ENDPOINT, extra_body={"base_url": value}),
]
ADDRESSES = [
    f"https://user:{SECRET}@host",
    f"https://user:p@{SECRET}@host:8000/v1",
    f"http://{SECRET}@host",
    f"https://host/v1?api_key={SECRET}",
    f"https://host/v1?n=1&X-Amz-Signature={SECRET}",
    f"https://host/v1?sig={SECRET}#top",
    f"https://host/#access_token={SECRET}",
    f"HTTPS://user:{SECRET}@host",
]


def refusal(make: Any, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(value)
    chain, text = caught.value, ""
    while chain is not None:
        text, chain = text + str(chain), chain.__cause__ or chain.__context__
    return text


@pytest.mark.parametrize("make", SETTINGS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_credential_in_a_url_is_refused_and_not_shown(make: Any, address: str) -> None:
    message = refusal(make, address)
    assert SECRET not in message
    assert "need: no passwords, keys and tokens in settings" in message


MAPPINGS = [
    lambda value: judge.Config(endpoint=ENDPOINT, extra_body=value),
    lambda value: remote_classifier.Config(endpoint=ENDPOINT, extra_body=value),
    lambda value: Reward("module:function", kwargs=value),
    lambda value: EnvironmentSettings(factory="module:Class", kwargs=value),
    lambda value: Data(files=("a",), chat_template_kwargs=value),
    lambda value: ServerSettings(arguments=value),
]


@pytest.mark.parametrize("make", MAPPINGS)
@pytest.mark.parametrize(
    "value",
    [
        {"api_key": SECRET},
        {"apiKey": SECRET},
        {"password": SECRET},
        {"password": 1234567},
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"headers": [{"X-Api-Key": SECRET}]},
        {"token": SECRET},
        {"hf_token": SECRET},
        {"client_secret": SECRET},
        {"Cookie": f"session={SECRET}"},
        {"auth": f"user:{SECRET}"},
        {"dsn": f"host=h user=u password={SECRET}"},
        {"database": f"postgresql://user:{SECRET}@host/db"},
        {"user": OPENAI},
        {"list": ["a", HUB]},
        {"key": "0123456789abcdefgh"},
    ],
)
def test_credential_in_a_mapping_is_refused_and_not_shown(make: Any, value: dict[str, Any]) -> None:
    message = refusal(make, value)
    for secret in (SECRET, OPENAI, HUB, "1234567", "0123456789abcdefgh"):
        assert secret not in message


@pytest.mark.parametrize(
    "command",
    [
        f"server --api-key {SECRET}",
        f"server --token={SECRET}",
        f"env API_KEY={SECRET} server",
        f"docker run -e DB_PASSWORD={SECRET} image",
        f"npx remote --header 'Authorization: Bearer {SECRET}'",
        f"server -u user:{SECRET}",
        f"server https://user:{SECRET}@host",
        f"server {OPENAI}",
    ],
)
def test_credential_in_a_command_line_is_refused_and_not_shown(command: str) -> None:
    message = refusal(SETTINGS[1], command)
    assert SECRET not in message
    assert OPENAI not in message
    assert "write ${NAME} in a URL" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "http://host:8000/v1"),
        ("mcp", ("python server.py --port 80 --max-tokens 5", "https://host/mcp?profile=a")),
        ("mcp", ("https://host/mcp?api_key=${MCP_KEY}", "https://${MCP_USER}:${MCP_KEY}@host")),
        ("mcp", ("server --api-key $KEY", "npx remote --header 'Authorization: Bearer ${TOKEN}'")),
        ("kwargs", {"eos_token": "</s>", "image_token": "<image>", "token": "<|im_end|>", "answer_token": "####"}),
        ("kwargs", {"max_tokens": 3, "stop_token_ids": [1], "tokens": "a b", "token": None, "api_key": ""}),
        ("kwargs", {"key": "answer", "sort_key": "length", "keys": ["a", "b"], "password": "${PASSWORD}"}),
        ("kwargs", {"use_password": True, "password_length": 8, "secret_santa": "x"}),
        ("template", "Score: <n>. token = x, key=value {{ completion }} https://host/a?b=c"),
        ("system_prompt", "You get an API key: never tell it. The password is in the example."),
        ("path", "runs/sk-learn-baseline-with-a-long-name"),
        ("files", ("hf://datasets/user/name@main/a.parquet", "s3://bucket/a@b.parquet")),
        ("url", "ssh://git@host/x"),
        ("pattern", r"Score:\s*(-?\d+(?:\.\d+)?)"),
        ("api_key_variable", "JUDGE_KEY"),
    ],
)
def test_other_texts_are_accepted(name: str, value: Any) -> None:
    assert find_credential(name, value) is None


@pytest.mark.parametrize(
    ("url", "is_valid"),
    [
        ("http://host", True),
        ("https://host:8000/v1", True),
        ("http://[::1]:80", True),
        ("http://host?", False),
        ("http://host#", False),
        ("http://@host", False),
        ("http://ho st", False),
        ("http://host/\u202ea", False),
        ("http://", False),
        ("http://:80", False),
        ("http://host:0", False),
        ("http://host:99999", False),
        ("ftp://host", False),
    ],
)
def test_addresses_of_servers(url: str, *, is_valid: bool) -> None:
    assert is_server_address(url) == is_valid


@frozen
class PluginOfOthers:
    """Settings that do not use `setting`."""

    api_key: str = ""
    url: str = ""


@pytest.mark.parametrize("plugin", [PluginOfOthers(api_key=SECRET), PluginOfOthers(url=f"http://u:{SECRET}@h")])
def test_settings_of_plugins_of_others_are_checked_too(plugin: PluginOfOthers) -> None:
    @frozen
    class Section:
        trackers: tuple[Any, ...] = setting("trackers")

    assert SECRET not in refusal(Section, (wandb.Config(), plugin))


@pytest.mark.parametrize(
    "assignment",
    [
        f"environment.url=http://u:{SECRET}@h",
        f"environment.url=['http://u:{SECRET}@h']",
        f"environment.kwargs={{api_key = '{SECRET}'}}",
        f"environment.mcp='server --token={SECRET}'",
        f"rewards=[{{kind = 'judge', endpoint = {ENDPOINT_TABLE}, extra_body = {{token = '{SECRET}'}}}}]",
        f"trackers=[{{kind = 'mlflow', uri = 'postgresql://u:{SECRET}@h/db'}}]",
        f"rewards=[{{kind = 'judge', endpoint = 'https://u:{SECRET}@h'}}]",
    ],
)
def test_credential_in_a_configuration_is_not_shown(assignment: str) -> None:
    assert SECRET not in refusal(lambda value: apply(addition(), [value]), assignment)


@pytest.mark.parametrize(
    "text",
    [
        f"ConnectError: http://user:{SECRET}@host/v1",
        f"POST https://host/v1?token={SECRET}&n=1",
        f"{{'Authorization': 'Bearer {SECRET}x'}}",
        f'{{"api_key": "{SECRET}"}}',
        f"password='{SECRET}'",
        f"server --token={SECRET} --port 1 --api-key {SECRET}",
        f"the key {OPENAI} is wrong",
        f"Authorization: Bearer {SECRET}-0123",
    ],
)
def test_errors_hide_credentials(text: str) -> None:
    error = EngineError(text, got=text, need=text, do=text)
    assert SECRET not in str(error)
    assert OPENAI not in str(error)
    assert hide_credentials(str(error)) == str(error)


def test_errors_keep_other_texts() -> None:
    text = "max_tokens=5 eos_token=</s> key=answer http://host:80/v1?n=1 token=x ssh://host"
    assert hide_credentials(text) == text


def test_failures_and_warnings_of_trackers_hide_credentials(caplog: pytest.LogCaptureFixture) -> None:
    text = f"Max retries exceeded with url: https://u:{SECRET}@host/v1?key={SECRET}"
    assert SECRET not in Failure("function", "raised", text).traceback
    with Trackers() as trackers:
        trackers.add("mlflow", partial(_raise, text))
    assert "tracker mlflow: OSError: Max retries exceeded with url: https://***@host" in caplog.text
    assert SECRET not in caplog.text


def _raise(text: str) -> Any:
    raise OSError(text)
