"""The section `data`: a text or a table, in Python, in TOML and on the command line, and what is refused of it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from attrs import evolve

from purerl.config.plan import plan
from purerl.config.schema import Data, RunConfig
from purerl.config.structure import apply, digest, dumps, from_dict, to_dict
from purerl.errors import ConfigError
from purerl.recipes.addition import addition

MIXED = Data(
    files=("a.parquet", "b.jsonl"),
    weights=(3.0, 1.0),
    system_prompt="be",
    chat_template_kwargs={"enable_thinking": False, "tools": ["a"]},
    max_prompt_tokens=512,
)


def test_a_files_name_alone_is_that_file() -> None:
    said = to_dict(addition())
    for data in ("a.parquet", {"files": ["a.parquet"]}):
        assert from_dict(RunConfig, said | {"data": data}).data == Data(files=("a.parquet",))
    assert evolve(addition(), data="a.parquet").data == Data(files=("a.parquet",))
    assert apply(addition(), ["data=a.parquet"]).data == Data(files=("a.parquet",))
    assert apply(addition(), ["data.system_prompt=be"]).data == Data(files=addition().data.files, system_prompt="be")


def test_it_survives_toml() -> None:
    config = evolve(addition(), data=MIXED)
    again = from_dict(RunConfig, tomllib.loads(dumps(config)))
    assert again == config
    assert digest(again) == digest(config)


def test_arguments_of_the_template_are_set_and_taken_back_one_by_one() -> None:
    config = apply(
        evolve(addition(), data=MIXED),
        ["data.chat_template_kwargs.enable_thinking=true", "data.chat_template_kwargs.tools="],
    )
    assert config.data.chat_template_kwargs == {"enable_thinking": True}
    with pytest.raises(ConfigError) as caught:
        apply(addition(), ["data.chat_template_kwargs=no"])
    with pytest.raises(ConfigError, match=r"^data.chat_template_kwargs\n  got: .*\n  need: a section: keys and values"):
        apply(addition(), ["data.chat_template_kwargs=no", "data.chat_template_kwargs.tools=1"])
    assert str(caught.value) == 'data.chat_template_kwargs\n  got:  "no"\n  need: a section: keys and values'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": ()}, "files\n  got:  none\n  need: at least one file"),
        (
            {"weights": (1.0,)},
            (
                "weights has no effect\n"
                "  got:  (1.0,)\n"
                "  need: several files\n"
                "  do:   leave weights out, or name several files"
            ),
        ),
        ({"files": ("a", "b"), "weights": (1.0,) * 3}, "weights\n  got:  3 of them\n  need: one for each file, 2"),
        (
            {"files": ("a", "b"), "weights": (1.0, 0.0)},
            "weights\n  got:  (1.0, 0.0)\n  need: above 0, and finite\n  do:   leave the file out",
        ),
        ({"validation_fraction": 1.0}, "validation_fraction\n  got:  1.0\n  need: from 0 to 1, without 1"),
        ({"validation_fraction": -0.1}, "validation_fraction\n  got:  -0.1\n  need: from 0 to 1, without 1"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens\n  got:  0\n  need: at least 1"),
        (
            {"chat_template_kwargs": {"a": None}},
            "chat_template_kwargs\n  got:  {'a': None}\n  need: values: TOML has no None",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Data(**{"files": ("a",)} | settings)
    assert str(caught.value) == message


def test_the_plan_says_what_is_mixed_and_left_out() -> None:
    lines = plan(evolve(addition(), data=MIXED)).splitlines()
    assert "  data         a.parquet (75%), b.jsonl (25%); prompts of at most 512 tokens" in lines
    config = addition()
    config = evolve(
        config,
        data=evolve(config.data, validation_fraction=0.05),
        evaluate=evolve(config.evaluate, data={}, max_examples=100),
    )
    lines = plan(config).splitlines()
    assert "  data         {run}/prepared/train.parquet; 5.0% held out" in lines
    assert "  evaluation   every 20 steps: 100 problems of those held out" in lines
