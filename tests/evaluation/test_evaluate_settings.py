"""Settings of the section `evaluate`: how they are written, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import fields_dict

from purerl.backends.logits import FILTERS
from purerl.config.keys import EVALUATION_PARAMETERS
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.errors import ConfigError
from purerl.evaluation.sampling import sampling_of
from purerl.evaluation.settings import Evaluate
from purerl.protocols import SAMPLING_PARAMETERS, Sampling
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
        ({"temperature": -1.0}, "temperature\n  got:  -1.0\n  need: 0, or from 0.0001 to 10000"),
        *(
            (
                {name: value},
                (
                    f"{name} has no effect\n"
                    f"  got:  {value}\n"
                    "  need: a temperature above 0: greedy decoding always takes the most likely token\n"
                    f"  do:   set temperature, for example to 1.0, or leave {name} out"
                ),
            )
            for name, value in {"top_p": 0.9, "top_k": 20, "min_p": 0.1}.items()
        ),
        ({"min_tokens": 5}, "min_tokens\n  got:  5\n  need: at most max_tokens, 4"),
        ({"top_p": 0.0}, "top_p\n  got:  0.0\n  need: a number above 0, at most 1\n  do:   leave it out for 1.0"),
        ({"top_k": -1}, "top_k\n  got:  -1\n  need: an integer, at least 0\n  do:   leave it out for 0"),
        ({"min_p": 1.5}, "min_p\n  got:  1.5\n  need: a number from 0 to 1\n  do:   leave it out for 0.0"),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty\n  got:  0.0\n  need: a finite number above 0\n  do:   leave it out for 1.0",
        ),
        ({"regex": ""}, "regex\n  got:  ''\n  need: a string of at least one character"),
        ({"json_schema": "[]"}, "json_schema\n  got:  '[]'\n  need: a JSON object, as text"),
        (
            {"regex": "a", "json_schema": "{}"},
            (
                "regex or json_schema\n"
                "  got:  regex = a, json_schema = {}\n"
                "  need: at most one of them\n"
                "  do:   leave one of them out; an empty value, KEY=, removes one"
            ),
        ),
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


SAMPLED = dict(temperature=0.8, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, min_tokens=2, max_tokens=9)


def test_all_settings_of_the_sampling_reach_the_requests() -> None:
    settings = Evaluate(**SAMPLED, stop_strings=("x",), regex="[a-z]+")
    sampling = sampling_of(settings, [5, 6])
    assert sampling == Sampling(**SAMPLED, stop_tokens=(5, 6), stop_strings=("x",), regex="[a-z]+")
    assert {*fields_dict(Sampling)} - {*fields_dict(Evaluate)} == {"stop_tokens"}


def test_parameters_are_those_that_differ_from_the_default() -> None:
    assert sampling_of(Evaluate(max_tokens=3), []).parameters == frozenset()
    assert sampling_of(Evaluate(**SAMPLED), []).parameters == FILTERS
    everything = Sampling(**SAMPLED, stop_strings=("x",), regex="a", json_schema="{}").parameters
    assert everything == SAMPLING_PARAMETERS
    assert {name for name in everything if " with " not in name} == {*EVALUATION_PARAMETERS}


@pytest.mark.parametrize("prefix", ["", "rollout.", "actor_rollout_ref.rollout.", "generator."])
@pytest.mark.parametrize("name", EVALUATION_PARAMETERS)
def test_training_has_no_parameter_that_would_bias_it(prefix: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(fake(), [f"{prefix}{name}=1"])
    assert str(caught.value) == (
        f"{prefix}{name}\n"
        "  got:  a setting that only evaluations have\n"
        "  need: training samples from all tokens, at rollout.temperature: the trainer has their probabilities under "
        "the whole distribution, and the importance ratio to any other one would be biased\n"
        f"  do:   set evaluate.{name}"
    )


def test_the_refusal_is_the_same_for_a_file() -> None:
    table = to_dict(fake())
    table["rollout"]["top_p"] = 0.9
    with pytest.raises(ConfigError, match=r"^rollout.top_p\n  got:  a setting that only evaluations have\n"):
        from_dict(RunConfig, table)


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
