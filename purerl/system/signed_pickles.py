"""Pickles of torch's collective calls of objects, which carry a code of the run.

purerl sends no objects by `torch.distributed.all_gather_object` and its like. Libraries do, such as Megatron-core. In
the block of `signed_pickles` what they send carries an HMAC, and what does not carry it is refused before it is read.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

from purerl.errors import EngineError

__all__ = ["signed_pickles"]

_SIZE = hashlib.sha256().digest_size
_NAMES = ("_pickler", "_unpickler")


@contextmanager
def signed_pickles(key: bytes) -> Iterator[None]:
    """Let torch.distributed sign the objects that it sends in the block with `key`, and refuse others."""
    from torch.distributed import distributed_c10d

    before = {name: getattr(distributed_c10d, name) for name in _NAMES}
    for name, replacement in zip(_NAMES, (_Pickler, _Unpickler), strict=True):
        setattr(distributed_c10d, name, partial(replacement, key))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(distributed_c10d, name, value)


class _Pickler:
    """Writes a code and a pickle to `file`."""

    def __init__(self, key: bytes, file: BinaryIO) -> None:
        self._key, self._file = key, file

    def dump(self, value: object) -> None:
        packed = pickle.dumps(value)
        self._file.write(hmac.digest(self._key, packed, hashlib.sha256) + packed)


class _Unpickler:
    """Reads what `_Pickler` wrote."""

    def __init__(self, key: bytes, file: BytesIO) -> None:
        self._key, self._file = key, file

    def load(self) -> Any:
        """The object. Raises: EngineError if the code is not that of the run."""
        code, packed = self._file.read(_SIZE), self._file.read()
        if not hmac.compare_digest(code, hmac.digest(self._key, packed, hashlib.sha256)):
            got, need = f"{len(packed)} bytes without the code of this run", "objects of the ranks of this run only"
            raise EngineError("a collective call of objects", got=got, need=need)
        return pickle.loads(packed)  # noqa: S301 - a rank of this run has signed it
