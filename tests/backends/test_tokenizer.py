"""Stop tokens that a model declares, and comparison of tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.models.tokenizer import check_same_ids, end_tokens, load_tokenizer, pad_token_of, set_pad_token
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.data.made import CHATML, tokenizer


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": [3, 4]}, "config": {"eos_token_id": 5}}, (3, 4)),
        ({"generation_config": {"eos_token_id": 3}}, (3,)),
        ({"generation_config": {"temperature": 0.5}, "config": {"eos_token_id": 5}}, (5,)),
        ({"config": {"model_type": "unknown", "eos_token_id": [5, 6]}}, (5, 6)),
        ({"config": {"model_type": "llama"}}, ()),
        ({}, ()),
    ],
    ids=str,
)
def test_stop_tokens_are_read_from_the_files_of_the_model(tmp_path: Path, files: dict, expected: tuple) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert end_tokens(Model(str(tmp_path))) == expected


def test_stop_tokens_equal_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = write_model(tmp_path, eos_token_id=[7, 2])
    assert end_tokens(Model(path)) == tuple(AutoModelForCausalLM.from_pretrained(path).generation_config.eos_token_id)


def tokenizer_of(*strings: str) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {string: token for token, string in enumerate(strings)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary)))


def test_teacher_with_other_token_ids_is_refused(tmp_path: Path) -> None:
    tokenizer, teacher = tokenizer_of(*"abcd"), Model(str(tmp_path))
    tokenizer_of(*"abcd", "more").save_pretrained(tmp_path)
    check_same_ids(tokenizer, teacher, "teacher")
    tokenizer_of(*"acbd").save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_same_ids(tokenizer, teacher, "teacher")
    assert str(caught.value).replace(str(tmp_path), "teacher") == (
        "the teacher 'teacher' has another tokenizer\n"
        "  got:  'b' is token 1 of the policy and 2 of the teacher; 2 differ\n"
        "  need: the same token ids\n"
        "  do:   use a model of the same family, which has the policy's tokenizer"
    )


def test_teacher_with_fewer_token_ids_is_refused(tmp_path: Path) -> None:
    """A padded vocabulary may cover tokens that only the policy's tokenizer has."""
    tokenizer, teacher = tokenizer_of(*"abcd"), Model(str(tmp_path))
    tokenizer_of(*"abc").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"\n  got:  3 token ids\n  need: 4, as many as the policy's tokenizer has\n"):
        check_same_ids(tokenizer, teacher, "teacher")
    for size in (4, 3):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": size}))
        if size == 4:
            check_same_ids(tokenizer, teacher, "teacher")
    with pytest.raises(ConfigError, match="got:  3 token ids"):
        check_same_ids(tokenizer, teacher, "teacher")


def test_message_names_the_model_of_a_run_directory(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"do:   did you mean '{tmp_path}/final'"):
        load_tokenizer(Model(str(tmp_path)))


@pytest.mark.parametrize(
    ("template", "pad", "eos", "expected"),
    [
        (CHATML, "<pad>", "<eos>", "<pad>"),
        (CHATML, "<|im_end|>", "<|im_end|>", "<pad>"),  # the token that ends a turn is not padding
        (CHATML, "<|im_end|>", "<eos>", "<pad>"),
        (CHATML, None, "<eos>", "<pad>"),
        (None, "<eos>", "<eos>", "<pad>"),
        (None, "<bos>", "<eos>", "<bos>"),
    ],
)
def test_the_padding_token_of_a_classifier_never_ends_a_text(template, pad, eos, expected) -> None:
    chosen = tokenizer(template, eos=eos)
    chosen.add_special_tokens({"additional_special_tokens": ["<pad>", *chosen.extra_special_tokens]})
    chosen.pad_token = pad
    set_pad_token(chosen)
    assert chosen.pad_token == expected


def test_without_a_tokenizer_a_classifier_has_no_padding_token(tmp_path: Path) -> None:
    assert pad_token_of(Model(write_model(tmp_path))) is None
