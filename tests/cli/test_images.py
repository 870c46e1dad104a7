"""Images on the command line: `purerl sample` with images, `purerl data inspect`, and `purerl export`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.evaluation.settings import Evaluate
from purerl.images import Image, hex_id
from purerl.loop.train import train
from purerl.models.processor import load_processor
from purerl.recipes.tiny_task import write_parquet
from purerl.settings import Model
from purerl_cli.main import app
from tests.backends.vision import picture
from tests.loop.image_runs import TRUNCATED, image_run, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, files of rows with images, and two pictures."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    for name, data in (("red", picture(1)), ("blue", picture(2)), ("damaged", TRUNCATED)):
        (folder / f"{name}.png").write_bytes(data)
    return folder


def _purerl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"})


def _sampled(text: str) -> str:
    return text.partition("attempt 1:")[2]


def test_sample_of_prompts_with_images(prepared: Path) -> None:
    command = ("sample", prepared / "qwen2_vl-0", "--prompt", "which?", "--max-tokens", 6, "--temperature", 1)
    red, blue = prepared / "red.png", prepared / "blue.png"
    results = [_purerl(*command, "--image", red), _purerl(*command, "--image", blue), _purerl(*command)]
    assert [result.exit_code for result in results] == [0, 0, 0], results[0].output
    assert len({_sampled(result.stdout) for result in results}) == 3, "the image changes what is sampled"
    shown = results[0].stdout.splitlines()
    assert "  | <|vision_start|><|image_pad|><|vision_end|>which?<|im_end|>" in shown
    assert f"image {hex_id(Image(red).id)}: 32 x 24 pixels, {str(red)!r}" in shown
    both = _purerl(*command, "--image", red, "--image", blue)
    assert [line[:5] for line in both.stdout.splitlines()].count("image") == 2


def test_sample_of_data_names_its_images(prepared: Path) -> None:
    result = _purerl(
        "sample", prepared / "qwen2_vl-0", "--data", prepared / "rows.parquet", "--max-examples", 2, "--max-tokens", 2
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    first, second = result.stdout.split("rows, problem 1")
    assert "image " not in first
    assert f"image {hex_id(Image(picture(1, (40, 16))).id)}: 40 x 16 pixels" in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "red.png"], "what to complete\n  got:  nothing\n  need: --prompt TEXT"),
        (["--prompt", "a", "--image", "none.png"], "image 'none.png'\n  got:  No such file"),
        (["--prompt", "a", "--image", "damaged.png"], "damaged.png': an image\n  got:  image file is truncated"),
        (["--prompt", "a", "--image", "rows.parquet"], "got:  no image in a format that Pillow reads"),
    ],
)
def test_images_that_cannot_be_read_are_refused(
    prepared: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepared)
    result = _purerl("sample", "qwen2_vl-0", "--max-tokens", 2, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_model_of_a_run_without_images_reads_those_of_prompts(prepared: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "text.parquet", [{"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}] * 8)
    text = str(tmp_path / "text.parquet")
    evaluate = Evaluate(data=text, max_examples=1, max_tokens=4)
    train(image_run(prepared, max_steps=1, evaluate=evaluate, data=text), directory=tmp_path / "run")
    command = ("sample", "--run", tmp_path / "run", "--prompt", "1+1")
    results = [_purerl(*command), _purerl(*command, "--image", prepared / "red.png")]
    assert [result.exit_code for result in results] == [0, 0], results[1].output
    assert "image " not in results[0].stdout
    assert "image " in results[1].stdout


def test_inspect_reads_images_with_the_processor(prepared: Path) -> None:
    result = _purerl("data", "inspect", prepared / "rows.parquet", "--model", prepared / "qwen2_vl-0")
    assert result.exit_code == 0, result.output
    assert "preferences: prompt, chosen, rejected (messages, images)" in result.stdout


def test_exported_model_has_its_processor(prepared: Path, tmp_path: Path) -> None:
    train(image_run(prepared, max_steps=2), directory=tmp_path / "run")
    assert _purerl("export", tmp_path / "run", "--step", 1, "--output", tmp_path / "model").exit_code == 0
    original, written = (
        load_processor(Model(str(prepared / "qwen2_vl-0"))),
        load_processor(Model(str(tmp_path / "model"))),
    )
    assert written.fingerprint == original.fingerprint
