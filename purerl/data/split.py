"""Which prompts are held out: a matter of each prompt alone, whatever stands beside it in the file."""

from __future__ import annotations

import hashlib
import json

from purerl.data.chat import Given

__all__ = ["is_validation"]


def is_validation(prompt: Given, *, share: float) -> bool:
    """Whether `prompt` belongs to the `share` of all prompts that no run trains on.

    hash(prompt) / 2^64 < share

    The hash is that of a text, or of the roles and contents of messages. So the answer is the same in every order, in
    every file and after rows were added; a prompt that occurs twice is on one side both times; and what is held out at
    a small share is held out at a greater one.

    >>> [k for k in range(40) if is_validation(f"problem {k}", share=0.1)]
    [21, 32]
    """
    plain = prompt if isinstance(prompt, str) else [[one["role"], one["content"]] for one in prompt]
    digest = hashlib.blake2b(json.dumps(plain, ensure_ascii=False).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
