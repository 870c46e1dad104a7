"""Images in the report: small copies of those that its completions have read, within the size limit."""

from __future__ import annotations

import base64
import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image as Pillow

from purerl.images import Image, ImageStore, hex_id
from purerl.report.completions import select_completions
from purerl.report.page import write_report
from purerl.system.installation import install_command
from tests.report.chromium import Page, marks
from tests.report.sample_runs import make_conversation, make_episodes, make_evaluation, make_run

GROUPS = [("how many? <image><image>=", ["2", "3"]), ("1+1=", ["2"])]
PLACE = len("how many? ")


def _image(color: str, size: tuple[int, int] = (900, 300)) -> Image:
    Pillow.new("RGB", size, color).save(file := BytesIO(), format="PNG")
    return Image(file.getvalue())


RED, BLUE = _image("red"), _image("blue")
IDS = [hex_id(RED.id), hex_id(BLUE.id)]


def _add_column(path: Path, name: str, values: list[Any]) -> None:
    table = parquet.read_table(path)
    parquet.write_table(table.append_column(name, pa.array(values)), path)


def _add_images(run: Path) -> None:
    """Let the rows of the first group have a red and a blue image, whose tokens are those of <image> in the prompt."""
    for path in (run / "rollouts").iterdir():
        rows = parquet.read_table(path, columns=["tokens", "group"]).to_pylist()
        tokens = [0] * PLACE + [RED.id] * len("<image>") + [BLUE.id] * len("<image>")
        image = [[*tokens, *[0] * len(row["tokens"])][: len(row["tokens"])] for row in rows]
        has_images = [row["group"] == 0 for row in rows]
        _add_column(
            path, "image", [each if has else [0] * len(each) for each, has in zip(image, has_images, strict=True)]
        )
        _add_column(path, "images", [json.dumps(IDS if has else []) for has in has_images])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "run", steps=2, groups=GROUPS)
    _add_images(run)
    ImageStore(run / "images").add([RED, BLUE])
    return run


def _picture(url: str) -> Pillow.Image:
    kind, _, text = url.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Pillow.open(BytesIO(base64.b64decode(text)))


def test_images_are_embedded_once_and_small(run: Path) -> None:
    selection = select_completions(run, max_bytes=10**6)
    assert list(selection["images"]) == IDS, "each once, though four groups have them"
    red = _picture(selection["images"][IDS[0]])
    assert red.size == (320, 107)
    assert red.convert("RGB").getpixel((9, 9)) == (255, 0, 0)
    first, second, *_ = selection["groups"]
    assert (first["images"], [row["images"] for row in first["rows"]]) == (IDS, [IDS, IDS])
    assert "images" not in second
    assert "images" not in second["rows"][0]


def test_tokens_of_an_image_are_one_text(run: Path) -> None:
    (first, *_) = select_completions(run, max_bytes=10**6)["groups"]
    assert "".join(first["prompt_tokens"]["text"]) == "how many? [image][image]="
    assert len(first["prompt_tokens"]["text"]) == len(first["prompt_tokens"]["tokens"])
    assert "image" not in first["rows"][0]["per_token"], "content ids have more bits than numbers of JavaScript"


@pytest.mark.parametrize("max_bytes", [300, 1500, 3000, 6000, 10000])
def test_images_count_as_part_of_the_size(run: Path, max_bytes: int) -> None:
    selection = select_completions(run, max_bytes=max_bytes)
    groups = sum(len(json.dumps(group)) for group in selection["groups"])
    assert groups + sum(map(len, selection["images"].values())) <= max_bytes


def test_group_is_shown_without_images_if_these_do_not_fit(run: Path) -> None:
    whole = select_completions(run, max_bytes=10**6)
    size = len(json.dumps(whole["groups"][0])) + 100
    assert sum(map(len, whole["images"].values())) > 100
    selection = select_completions(run, max_bytes=size)
    assert selection["images"] == {}
    assert selection["groups"][0]["rows"] == whole["groups"][0]["rows"]


