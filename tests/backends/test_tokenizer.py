"""What a model says ends a completion, as transformers reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from purerl.backends.tokenizer import end_tokens
from purerl.protocols import Model
from tests.backends.tiny import write_model


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"generation_config": {"eos_token_id": [3, 4]}, "config": {"eos_token_id": 5}}, (3, 4)),
        ({"generation_config": {"eos_token_id": 3}}, (3,)),
        ({"generation_config": {"temperature": 0.5}, "config": {"eos_token_id": 5}}, (5,)),
        ({"config": {"model_type": "none that is known", "eos_token_id": [5, 6]}}, (5, 6)),
        ({"config": {"model_type": "llama"}}, ()),
        ({}, ()),
    ],
    ids=str,
)
def test_the_models_own_files_say_what_ends_a_completion(tmp_path: Path, files: dict, wanted: tuple) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert end_tokens(Model(str(tmp_path))) == wanted


def test_they_are_those_that_transformers_stops_at(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = write_model(tmp_path, eos_token_id=[7, 2])
    assert end_tokens(Model(path)) == tuple(AutoModelForCausalLM.from_pretrained(path).generation_config.eos_token_id)
