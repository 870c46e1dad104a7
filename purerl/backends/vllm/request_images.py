"""Images in requests to vLLM.

vLLM takes a prompt in which each image is one token, and puts as many tokens in its place as its processor says. The
image is a PNG file of the pixels that trainers decode, so its colors, its orientation and its transparency are theirs.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise

from purerl.images import ImageStore, decode

__all__ = ["MODELS", "content_parts", "one_token_each"]

MODELS = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""Types of models with the log-probabilities of trainers. In their prompts an image is one token, repeated."""


def one_token_each(tokens: Sequence[int], image: Sequence[int]) -> tuple[list[int], list[int]]:
    """`tokens` with one token for each image, and the content ids of the images in order.

    image  for each token the content id of its image, or 0

    >>> one_token_each([5, 9, 9, 6, 9, 9, 7], [0, 3, 3, 0, 3, 3, 0])
    ([5, 9, 6, 9, 7], [3, 3])
    """
    kept = [
        (token, here)
        for token, (before, here) in zip(tokens, pairwise([0, *image]), strict=True)
        if not here or here != before
    ]
    return [token for token, _ in kept], [here for _, here in kept if here]


def content_parts(images: ImageStore, ids: Sequence[int]) -> list[dict[str, str]]:
    """The images with these content ids, as vLLM takes them. Raises ImageError for one that is not in `images`."""

    def url(image: int) -> str:
        return images.cache.get(("png", image), lambda: _png_url(images.read(image)), len)

    return [{"type": "image_url", "url": url(image)} for image in ids]


def _png_url(data: bytes) -> str:
    decode(data).save(file := BytesIO(), format="PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
