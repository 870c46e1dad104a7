"""reproduce/: each configuration passes its dry run with a tiny model of the same family and a few rows of its data."""

from __future__ import annotations

import re
from math import sqrt
from pathlib import Path

import pytest

from benchmarks.board.page import open_numbers, read_published
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml
from purerl.data.convert import convert
from purerl.rewards.loading import load_reward
from purerl.runs.dry_run import dry_run
from tests.data.made import CHATML, tokenizer, write

from .made import PROBLEMS

FOLDER = Path(__file__).parents[2] / "reproduce"
CONFIGURATIONS = sorted(path for path in FOLDER.glob("*.toml") if path.name != "published.toml")
PUBLISHED = {number["task"]: number for number in read_published()}
OF_RECIPES = {"char_count"}

ROWS = {
    "gsm8k": PROBLEMS,
    "math": [{"problem": f"What is {n}/6, reduced?", "answer": f"\\frac{{{n}}}{{6}}"} for n in (1, 5, 7, 11)],
    "reverse_text": [{"prompt": f"line {n} of a text"} for n in range(200)],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that docs/how-to/reproduce.md makes, from a few rows, and models of both families."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("reproduce")
    for name, rows in ROWS.items():
        for split in ("train", "test"):
            source = write(folder / f"{name}-{split}.jsonl", rows)
            convert(name, source, str(folder / name / f"{split}.parquet"))
            if name == "math":
                convert(name, source, str(folder / "math500" / f"{split}.parquet"), prompt_format="text")
    characters = tokenizer(CHATML)
    sizes = dict(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32
    )
    for family in ("qwen2", "qwen3"):
        config = AutoConfig.for_model(family, vocab_size=len(characters), max_position_embeddings=8192, **sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)
        characters.save_pretrained(folder / family)
    return folder


def _family(model: str) -> str:
    """The model type of a model on the hub: all of them are Qwen2.5 or Qwen3."""
    [number] = re.findall(r"/Qwen(2\.5|3)-0\.[56]B", model)
    return {"2.5": "qwen2", "3": "qwen3"}[number]


def _local(config: RunConfig, files: Path) -> RunConfig:
    """`config` with the model and the data in `files` in place of those of the hub."""
    local = apply(config, [f"model.path={files / _family(config.model.path)}"])
    data = [str(files / file) for file in config.data.files]
    evaluated = [f"evaluate.data={files / file}" for file in config.evaluate.data.values()]
    return apply(local, [f"data.files={data}".replace("'", '"'), *evaluated])


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_configuration_passes_its_dry_run(path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parent)
    config = _local(read_toml(path, RunConfig), files)
    notes = dry_run(config, files / "runs" / path.stem)
    assert not [note for note in notes if "not checked" in note], notes


def test_a_dry_run_refuses_data_without_the_ground_truth(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parent)
    config = _local(read_toml(FOLDER / "gsm8k_ppo.toml", RunConfig), files)
    source = write(files / "without.jsonl", [{"prompt": "How many?"}])
    with pytest.raises(Exception, match="answer"):
        dry_run(apply(config, [f'data.files=["{source}"]']), files / "runs" / "without")


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_configuration_is_that_of_its_published_number(path: Path) -> None:
    config, number = read_toml(path, RunConfig), PUBLISHED[path.stem]
    assert config.name == path.stem
    assert config.model.path == number["model"]
    assert f"purerl train reproduce/{path.name}" in path.read_text()
    assert config.evaluate is not None


def test_every_published_number_has_a_configuration_or_a_recipe() -> None:
    assert {path.stem for path in CONFIGURATIONS} == PUBLISHED.keys() - OF_RECIPES
    assert all(number["source"].startswith("https://") for number in PUBLISHED.values())


@pytest.mark.parametrize("task", [task for task, number in PUBLISHED.items() if "problems" in number])
def test_the_lowest_accepted_value_is_two_standard_errors_below(task: str) -> None:
    number = PUBLISHED[task]
    p = number["after"]
    expected = p if number.get("is_threshold") else p - 2 * sqrt(p * (1 - p) / number["problems"])
    assert number["accept"] == pytest.approx(expected, abs=6e-4)


def test_the_table_of_the_page_has_every_number() -> None:
    page = (FOLDER.parent / "docs" / "how-to" / "reproduce.md").read_text(encoding="utf-8")
    for line in open_numbers(
        [number for number in PUBLISHED.values() if number["task"] not in OF_RECIPES]
    ).splitlines():
        assert line in page
    for path in CONFIGURATIONS:
        assert f"reproduce/{path.name}" in page


def test_reward_of_reversed_text_is_the_similarity_of_the_text_in_the_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parent)
    reward = load_reward("reproduce/reverse_text.py:reversed_text").function
    example = {"reward_model": {"ground_truth": "olleh"}}
    assert reward("Reversed: <reversed_text>\nolleh\n</reversed_text>", example) == 1
    assert reward("<reversed_text>hello</reversed_text> <reversed_text>olleh", example) == 1
    assert reward("<reversed_text>olle</reversed_text>", example) == pytest.approx(8 / 9)
    assert reward("olleh", example) == 0
    assert reward("<reversed_text></reversed_text>", example) == 0
