"""Paths that do not exist: the existing one with a similar name, of files, models and reward functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.errors import ConfigError
from purerl.models.pretrained import check_directory
from purerl.plugins import locate
from purerl.rewards.loading import load_reward
from purerl.rewards.sources import check_columns
from purerl.settings import Model
from purerl.system.similar_paths import similar_path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").touch()
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").touch()
    (tmp_path / "my_rewards.py").write_text("def correct(completion, example):\n    return 1.0\n")
    return tmp_path


def test_the_first_part_that_does_not_exist_is_replaced(folder: Path) -> None:
    for wrong in ("data/trian.jsonl", "dta/train.jsonl"):
        assert similar_path(Path(wrong)) == Path("data/train.jsonl")
    assert similar_path(folder / "data" / "train.json") == folder / "data" / "train.jsonl"
    for other in ("dta/other.jsonl", "data/test.parquet", "data/train.jsonl"):
        assert similar_path(Path(other)) is None


@pytest.mark.parametrize("path", ["./models/smal", "models/deep/smal", "/nowhere/at/all", "nowhere/"])
def test_a_directory_of_a_model_that_does_not_exist_is_missing(path: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as error:
        check_directory(Model(path))
    text = str(error.value)
    assert text.startswith(
        f"the model {path!r} is missing\n  got:  no such directory\n  need: a directory with the files"
    )
    assert ("did you mean 'models/small'?" in text) == path.endswith("models/smal")


def test_names_on_the_hub_and_existing_directories_are_accepted(folder: Path) -> None:
    for path in ("gpt2", "Qwen/Qwen2.5-0.5B", "./models/small", "models/small/"):
        check_directory(Model(path))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("purerl.rewards.exact:exact_mach", "purerl.rewards.exact:exact_match"),
        ("purerl.rewards.exat:exact_match", "purerl.rewards.exact:exact_match"),
        ("my_rewrds:correct", "my_rewards:correct"),
        ("my_rewrds.py:correct", "my_rewards.py"),
        ("exact_mtch", "purerl.rewards.exact:exact_match"),
    ],
)
def test_reward_functions_have_nearest_names(name: str, near: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        load_reward(name)


def test_nothing_is_suggested_if_no_name_is_similar(folder: Path) -> None:
    for name in ("numpyy.linalg:norms_of_all", "nowhere:f", "purerl.rewards.exact:zzz"):
        with pytest.raises(ConfigError) as error:
            locate(name)
        assert "did you mean" not in str(error.value)


def test_columns_have_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"need: also answer\n  do:   set data.columns.answer = 'anwser'"):
        check_columns("r", [("answer",)], ["prompt", "anwser"])
