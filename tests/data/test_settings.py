"""The section `data`: short forms, TOML, settings of the command line, and invalid values."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from attrs import evolve

from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import digest, dumps, from_dict, to_dict
from purerl.data.settings import Data
from purerl.errors import ConfigError
from purerl.recipes.addition import addition

MIXED = Data(
    files=("a.parquet", "b.jsonl"),
    weights=(3.0, 1.0),
    system_prompt="be",
    chat_template_kwargs={"enable_thinking": False, "tools": ["a"]},
    max_prompt_tokens=512,
    truncation="middle",
    columns={"prompt": "instruction"},
    seed=5,
)


def test_a_string_stands_for_one_file() -> None:
    table = to_dict(addition())
    for data in ("a.parquet", {"files": ["a.parquet"]}):
        assert from_dict(RunConfig, table | {"data": data}).data == Data(files=("a.parquet",))
    assert evolve(addition(), data="a.parquet").data == Data(files=("a.parquet",))
    assert apply(addition(), ["data=a.parquet"]).data == Data(files=("a.parquet",))
    assert apply(addition(), ["data.system_prompt=be"]).data == Data(files=addition().data.files, system_prompt="be")


def test_toml_gives_the_same_section() -> None:
    config = evolve(addition(), data=MIXED)
    same = from_dict(RunConfig, tomllib.loads(dumps(config)))
    assert same == config
    assert digest(same) == digest(config)


def test_arguments_of_the_chat_template_are_set_and_unset_one_by_one() -> None:
    config = apply(
        evolve(addition(), data=MIXED),
        ["data.chat_template_kwargs.enable_thinking=true", "data.chat_template_kwargs.tools="],
    )
    assert config.data.chat_template_kwargs == {"enable_thinking": True}
    with pytest.raises(ConfigError) as error:
        apply(addition(), ["data.chat_template_kwargs=no"])
    with pytest.raises(ConfigError, match=r"^data.chat_template_kwargs\n  got: .*\n  need: a section: keys and values"):
        apply(addition(), ["data.chat_template_kwargs=no", "data.chat_template_kwargs.tools=1"])
    assert str(error.value) == 'data.chat_template_kwargs\n  got:  "no"\n  need: a section: keys and values'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": ()}, "files\n  got:  none\n  need: at least one file"),
        (
            {"weights": (1.0,)},
            (
                "weights has no effect\n  got:  (1.0,)\n  need: several files\n"
                "  do:   leave weights out, or give several files"
            ),
        ),
        (
            {"files": ("a", "b"), "weights": (1.0,) * 3},
            "weights\n  got:  3 weights\n  need: one for each of the 2 files",
        ),
        (
            {"files": ("a", "b"), "weights": (1.0, 0.0)},
            (
                "weights\n  got:  (1.0, 0.0)\n  need: finite numbers above 0\n"
                "  do:   leave the file out instead of a weight of 0"
            ),
        ),
        ({"validation_fraction": 1.0}, "validation_fraction\n  got:  1.0\n  need: from 0 to below 1"),
        ({"validation_fraction": -0.1}, "validation_fraction\n  got:  -0.1\n  need: from 0 to below 1"),
        (
            {"truncation": "left"},
            (
                "truncation has no effect\n  got:  'left'\n  need: a limit\n"
                "  do:   set max_prompt_tokens, or leave truncation out"
            ),
        ),
        (
            {"truncation": "start", "max_prompt_tokens": 3},
            (
                "truncation\n  got:  'start'\n  need: one of: drop, error, left, right, middle\n"
                "  do:   leave it out for drop"
            ),
        ),
        (
            {"order": "sequential", "seed": 0},
            (
                "seed has no effect\n  got:  0\n"
                "  need: order shuffled: the order of the files needs no random numbers\n"
                "  do:   leave seed out"
            ),
        ),
        (
            {"columns": {"prompt": "prompt"}},
            (
                "columns.prompt has no effect\n  got:  'prompt'\n  need: another name in the files\n"
                "  do:   leave columns.prompt out"
            ),
        ),
        (
            {"columns": {"prompt": "a", "answer": "a"}},
            (
                "columns\n  got:  {'prompt': 'a', 'answer': 'a'}\n"
                "  need: another column for each name: a column has one name"
            ),
        ),
        ({"columns": {"prompt": ""}}, "columns.prompt\n  got:  ''\n  need: names of columns, not empty"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens\n  got:  0\n  need: an integer, at least 1"),
        (
            {"chat_template_kwargs": {"a": None}},
            "chat_template_kwargs\n  got:  {'a': None}\n  need: values other than None: TOML cannot express it",
        ),
    ],
)
def test_invalid_values_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Data(**{"files": ("a",)} | settings)
    assert str(error.value) == message
