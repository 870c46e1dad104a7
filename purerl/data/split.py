"""The assignment of prompts to the validation set."""

from __future__ import annotations

import hashlib
import json

from purerl.data.chat import TextOrMessages
from purerl.data.row_images import as_json

__all__ = ["is_validation"]


def is_validation(prompt: TextOrMessages, *, fraction: float) -> bool:
    """Whether `prompt` belongs to the validation set, which contains `fraction` of all prompts.

    hash(prompt) / 2^64 < fraction

    The hash covers the string, or the roles and contents of the messages; of an image its content id. The result does
    not depend on the order of the rows, on other rows, or on the file. Duplicate prompts are always on the same side.
    The validation set of a smaller fraction is a subset of the validation set of a larger one.

    >>> [k for k in range(40) if is_validation(f"problem {k}", fraction=0.1)]
    [21, 32]
    """
    messages = [] if isinstance(prompt, str) else map(as_json, prompt)
    content = prompt if isinstance(prompt, str) else [[message["role"], message.get("content")] for message in messages]
    digest = hashlib.blake2b(json.dumps(content, ensure_ascii=False).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