def test_images_that_the_run_does_not_have_are_left_out(run: Path) -> None:
    (run / "images" / IDS[0]).unlink()
    (run / "images" / IDS[1]).write_bytes(b"other")
    selection = select_completions(run, max_bytes=10**6)
    assert (selection["images"], selection["num_rows"]) == ({}, 6)


def test_report_without_pillow_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    selection = select_completions(run, max_bytes=10**6)
    assert (selection["images"], selection["num_rows"]) == ({}, 6)
    assert install_command("images") in selection["skipped"][0]


@pytest.mark.parametrize("text", ["red.png", '"a"', '["../config.toml"]', "[1]"])
def test_file_with_other_ids_is_left_out(run: Path, text: str) -> None:
    path = run / "rollouts" / "000001.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.drop_columns(["images"]).append_column("images", pa.array([text] * 3)), path)
    selection = select_completions(run, max_bytes=10**6)
    assert {group["step"] for group in selection["groups"]} == {2}
    assert "column 'images'" in selection["skipped"][0]


def _add_conversation(run: Path) -> str:
    """Write an episode, and an evaluation, whose first message and answers of the tool have images. Returns it."""
    conversation = make_conversation("a", "b")
    for message, image in ((conversation[0], IDS[0]), (conversation[2], IDS[1])):
        message["content"] = [{"type": "text", "text": message["content"]}, {"type": "image", "image": image}]
    make_episodes(run, 3, [[["a", "b"]]], messages=False)
    _add_column(run / "rollouts" / "000003.parquet", "messages", [json.dumps(conversation)])
    return json.dumps(conversation)


def test_messages_have_their_images(run: Path) -> None:
    make_evaluation(run, 3, attempts=1, messages=_add_conversation(run))
    selection = select_completions(run, max_bytes=10**6)
    episode = next(group for group in selection["groups"] if group["step"] == 3 and "data_set" not in group)
    attempt = next(group for group in selection["groups"] if "data_set" in group)
    for group in (episode, attempt):
        messages = [*group["messages"], *(message for row in group["rows"] for message in row["messages"])]
        assert [message.get("images") for message in messages] == [(IDS[0],), None, (IDS[1],), None]
        assert messages[0]["content"] == f"How warm?[image {IDS[0]}]"


# --- in a browser --------------------------------------------------------------------------------------------------


def _shown(page: Page, selector: str) -> list[tuple[str, int]]:
    """The title of each image, and its width: not 0 only if the browser has decoded it."""
    images = page.find_all(selector)
    return [(image.get_attribute("title"), page.evaluate("arguments[0].naturalWidth", image)) for image in images]


@pytest.mark.parametrize("mark", [pytest.param(None, marks=marks)])
def test_page_shows_images(run: Path, browser: Any, mark: None) -> None:
    _add_conversation(run)
    make_evaluation(run, 2)
    _add_column(run / "evaluations" / "000002.parquet", "images", [json.dumps(IDS[:1])] * 4)
    (run / "images" / IDS[1]).unlink()
    browser.get(write_report([run], run / "page.html", megabytes=5).path.as_uri())
    page, red = Page(browser), (f"image {IDS[0]}", 320)
    assert set(_shown(page, "#rows .icon")) == {red}
    assert len(page.find_all("#rows .icon")) == 8, "four rollouts, four attempts"
    page.set_value("[data-filter=source]", "training")
    page.set_value("[data-filter=sort]", "newest")
    assert _shown(page, "#detail .message .images img") == [red]
    assert f"image {IDS[1]} is not in this page" in page.find("#detail").text
    page.set_value("[data-filter=sort]", "oldest")
    page.click("#rows tr:nth-child(1)")
    assert _shown(page, "#detail .images img") == [red]
    assert "how many? [image][image]=" in page.find("#detail .transcript").text
    page.set_value("[data-filter=source]", "evaluation: math")
    page.click("#rows tr:nth-child(1)")
    assert _shown(page, "#detail .images img") == [red]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
