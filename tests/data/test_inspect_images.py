"""The report on a data file with images: its format, lengths, a rendered row, and images that cannot be used."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from purerl.data.inspect import Report, inspect
from purerl.errors import ConfigError
from purerl.models.processor import load_processor
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model
from purerl.system.installation import install_command
from tests.backends.vision import picture, user, write_vision_model

from .made import CHATML, assistant, tokenizer, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(write_vision_model(tmp_path_factory.mktemp("model")))


def _inspect(rows: list[dict[str, Any]], tmp_path: Path, model: Model | None = None) -> Report:
    path = write(tmp_path / "rows.parquet", rows)
    if model is None:
        return inspect(path)
    return inspect(path, load_tokenizer(model), open_processor=partial(load_processor, model))


def _problems(report: Report) -> dict[str, tuple[int, ...]]:
    return {problem.message: problem.rows for problem in report.problems}


def test_lengths_have_the_tokens_of_images(model: Model, tmp_path: Path) -> None:
    rows = [{"prompt": [user("a", picture(0, (16 * size, 16)))]} for size in (1, 2, 3)]
    report = _inspect(rows, tmp_path, model)
    assert [str(each) for each in report.formats] == ["prompts: prompt (messages, images)"]
    lengths = report.prompt_lengths
    assert (lengths["median"] - lengths["min"], lengths["max"] - lengths["median"]) == (4, 4), "tokens of 8 x 8 pixels"
    assert report.sample[0].count("[image]") == 1
    assert [token.text for token in report.shown[0].tokens].count("<|image_pad|>") == 4
    assert [token.text for token in report.shown[0].tokens if token.origin == "image"] == ["<|image_pad|>"] * 4
    assert report.problems == ()


def test_sample_shows_the_place_of_an_image_and_what_is_learned(model: Model, tmp_path: Path) -> None:
    text = {"type": "text", "text": "b"}
    report = _inspect([{"messages": [user("a", picture()), assistant("") | {"content": [text]}]}], tmp_path, model)
    (sample,) = report.sample
    assert "a<|vision_start|>[image]<|vision_end|><|im_end|>" in sample
    assert "⟦b<|im_end|>⟧" in sample


def test_template_may_be_that_of_the_processor(model: Model, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model)
    template, tokenizer.chat_template = tokenizer.chat_template, None
    opened = load_processor(model)
    opened._processor.chat_template = template
    path = write(tmp_path / "rows.parquet", [{"prompt": [user("a", picture())]}])
    assert inspect(path, tokenizer, open_processor=lambda: opened).sample[0].startswith("<|im_start|>user")


@pytest.mark.parametrize("has_model", [False, True])
def test_images_that_cannot_be_used_are_listed_with_their_rows(has_model: bool, model: Model, tmp_path: Path) -> None:
    (tmp_path / "there.png").write_bytes(picture(1))
    rows: list[dict[str, Any]] = [
        {"images": [{"bytes": picture(), "path": None}], "text": "<image> 0"},
        {"images": [{"bytes": picture()[:-400], "path": None}], "text": "<image> 1"},
        {"images": [{"bytes": b"text", "path": None}] * 2, "text": "<image> <image> 2"},
        {"images": [{"bytes": None, "path": "there.png"}], "text": "<image> 3"},
        {"images": [{"bytes": None, "path": "nowhere.png"}], "text": "<image> 4"},
        {"images": [{"bytes": picture(), "path": None}], "text": "<image> <image> 5"},
        {"images": [{"bytes": picture(), "path": None}], "text": "<image> 0"},
        {"images": [{"bytes": None, "path": None}], "text": "<image> 7"},
        {"images": [], "text": None},
        {"images": [], "text": "9"},
    ]
    rows = [{"prompt": [{"role": "user", "content": row["text"]}], "images": row["images"]} for row in rows]
    assert _problems(_inspect(rows, tmp_path, model if has_model else None)) == {
        "an image that cannot be decoded": (1, 2),
        "an image whose file cannot be read": (4,),
        "images; got:  1 in the row, and 2 places for them in its messages": (5,),
        "duplicate of an earlier prompt": (6,),
        "an image; got:  {'bytes': None, 'path': None}": (7,),
        "a message without a role or without content": (8,),
    }


def test_images_beside_plain_text_are_an_error(tmp_path: Path) -> None:
    report = _inspect([{"prompt": "a", "images": [{"bytes": picture()}]}], tmp_path)
    assert report.formats == ()
    assert "images" in report.errors[0]
    assert "plain text" in report.errors[0]


def test_images_without_pillow_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("images"))):
        _inspect([{"prompt": [user("a", b"b")]}], tmp_path)
    assert _inspect([{"prompt": [user("a")]}], tmp_path).problems == ()


def test_a_model_without_images_is_refused(tmp_path: Path) -> None:
    from tests.backends.tiny import write_model

    text_model = Model(write_model(tmp_path))
    tokenizer(CHATML).save_pretrained(text_model.path)
    with pytest.raises(ConfigError, match="image"):
        _inspect([{"prompt": [user("a", picture())]}], tmp_path, text_model)
