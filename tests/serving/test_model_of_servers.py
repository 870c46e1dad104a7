"""The description of its model that the program of a server gives, and the conclusions of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.serving.identity import config_problem, version_problem
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.transfer.engine import purerl_model
from purerl.backends.vllm import generator as vllm
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.models.pretrained import config_of
from purerl.placement.settings import Actors, Placement
from purerl.recipes.addition import addition
from purerl.settings import Model
from tests.backends.generators import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _no_cache() -> None:
    purerl_model.describe_model.cache_clear()


def _config(model: Model) -> dict[str, Any]:
    return json.loads((Path(model.path) / "config.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        ["vllm.entrypoints.cli.main", "serve", "MODEL", "--port", "1"],
        ["vllm.entrypoints.cli.main", "serve", "--model", "MODEL"],
        ["vllm.entrypoints.cli.main", "serve", "nothing", "--model=MODEL"],
        ["sglang.launch_server", "--model-path", "MODEL", "--port", "1"],
        ["sglang.launch_server", "--model-path=MODEL"],
        ["sglang.launch_server", "--model", "MODEL", "--tokenizer-path", "MODEL", "--trust-remote-code"],
    ],
)
def test_program_describes_the_model_of_its_command_line(
    model: Model, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [argument.replace("MODEL", model.path) for argument in arguments])
    described = purerl_model.describe_model()
    assert config_problem(config_of(model), described["config"]) is None
    assert described["vocabulary"]["size"] > 0
    assert len(described["vocabulary"]["digest"]) == 64


@pytest.mark.parametrize(
    "arguments", [["engine"], ["engine", "serve"], ["engine", "--model", "/nowhere/model"], ["--model"]]
)
def test_program_without_a_model_that_can_be_read_says_nothing(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert purerl_model.describe_model() == {}


def test_digest_of_a_vocabulary_has_tokens_and_numbers() -> None:
    first = purerl_model.describe_vocabulary({"a": 0, "b": 1, "\udce4": 2})
    assert first == purerl_model.describe_vocabulary({"\udce4": 2, "b": 1, "a": 0})
    assert first != purerl_model.describe_vocabulary({"a": 1, "b": 0, "\udce4": 2})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "bfloat16", "transformers_version": "4.0", "_name_or_path": "elsewhere", "use_cache": False},
        {"torch_dtype": "float16", "architectures": ["Another"], "eos_token_id": 5, "pad_token_id": 0},
        {"max_position_embeddings": 8, "initializer_range": 1.0, "not_a_field": 3},
    ],
)
def test_copies_of_a_model_differ_in_what_is_not_computed(model: Model, changes: dict[str, Any]) -> None:
    assert config_problem(config_of(model), {**_config(model), **changes}) is None


def test_file_of_an_older_version_is_the_same_model(model: Model) -> None:
    """It has rope_theta in place of rope_parameters, and no fields with their defaults."""
    config = _config(model)
    theta = config.pop("rope_parameters")["rope_theta"]
    assert config_problem(config_of(model), {**config, "rope_theta": theta}) is None
    problem = config_problem(config_of(model), {**config, "rope_theta": 7 * theta})
    assert problem is not None
    assert "rope_theta" in problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "its hidden_act is 'gelu' in place of 'silu'"),
        ({"num_key_value_heads": 1, "hidden_size": 8}, "its hidden_size is 8 in place of"),
        ({"layer_types": 5}, "its layer_types is 5 in place of"),
        ({"hidden_size": "wide"}, "its hidden_size is 'wide' in place of"),
    ],
)
def test_other_models_are_named_by_what_differs(model: Model, changes: dict[str, Any], words: str) -> None:
    problem = config_problem(config_of(model), {**_config(model), **changes})
    assert problem is not None
    assert words in problem


def test_versions() -> None:
    assert version_problem("vllm", "0.32.4+cpu", "0.32") is None
    assert version_problem("vllm", "0.320", "0.32") is not None


def test_several_actors_cannot_use_the_same_servers() -> None:
    """Each of them would send weights to all of them."""
    server = ServerSettings(urls=("http://host:1",))
    config = evolve(addition(), generator=vllm.Config(server=server))
    with pytest.raises(ConfigError, match=r"placement.generators.count\n  got:  2\n  need: one process"):
        check(evolve(config, placement=Placement(kind="ray", generators=Actors(count=2))))
    check(evolve(config, placement=Placement(kind="ray", generators=Actors(count=1))))
