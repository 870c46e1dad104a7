"""What a model says ends a completion, as transformers reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from purerl.backends.tokenizer import check_same_ids, end_tokens
from purerl.errors import ConfigError
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


def _tokenizer(*texts: str) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({t: k for k, t in enumerate(texts)})))


def test_a_teacher_reads_the_same_texts_in_the_same_ids(tmp_path: Path) -> None:
    ours, teacher = _tokenizer(*"abcd"), Model(str(tmp_path))
    _tokenizer(*"abcd", "more").save_pretrained(tmp_path)
    check_same_ids(ours, teacher)
    _tokenizer(*"acbd").save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_same_ids(ours, teacher)
    assert str(caught.value).replace(str(tmp_path), "teacher") == (
        "teacher 'teacher' has another tokenizer\n"
        "  got:  'b' is token 1 of the policy and 2 of the teacher; 2 differ\n"
        "  need: tokens that mean the same in both\n"
        "  do:   name a teacher of the same family, whose tokenizer is the policy's"
    )


def test_a_teacher_has_as_many_ids(tmp_path: Path) -> None:
    """A padded vocabulary has room for what the policy's tokenizer has beyond the teacher's."""
    ours, teacher = _tokenizer(*"abcd"), Model(str(tmp_path))
    _tokenizer(*"abc").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"\n  got:  3 token ids\n  need: 4, as many as the policy's tokenizer has\n"):
        check_same_ids(ours, teacher)
    for size in (4, 3):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": size}))
        if size == 4:
            check_same_ids(ours, teacher)
    with pytest.raises(ConfigError, match="got:  3 token ids"):
        check_same_ids(ours, teacher)
