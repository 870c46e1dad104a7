"""docs/how-to/images.md: its blocks are valid, and it names the families of models that are tested."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.data.inspect import inspect
from purerl.recipes.addition import addition
from tests.backends.vision import FAMILIES, picture

from .test_quickstart import FENCE, ROOT

PAGE = (ROOT / "docs" / "how-to" / "images.md").read_text(encoding="utf-8")
BLOCKS = {kind: [code for language, _, code in FENCE.findall(PAGE) if language == kind] for kind in ("toml", "python")}
NAMES = {
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "idefics3": "Idefics3",
    "llava": "LLaVA",
    "gemma3": "Gemma 3",
}


def test_the_page_names_the_families_of_the_tests() -> None:
    assert NAMES.keys() == FAMILIES.keys()
    assert [name for name in NAMES.values() if name not in PAGE] == []


def test_the_first_block_of_python_writes_a_file_that_a_run_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("squares.png").write_bytes(picture())
    exec(compile(BLOCKS["python"][0], "images.md", "exec"), {})
    report = inspect("shapes.parquet")
    assert [each.has_images for each in report.formats] == [True]
    assert not report.problems


def test_the_environment_of_the_page_shows_a_photo() -> None:
    namespace: dict[str, Any] = {}
    exec(compile(BLOCKS["python"][1], "images.md", "exec"), namespace)
    camera = namespace["Camera"]()
    observation = asyncio.run(camera.reset({"answer": "a cat"}, seed=0))
    assert observation.images == ["photo.jpg"]
    assert asyncio.run(camera.step("a cat", ())).reward == 1.0


@pytest.mark.parametrize("code", BLOCKS["toml"])
def test_a_block_of_toml_is_valid(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_environment.py").write_text(BLOCKS["python"][1], encoding="utf-8")
    changes = tomllib.loads(code)
    settings = to_dict(addition())
    changes |= {name: settings[name] | changes[name] for name in ("trainer",) if name in changes}
    check(evolve(from_dict(RunConfig, {**settings, **changes}), initial_run=None))
