"""Files of torch.distributed.checkpoint: written with digests, and read without executing code.

    __0_0.distcp, __1_0.distcp, ...    what each rank has written
    .metadata                          where each part of each tensor is; written by rank 0

Tools of torch, such as `torch.distributed.checkpoint.load`, read them too.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from purerl.system.digests import DigestWriter

__all__ = ["ShardReader", "ShardWriter", "os_errors"]

_BUFFER = 2**20  # bytes: torch writes many small pieces

_METADATA_CLASSES = frozenset(
    {
        *(("torch", "Size"), ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath")),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
                *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
            )
        ),
    }
)
"""The classes in metadata, beside plain values and dtypes."""


class _DigestFile(FileIO):
    """A new file, and the digest of what has been written into it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self._writer = DigestWriter()

    def write(self, data: Any, /) -> int:
        written = super().write(data) or 0
        self._writer.write(memoryview(data)[:written])
        return written

    @property
    def digest(self) -> str:
        return self._writer.digest


class _DigestFileSystem(FileSystem):
    """Files with the digest of each one that has been written, by its name."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with _DigestFile(Path(path)) as file:
            with BufferedWriter(file, _BUFFER) as stream:
                yield stream
            self.digests[Path(path).name] = file.digest

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        os.replace(path, new_path)
        self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)


class ShardWriter(FileSystemWriter):
    """Writes into the directory `path`, one file for each rank. The caller makes sure that files reach the disk."""

    def __init__(self, path: Path) -> None:
        # Nothing is copied ahead: a thread beside the main one would use a stream of the first GPU for it.
        super().__init__(path, sync_files=False, per_thread_copy_ahead=0)
        self.fs = _DigestFileSystem()
        self.set_up_storage_writer(is_coordinator=True)

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file that this process has written, by its name."""
        return self.fs.digests

    def storage_meta(self) -> StorageMeta:
        """Nothing: a path and a random number would make equal checkpoints different files."""
        return StorageMeta()


class ShardReader(FileSystemReader):
    """Reads what `ShardWriter` wrote."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata. Raises: UnpicklingError for content that is no part of metadata, and other exceptions."""
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError("these are no metadata of torch.distributed.checkpoint")
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Creates objects of `_METADATA_CLASSES` only, so that no code of the file is executed."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) in _METADATA_CLASSES:
            return super().find_class(module_name, global_name)
        if module_name == "torch" and isinstance(dtype := getattr(torch, global_name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no part of metadata")


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise OSError if safetensors or torch cannot write inside the block; they raise other errors."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error
    except RuntimeError as error:  # torch also closes its archive, which fails too if the disk is full
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
