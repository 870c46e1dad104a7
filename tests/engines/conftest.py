"""The real engines. Each nox session makes the environment of one, and names its interpreter in PURERL_TEST_ENGINE."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purerl.backends.serving.access import TOKEN, token_of_run
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.settings import ServerSettings
from purerl.plugins import find
from purerl.settings import Model
from tests.backends.generators import tiny_model

collect_ignore = ["mistral_calls.py"]  # a program of another environment, without tests
KIND, _, PYTHON = os.environ.get("PURERL_TEST_ENGINE", "").partition("=")
SIZES = dict(max_position_embeddings=2048, hidden_size=64, head_dim=32, num_key_value_heads=2)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
ENVIRONMENT = {"vllm": {**ONE_THREAD, "VLLM_CPU_KVCACHE_SPACE": "1"}, "sglang": ONE_THREAD}

FOLDER_VARIABLE = "PURERL_TEST_FOLDER"  # an environment variable of servers


def processes(folder: Path) -> list[int]:
    """All processes of the servers of `settings(folder)`, also those whose parents have ended."""
    variable, numbers = f"{FOLDER_VARIABLE}={folder}\0".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = variable in (path / "environ").read_bytes()
            state = (path / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if is_ours and state != b"Z":
            numbers.append(int(path.name))
    return numbers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason, here = "needs an engine in an environment of its own: nox -s vllm, nox -s sglang", Path(__file__).parent
    for item in items if not KIND else ():
        if item.path.parent == here:
            item.add_marker(pytest.mark.skip(reason=reason))


def settings(folder: Path, **changes: Any) -> Any:
    """The settings of the engine: small servers on the CPU."""
    own = {name: changes.pop(name) for name in list(changes) if name in _names(KIND)}
    if "urls" not in changes:
        environment = {**ENVIRONMENT[KIND], FOLDER_VARIABLE: str(folder)}
        process = {"python": PYTHON, "environment": environment, "logs": str(folder), "device": "cpu"}
        changes = {**process, "start_timeout": 600.0, **changes}
    return find("generator", KIND).Config(server=ServerSettings(**changes), **{"max_num_seqs": 64, **own})


def _names(kind: str) -> set[str]:
    import attrs

    return {each.name for each in attrs.fields(find("generator", kind).Config)} - {"server"}


def build(model: Model, folder: Path, **changes: Any) -> ServedGenerator:
    return find("generator", KIND).build(settings(folder, **changes), model=model, seed=0)


def check_running(model: Model, folder: Path, **changes: Any) -> None:
    """Raise EngineError if a server that runs already cannot be used: what a run does before it loads models."""
    find("generator", KIND).check_running(settings(folder, **changes), model=model)


@pytest.fixture(scope="session", autouse=True)
def _token() -> None:
    """Servers of this process are also servers that run already, of which it knows the token."""
    os.environ[TOKEN] = token_of_run()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """Two random models with the same shapes."""
    folder = tmp_path_factory.mktemp("models")
    first, second = (tiny_model(folder, seed=seed, **SIZES) for seed in (0, 1))
    return first, second


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server at `url`."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def url(models: tuple[Model, Model], servers: Path) -> Iterator[str]:
    """The address of a server that tests share."""
    generator = build(models[0], servers)
    yield generator.servers[0].url
    generator.close()
