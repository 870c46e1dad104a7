"""Settings of the section `evaluate`: how they are written, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.errors import ConfigError
from purerl.evaluation.settings import Evaluate
from tests.loop.small import fake


@pytest.mark.parametrize(
    ("value", "files"),
    [
        ("d/a.parquet", {"a": "d/a.parquet"}),
        ("b=d/a.parquet", {"b": "d/a.parquet"}),
        ("d/k=1/a b.parquet", {"a_b": "d/k=1/a b.parquet"}),
        (["a.parquet", "c=b.jsonl"], {"a": "a.parquet", "c": "b.jsonl"}),
        ({"x": "a.parquet"}, {"x": "a.parquet"}),
    ],
)
def test_data_are_a_file_a_list_or_a_table(value: Any, files: dict[str, str]) -> None:
    assert Evaluate(data=value, max_tokens=1).data == files
    table = to_dict(fake())
    table["evaluate"]["data"] = value
    assert from_dict(RunConfig, table).evaluate.data == files


def test_an_empty_list_of_ks_is_kept() -> None:
    sampled = {"max_tokens": 1, "samples_per_prompt": 8, "temperature": 1.0}
    assert Evaluate(**sampled).pass_ks == (8,)
    assert Evaluate(**sampled, pass_at_k=()).pass_ks == ()
    settings = ["evaluate.samples_per_prompt=8", "evaluate.temperature=1.0", "evaluate.pass_at_k=[]"]
    assert apply(fake(), settings).evaluate.pass_ks == ()


def test_files_of_the_data_can_be_added_and_removed() -> None:
    files = apply(fake(), ["evaluate.data.more=m.parquet"]).evaluate.data
    assert files == {"held_out": "{run}/prepared/held_out.parquet", "more": "m.parquet"}
    files = apply(fake(), ["evaluate.data.more=m.parquet", "evaluate.data.held_out="]).evaluate.data
    assert files == {"more": "m.parquet"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"samples_per_prompt": 8},
            (
                "samples_per_prompt has no effect\n"
                "  got:  8\n"
                "  need: a temperature above 0: all greedy completions of a problem are equal\n"
                "  do:   set temperature, for example to 1.0"
            ),
        ),
        (
            {"answer_extractor": "m:f"},
            (
                "answer_extractor has no effect\n"
                "  got:  'm:f'\n"
                "  need: several samples, to find the most frequent answer\n"
                "  do:   set samples_per_prompt"
            ),
        ),
        ({"pass_at_k": (2,)}, "pass_at_k\n  got:  (2,)\n  need: from 1 to samples_per_prompt, 1"),
        ({"pass_at_k": (1, 1)}, "pass_at_k\n  got:  (1, 1)\n  need: each k once"),
        ({"temperature": -1.0}, "temperature\n  got:  -1.0\n  need: 0 or above, and finite"),
        ({"data": {"a b": "c"}}, "data\n  got:  the name 'a b'\n  need: letters, digits, ., - and _"),
        ({"data": {"a": 1}}, "data\n  got:  1\n  need: a file name"),
        (
            {"data": ["x/a.parquet", "y/a.parquet"]},
            "two files with the same name\n  got:  x/a.parquet, y/a.parquet\n  do:   name them: NAME=FILE",
        ),
    ],
)
def test_invalid_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Evaluate(**{"max_tokens": 4} | settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("evaluate.data=3", "evaluate.data\n  got:  3\n  need: a string, a list of strings, or a section"),
        ("evaluate.data=[3]", "evaluate.data\n  got:  [3]\n  need: a string, a list of strings, or a section"),
        (
            'evaluate.data=["a/x", "b/x"]',
            "evaluate.data: two files with the same name\n  got:  a/x, b/x\n  do:   name them",
        ),
        ("evaluate.samples_per_prompt=2", "evaluate.samples_per_prompt has no effect\n"),
    ],
)
def test_error_message_has_the_key_of_the_setting(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(fake(), [setting])
    assert str(caught.value).startswith(message)
