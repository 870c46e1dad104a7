"""Rows with images for the tests of engines, and what transformers' own models compute for them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.batch import collate
from purerl.data.chat import Chat, image_ids, open_chat, tokenize_prompts
from purerl.images import Image, ImageStore, decode
from purerl.models.processor import Processor, load_processor
from purerl.protocols import Completion, Request, Sampling
from purerl.settings import Model
from tests.backends.vision import FAMILIES, picture, tokenizer

FREE = Sampling(temperature=1.0, max_tokens=12)
WIDE, TALL, OTHER = picture(1, (40, 16)), picture(2, (16, 40)), picture(3, (40, 16))


def message(*parts: str | bytes) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": Image(part)}
        for part in parts
    ]
    return {"role": "user", "content": content}


PROMPTS: tuple[list[dict[str, Any]], ...] = (
    [message(WIDE, "a?")],
    [message("what is ", TALL, " and ", WIDE, "?")],
    [message("2+2")],
    [message(TALL, TALL, "same?")],
)


def chat_of(path: str, family: str) -> Chat:
    words = tokenizer(FAMILIES[family]["placeholder"])
    return open_chat(words, "messages", processor=load_processor(Model(path)))


def store_of(folder: Path, *pictures: bytes) -> ImageStore:
    store = ImageStore(folder / "images")
    store.add(map(Image, pictures or (WIDE, TALL, OTHER)))
    return store


def make_rows(chat: Chat, prompts: Sequence[Any] = PROMPTS, samples: int = 2, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with random completions of different lengths, some of whose tokens are not counted."""
    rows, draw = [], torch.Generator().manual_seed(seed)
    for group, prompt in enumerate(tokenize_prompts(chat, prompts)):
        ids = image_ids(chat, prompt.tokens, prompt.images)
        for _ in range(samples):
            length = int(torch.randint(1, 7, (), generator=draw))
            sampled = torch.randint(30, len(chat.tokenizer), (length,), generator=draw).tolist()
            before = len(prompt.tokens)
            rows.append(
                {
                    "tokens": prompt.tokens + sampled,
                    "image": ids + [0] * length,
                    "action": [False] * before + [True] * length,
                    "mask": [False] * before + [True] * (length - 1) + [length % 2 == 0],
                    "row": len(rows),
                    "group": group,
                    "temperature": 1.0,
                    "advantage": [float(torch.randn((), generator=draw))] * (before + length),
                    "returns": [0.5] * (before + length),
                }
            )
    return rows


def make_image_batch(chat: Chat, **options: Any) -> TensorDict:
    batch = collate(make_rows(chat, **options))
    return batch.apply(lambda value: value.double() if value.is_floating_point() else value)


def reference(path: str, dtype: torch.dtype = torch.float64) -> Any:
    """transformers' own model."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(path, dtype=dtype).eval()


_shared_reference = functools.cache(reference)
"""The same model for all calls: it must not change."""


def reference_logp(model: Any, processor: Processor, tokens: Sequence[int], pictures: Sequence[bytes]) -> Tensor:
    """[time - 1] log-probability of each token but the first, by `model`, with positions of its own."""
    inputs: dict[str, Any] = {}
    ids = torch.tensor([tokens])
    if pictures:
        images = [decode(data) for data in pictures]
        inputs = dict(processor._processor.image_processor([images], return_tensors="pt"))
        inputs = {name: value for name, value in inputs.items() if name not in ("rows", "cols")}
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (ids == processor.image_token_id).int()
    logits = model(input_ids=ids, **inputs).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


def pictures_of(row: dict[str, Any], store: ImageStore, chat: Chat) -> list[bytes]:
    """The files of the images of a row, in order."""
    files, start = [], 0
    while start < len(row["image"]):
        number = row["image"][start]
        if number:
            files.append(store.read(number))
            start += len(chat.processor.expansion(Image(files[-1])))
        else:
            start += 1
    return files


def requests_for(chat: Chat, prompts: Sequence[Any], samples: int = 2, sampling: Sampling = FREE) -> list[Request]:
    return [
        Request(f"{k}/{j}", prompt.tokens, sampling, 97 * k + j, image=image_ids(chat, prompt.tokens, prompt.images))
        for k, prompt in enumerate(tokenize_prompts(chat, prompts))
        for j in range(samples)
    ]


def row_of(request: Request, completion: Completion, number: int = 0) -> dict[str, Any]:
    before, after = len(request.tokens), len(completion.tokens)
    return {
        "tokens": [*request.tokens, *completion.tokens],
        "image": [*request.image, *[0] * after],
        "action": [False] * before + [True] * after,
        "row": number,
        "group": number,
        "temperature": 1.0,
        "rollout_logp": [0.0] * before + [*completion.logp],
    }


def expected_logp(path: str, chat: Chat, store: ImageStore, request: Request, completion: Completion) -> torch.Tensor:
    """The log-probabilities of the sampled tokens, up to one that is a placeholder, for which there is no image."""
    row, placeholder = row_of(request, completion), chat.processor.image_token_id
    sampled = list(completion.tokens)
    end = sampled.index(placeholder) if placeholder in sampled else len(sampled)
    tokens = [*request.tokens, *sampled[:end]]
    with torch.no_grad():
        logp = reference_logp(_shared_reference(path), chat.processor, tokens, pictures_of(row, store, chat))
    return logp[len(request.tokens) - 1 :]
