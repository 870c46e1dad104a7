"""Images of observations: what is accepted, and what passes between processes and machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image as Pillow

from purerl.data.row_images import images_of, placed
from purerl.envs.hosts import episode
from purerl.envs.observations import Declared, checked_observation, from_json, to_json
from purerl.envs.protocol import Observation
from purerl.envs.server import Server
from purerl.envs.settings import EnvironmentSettings
from purerl.envs.turns import open_renderer
from purerl.errors import ConfigError
from purerl.images import Image, decode
from purerl.testing import check_environment
from tests.backends.vision import picture
from tests.loop.image_games import Gallery

from .hosts import hosted

IMAGES = Declared(images=True)
PLACE = {"type": "image"}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_images_come_where_their_places_are_or_first() -> None:
    first, second = picture(1), picture(2)
    with_places = Observation(messages=[_user([_text("a"), PLACE]), _user([PLACE, _text("b")])], images=[first, second])
    without = Observation(messages=[_user("a"), _user("b")], images=[first, second])
    for observation, shown in ((with_places, ["a", first, second, "b"]), (without, [first, second, "a", "b"])):
        checked = checked_observation(observation, IMAGES)
        messages = placed(checked.messages, checked.images)
        contents = [message["content"] for message in messages]
        parts = [part for each in contents for part in ([_text(each)] if isinstance(each, str) else each)]
        assert [part["text"] if part["type"] == "text" else part["image"].read() for part in parts] == shown
        assert images_of(messages) == [Image(first), Image(second)]


def test_pictures_and_paths_become_bytes(tmp_path: Any) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    shown = [Pillow.new("RGB", (4, 3), "red"), tmp_path / "a.png", str(tmp_path / "a.png")]
    checked = checked_observation(Observation(messages=[_user("a")], images=shown), IMAGES)
    assert decode(checked.images[0]).size == (4, 3)
    assert checked.images[1:] == (picture(1), picture(1))


def test_observations_with_images_survive_json() -> None:
    checked = checked_observation(Observation(messages=[_user("a")], images=[picture(1)], reward=0.5), IMAGES)
    again = from_json(json.loads(json.dumps(to_json(checked))))
    assert checked_observation(again, IMAGES) == checked


@pytest.mark.parametrize(("column", "type_there"), [(picture(1), "str"), ({"bytes": picture(1)}, "dict")])
def test_images_of_examples_reach_a_server_and_come_back(column: Any, type_there: str) -> None:
    async def play(host: Any) -> list[Observation]:
        async with episode(host) as opened:
            return [await opened.reset({"image": column}, 0), await opened.step("a", ())]

    there = EnvironmentSettings(factory="tests.loop.image_games:Shown", images=True, num_workers=1, timeout=30.0)
    with Server(there, ("127.0.0.1", 0)) as server:
        url = "http://{}:{}".format(*server.address)
        shown, answered = hosted(play, EnvironmentSettings(url=url, images=True, timeout=30.0))
    assert shown.images == (picture(1),)
    assert answered.messages[0]["content"] == type_there


REFUSED = {
    "undeclared": (Observation(messages=[_user("a")], images=[picture(1)]), Declared(), "environment.images is false"),
    "undeclared parts": (Observation(messages=[_user([_text("a")])]), Declared(), "need a string"),
    "too few places": (
        Observation(messages=[_user([PLACE])], images=[picture(1)] * 2),
        IMAGES,
        "2 images, and 1 places",
    ),
    "too many places": (Observation(messages=[_user([PLACE])]), IMAGES, "0 images, and 1 places"),
    "no message": (Observation(images=[picture(1)]), IMAGES, "1 images, and 0 places"),
    "no image": (Observation(messages=[_user("a")], images=[3]), IMAGES, "got:  3"),
    "another part": (Observation(messages=[_user([{"type": "video"}])]), IMAGES, "the type text, image"),
    "one image": (Observation(messages=[_user("a")], images=picture(1)), IMAGES, "need a list of images"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_images_are_refused(name: str) -> None:
    observation, declared, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        checked_observation(observation, declared)


def test_conformance_suite_accepts_an_environment_with_images() -> None:
    check_environment(Gallery, [{}], images=True)


def test_images_of_tools_have_no_effect() -> None:
    with pytest.raises(ConfigError, match="images has no effect"):
        EnvironmentSettings(tools=("tests.loop.games:add",), images=True)


def test_a_renderer_of_a_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from purerl.data.chat import Chat
    from tests.backends.vision import tokenizer

    chat = Chat(tokenizer(), (), (), processor=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="template or auto with images"):
        open_renderer(chat, renderer="qwen3")
