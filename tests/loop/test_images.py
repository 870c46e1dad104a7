"""Runs with images, from the data to the trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.algos.modifiers import bypass
from purerl.backends.fake import generator as fake_generator
from purerl.backends.hf import trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.sglang import generator as sglang
from purerl.backends.vllm import generator as vllm
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, DataError, RolloutError
from purerl.images import decode, hex_id
from purerl.loop.train import train
from purerl.models.processor import load_processor
from purerl.recipes.tiny_task import write_parquet
from purerl.rewards.endpoint.settings import Endpoint
from purerl.rewards.judges.settings import Judge
from purerl.rewards.kinds import judge, remote_classifier
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.rollouts.settings import Rollout
from purerl.runs.dry_run import dry_run
from purerl.settings import Model
from purerl.store.evaluations import read_evaluation
from purerl.store.rollouts import read_batch, read_rollouts
from tests.backends.tiny import write_model
from tests.backends.vision import picture, tokenizer, user
from tests.test_images import png_header

from .image_runs import image_run, prepare, without_sampling
from .runs import failures, records, train_until, without_times
from .test_model_judges import ONE_DIGIT, parrot

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    prepare(path)
    return path


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged")
    prepare(path, damaged=True)
    return path


def test_a_checkpoint_flushes_images_to_the_disk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr("purerl.images.sync", flushed.append)
    run = train(image_run(folder, max_steps=1), directory=tmp_path / "run")
    stored = [*(run.directory / "images").iterdir()]
    assert stored
    assert sorted(flushed) == sorted([*stored, run.directory / "images"])


def test_a_run_samples_trains_evaluates_stores_and_exports_with_images(folder: Path, tmp_path: Path) -> None:
    run = train(image_run(folder), directory=tmp_path / "run")
    steps = [record for record in records(run) if record["step"] > 0]
    assert all(record["mismatch/logp_abs_diff_max"] < 1e-4 for record in steps), "the trainer and the sampler agree"
    assert all(record["rollout/failed"] == 0 for record in steps)
    stored, number = {path.name for path in (run.directory / "images").iterdir()}, 0
    for step in (1, 2, 3):
        rows, batch = read_rollouts(run.directory / "rollouts", step), read_batch(run.directory / "rollouts", step)
        for row, image in zip(rows, batch["image"], strict=True):
            ids = [hex_id(value) for value in image.unique().tolist() if value]
            assert json.loads(row["images"]) == ids
            assert row["prompt"].count("<|image_pad|>") == len(ids)
            assert {*ids} <= stored
            number += len(ids)
    assert number > 12
    evaluated = read_evaluation(run.directory / "evaluations", 2)
    assert [len(json.loads(row["images"])) for row in evaluated] == [0, 1, 1, 1, 1, 0]
    _check_exported(run.model)


def _check_exported(path: Path) -> None:
    """transformers loads the model and its processor from the directory."""
    from transformers import AutoModelForImageTextToText

    model, processor = AutoModelForImageTextToText.from_pretrained(path), load_processor(Model(str(path)))._processor
    encoded = processor(text=["<|image_pad|>?"], images=[decode(picture(1))], return_tensors="pt")
    assert model(**encoded).logits.isfinite().all()


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_run_that_is_resumed_has_the_same_metrics_bit_for_bit(
    folder: Path, tmp_path: Path, max_staleness: int
) -> None:
    """With staleness, a checkpoint has groups that were sampled but not trained on."""
    base = image_run(folder, evaluate=None)
    rollout = evolve(base.rollout, max_staleness=max_staleness)
    config = evolve(base, algorithm=Composition(grpo.Config(), (bypass.Config(),)), rollout=rollout)
    whole = train(config, directory=tmp_path / "whole")
    train_until(2, config, directory=tmp_path / "resumed")
    resumed = train(config, directory=tmp_path / "resumed")
    assert without_times(records(resumed)) == without_times(records(whole))
    weights = [(run.model / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_runs_that_learn_from_data_read_images(folder: Path, tmp_path: Path, kind: str) -> None:
    run = train(without_sampling(folder, kind, max_steps=2), directory=tmp_path / kind)
    losses = [value for record in records(run) for name, value in record.items() if name.startswith("policy/loss")]
    assert len(losses) == 2
    assert all(loss is not None and 0 < abs(loss) < 100 for loss in losses)
    assert len([*(run.directory / "images").iterdir()]) > 3


def test_a_truncated_image_is_a_missing_sample_and_the_run_continues(damaged: Path, tmp_path: Path) -> None:
    workers = RewardWorkers(max_failure_rate=0.5)
    config = image_run(damaged, max_steps=4, reward_workers=workers, evaluate=None)
    run = train(config, directory=tmp_path / "run")
    assert sum(record.get("rollout/failed", 0) for record in records(run)) == 3, "rows 3, 7 and 11"
    logged = failures(run.directory)
    assert len(logged) == 3 * 4, "all samples of each of them"
    assert all(failure["function"].startswith("an image of draw") for failure in logged)
    assert all("truncated" in failure["traceback"] for failure in logged)


def test_a_truncated_image_of_a_demonstration_is_left_out(damaged: Path, tmp_path: Path) -> None:
    run = train(without_sampling(damaged, "sft", max_steps=4), directory=tmp_path / "run")
    assert sum(record.get("rollout/failed", 0) for record in records(run)) == 3
    assert len(failures(run.directory)) == 3


def test_a_dry_run_accepts_images(folder: Path) -> None:
    dry_run(image_run(folder))


def with_scores_of(judge: Judge | None) -> dict[str, Any]:
    """The settings of a run with a model that scores completions."""
    role = Role(model="judge", judge=judge, generator=fake_generator.Config(vocab_size=14) if judge else None)
    return {"roles": {"rewards": {"strict": role}}, "rewards": (Reward(role="strict"),)}


ENDPOINT = Endpoint(url="http://127.0.0.1:9", model="m")
SERVER = ServerSettings(urls=("http://127.0.0.1:9",))
BLIND = "and prompts with images"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "classifier": (with_scores_of(None), f"^roles.rewards.strict\n  got:  a classifier, {BLIND}"),
    "judge": (with_scores_of(Judge()), f"^roles.rewards.strict.judge.template\n  got:  {{{{ prompt }}}}, {BLIND}"),
    "served judge": ({"rewards": (judge.Config(endpoint=ENDPOINT),)}, f"judge.template\n  got:  .*{BLIND}"),
    "served classifier": (
        {"rewards": (remote_classifier.Config(endpoint=ENDPOINT),)},
        f"config.template\n  got:  .*{BLIND}",
    ),
    "vllm": (
        {"generator": vllm.Config(server=SERVER, max_lora_rank=8), "trainer": trainer.Config(lora=Lora(rank=8))},
        "the generator\n  got:  prompts with images",
    ),
    "sglang": ({"generator": sglang.Config(server=SERVER)}, "the generator\n  got:  prompts with images"),
    "generator": ({"generator": fake_generator.Config(vocab_size=116)}, "the generator\n  got:  prompts with images"),
    "model": ({"model": "text"}, "and images in its prompts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_reads_no_images_is_refused_before_a_model_is_loaded(folder: Path, tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    if changes.get("model") == "text":
        path = write_model(tmp_path, vocab_size=len(tokenizer()))
        tokenizer().save_pretrained(path)
        changes = {"model": Model(path)}
    with pytest.raises(ConfigError, match=message):
        dry_run(image_run(folder, **changes))


def test_a_judge_that_is_not_shown_the_prompt_scores_completions(folder: Path, tmp_path: Path) -> None:
    answers = {"template": "+{{ answer }}={{ completion }}", "answer": ONE_DIGIT, "max_tokens": 1}
    role = Role(
        model=parrot(tmp_path / "judge"),
        judge=Judge(**answers),
        generator=fake_generator.Config(vocab_size=14),
    )
    rewards = (Reward(role="strict"),)
    config = image_run(folder, max_steps=1, roles={"rewards": {"strict": role}}, rewards=rewards, evaluate=None)
    run = train(evolve(config, reward_workers=RewardWorkers(max_failure_rate=1.0)), directory=tmp_path / "run")
    rows = read_rollouts(run.directory / "rollouts", 1)
    assert any(row.get("reward/strict") is not None for row in rows), rows[0].keys()


def test_a_huge_image_is_refused_with_its_row(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": [user(picture(k), "?")], "answer": "1"} for k in range(3)]
    bomb = {"prompt": [user(png_header(12_000, 10_000), "?")], "answer": "1"}
    write_parquet(tmp_path / "rows.parquet", [*rows, bomb])
    with pytest.raises(DataError, match=r"row 3 of .*rows.parquet") as error:
        dry_run(image_run(folder, data=str(tmp_path / "rows.parquet"), evaluate=None))
    assert "12,000 x 10,000 pixels" in str(error.value)


# --- environments --------------------------------------------------------------------------------------------------


def game_run(folder: Path, **changes: Any) -> RunConfig:
    environment = EnvironmentSettings(factory="tests.loop.image_games:Gallery", images=True, num_workers=1)
    letters = tuple("abcdefghijklmnopqrstuvwxyz")  # a random model ends most of its turns with one of them
    rollout = Rollout(samples_per_prompt=2, max_tokens=30, stop_strings=letters)
    settings = {"environment": environment, "rollout": rollout, "rewards": (), "evaluate": None, "max_steps": 2}
    return image_run(folder, **settings | changes)


@pytest.mark.parametrize("history", ["append", "rerender"])
def test_observations_with_images_become_rows(folder: Path, tmp_path: Path, history: str) -> None:
    base = game_run(folder)
    run = train(evolve(base, environment=evolve(base.environment, history=history)), directory=tmp_path / "run")
    steps = [record for record in records(run) if record["step"] > 0]
    assert all(record["mismatch/logp_abs_diff_max"] < 1e-4 for record in steps)
    rows = read_rollouts(run.directory / "rollouts", 1)
    assert len(rows) == 8
    for row in rows:
        ids = json.loads(row["images"])
        shown = [part for message in json.loads(row["messages"]) for part in _images_in(message)]
        assert [part["image"] for part in shown] == ids
        in_tokens = [hex_id(value) for value in dict.fromkeys(row["image"]) if value]
        # If the conversation was rendered again, an earlier row of it has only the first images.
        assert in_tokens == list(dict.fromkeys(ids))[: None if history == "append" else len(in_tokens)]
        assert not any(image and action for image, action in zip(row["image"], row["action"], strict=True))
    assert {2, 3} <= {len(json.loads(row["images"])) for row in rows}, "some prompts have an image too"


def _images_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def test_a_damaged_observation_is_a_failure_of_the_environment(folder: Path, tmp_path: Path) -> None:
    environment = evolve(game_run(folder).environment, kwargs={"damaged": True})
    with pytest.raises(RolloutError, match="truncated") as error:
        train(game_run(folder, environment=environment), directory=tmp_path / "run")
    assert "fix the environment" in str(error.value)


def test_images_of_an_environment_that_declares_none_are_refused(folder: Path, tmp_path: Path) -> None:
    environment = EnvironmentSettings(factory="tests.loop.image_games:Gallery", num_workers=1)
    with pytest.raises(RolloutError, match="environment.images is false"):
        train(game_run(folder, environment=environment), directory=tmp_path / "run")
