"""The recipe `json_answers`: its problems, its reward, and a step of it with a small model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from attrs import evolve

from purerl.loop.train import train
from purerl.recipes.json_answers import Problem, draw, json_answers, prepare_data
from purerl.rewards.kinds import json_schema

from .made import records, write_model

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[dev]'")

ROWS = {"train": 2000, "held_out": 64}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("prepared")
    prepare_data(folder, seed=1)
    return {name: parquet.read_table(folder / f"{name}.parquet").to_pylist() for name in ROWS}


def reward(answer: str, schema: str) -> float:
    return json_schema.build(json_schema.Config(partial=0.5))(answer, {"schema": schema})


def test_held_out_things_properties_and_schemas_are_new(prepared: dict[str, list[dict[str, Any]]]) -> None:
    assert {name: len(rows) for name, rows in prepared.items()} == ROWS
    schemas = {name: [json.loads(row["schema"]) for row in rows] for name, rows in prepared.items()}
    things = {name: {row["prompt"][-1]["content"].partition(":")[0] for row in rows} for name, rows in prepared.items()}
    properties = {name: {key for schema in every for key in schema["properties"]} for name, every in schemas.items()}
    assert len({json.dumps(schema) for schema in schemas["train"]}) > 500
    for values in (things, properties):
        assert not values["train"] & values["held_out"]
        assert len(values["held_out"]) >= 8


def test_examples_of_the_prompt_are_correct(prepared: dict[str, list[dict[str, Any]]]) -> None:
    from purerl.recipes.json_answers import _EXAMPLES

    messages = prepared["train"][0]["prompt"]
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2, "user"]
    for problem, answer in _EXAMPLES:
        assert reward(answer, json.dumps(problem.schema)) == 1.0
        assert answer in [message["content"] for message in messages]
    assert len({json.dumps(row["prompt"][:-1]) for rows in prepared.values() for row in rows}) == 1


def test_question_and_schema_say_the_same() -> None:
    fields = {"name": "string", "km": (10, 6000), "slope": (0.0, 9.0), "kind": ("wide", "deep"), "towns": "list"}
    problem = Problem("a river", fields, strings=3)
    assert problem.question == (
        'JSON of a river: {"name": string, "km": integer 10-6000, "slope": number 0-9, "kind": "wide" | "deep", '
        '"towns": [string, string, string]}'
    )
    good = {"name": "x", "km": 10, "slope": 2.5, "kind": "deep", "towns": ["a", "b", "c"]}
    schema = json.dumps(problem.schema)
    assert reward(json.dumps(good), schema) == 1.0
    wrong = ({"name": 1}, {"km": 9.5}, {"km": 6001}, {"slope": 9.1}, {"kind": "long"}, {"towns": ["a", "b"]}, {"x": 1})
    for change in wrong:
        assert reward(json.dumps(good | change), schema) < 0.5, change
    for name in good:
        assert reward(json.dumps({key: value for key, value in good.items() if key != name}), schema) == 0.4


def test_a_draw_has_one_to_three_properties_in_any_order() -> None:
    rng, things = random.Random(0), {"a thing": {"a": "string", "b": "boolean", "c": (0, 9), "d": "list"}}
    problems = [draw(rng, things) for _ in range(300)]
    assert {len(problem.fields) for problem in problems} == {1, 2, 3}
    assert {tuple(problem.fields) for problem in problems} >= {("a", "b"), ("b", "a"), ("d",)}
    assert {problem.strings for problem in problems} == {2, 3}


def test_a_step_with_a_small_model(tmp_path: Path) -> None:
    config = json_answers(model=write_model(tmp_path / "model"), max_steps=1)
    config = evolve(
        config,
        batch_size=2,
        rollout=evolve(config.rollout, samples_per_prompt=4, max_tokens=8),
        evaluate=evolve(config.evaluate, max_examples=2),
    )
    summary = train(config, directory=tmp_path / "run")
    last = records(summary.directory)[-1]
    assert last["reward/valid_fraction"] == 1
    assert last["reward/failed"] == 0
    assert "reward/json_schema" in last
    assert "eval/accuracy" in summary.before
    assert not (summary.directory / "prepared" / "model").exists(), "a model that is given is not made"
