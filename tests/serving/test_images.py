"""Images in the requests to vLLM, without an engine."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.requests import PendingRequest
from purerl.backends.serving.http import RefusedError
from purerl.backends.vllm import generator as vllm
from purerl.backends.vllm.api import VLLMApi
from purerl.errors import ImageError
from purerl.images import Image, ImageStore, decode
from purerl.protocols import Request, Sampling
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.backends.vision import picture, write_vision_model

PICTURE = picture(1)
ID = Image(PICTURE).id
ROW = Request("a", [5, 9, 9, 6, 9, 9, 7], Sampling(), seed=0, image=[0, ID, ID, 0, ID, ID, 0])


@pytest.fixture
def api(tmp_path: Path) -> VLLMApi:
    made = VLLMApi(Model("m"), {}, {}, None, stale_cache=False, is_streamed=False)
    store = ImageStore(tmp_path / "images")
    store.add([Image(PICTURE)])
    made.use_images(store)
    return made


def response(prompt: list[int]) -> dict[str, Any]:
    choice = {
        "token_ids": [3],
        "logprobs": {"content": [{"logprob": -1.0}]},
        "weight_versions": [{"version": "0", "start": 0, "end": 1}],
        "finish_reason": "length",
    }
    return {"choices": [choice], "prompt_token_ids": prompt}


def test_a_request_has_one_token_and_the_pixels_of_each_image(api: VLLMApi) -> None:
    pending = PendingRequest(ROW)
    pending.add([8, 9], [-1.0, -1.0], 0)
    body = api.request(pending, "identity", None).body
    assert body["token_ids"] == [5, 9, 6, 9, 7, 8, 9]
    first, second = (part["url"] for part in body["content_parts"])
    assert first == second
    pixels = decode(base64.b64decode(first.removeprefix("data:image/png;base64,")))
    assert pixels.tobytes() == decode(PICTURE).tobytes()


def test_pixels_are_sent_as_trainers_decode_them(api: VLLMApi) -> None:
    """Turned as EXIF says, and on white."""
    from PIL import Image as Pillow

    exif = Pillow.Exif()
    exif[0x0112] = 6
    Pillow.new("RGBA", (4, 2), (255, 0, 0, 0)).save(file := BytesIO(), format="PNG", exif=exif)
    image = Image(file.getvalue())
    api._images.add([image])
    request = evolve(ROW, image=[image.id if each else 0 for each in ROW.image])
    url = api.request(PendingRequest(request), "identity", None).body["content_parts"][0]["url"]
    sent = Pillow.open(BytesIO(base64.b64decode(url.partition(",")[2])))
    assert (sent.size, sent.mode, sent.getpixel((0, 0))) == ((2, 4), "RGB", (255, 255, 255))


def test_an_answer_to_another_prompt_is_refused(api: VLLMApi) -> None:
    pending = PendingRequest(ROW)
    assert api.answer(response([*ROW.tokens]), pending).tokens == [3]
    with pytest.raises(RefusedError, match="as 6 other tokens than the 7 of the run"):
        api.answer(response([*ROW.tokens[:-1]]), pending)
    text = evolve(ROW, image=())
    assert api.answer({**response([]), "prompt_token_ids": None}, PendingRequest(text)).tokens == [3]


def test_an_image_that_is_not_in_the_store_is_an_error(api: VLLMApi) -> None:
    request = evolve(ROW, image=[each and ID + 1 for each in ROW.image])
    with pytest.raises(ImageError):
        api.request(PendingRequest(request), "identity", None)


def test_only_models_that_were_compared_read_images(tmp_path: Path) -> None:
    def reads(path: str, **changes: Any) -> bool:
        return vllm.preview(vllm.Config(**changes), model=Model(path)).images

    qwen, *others = (write_vision_model(tmp_path, family) for family in ("qwen2_vl", "qwen3_vl", "idefics3"))
    assert reads(qwen)
    assert not reads(qwen, max_lora_rank=8), "adapters and images together were not tried"
    assert not any(map(reads, others))
    assert not reads(str(write_model(tmp_path / "text")))
