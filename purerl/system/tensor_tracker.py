"""Bytes of tensors that are alive, and their maximum in each phase of a program.

The tracker sees every operation of torch in its block. It counts the storages of the arguments and of the results, each
once, until torch frees them. So it counts what tensors need, on any device, also for tensors without values (meta
tensors and fake tensors). Memory that an operation uses internally, and memory that an allocator keeps after a tensor
was freed, are not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

__all__ = ["MemoryTracker"]

_OTHER = "other"


class MemoryTracker(TorchDispatchMode):
    """Counts bytes of live tensors inside a ``with`` block.

    live     bytes of live tensors by label; those without a label are in "other"
    peaks    by phase: `live` at the moment when most bytes were alive in the phase
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, int] = {}
        self.peaks: dict[str, dict[str, int]] = {}
        self._phases: list[str] = []
        self._storages: dict[int, tuple[str, int, weakref.ref]] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes of live tensors."""
        return self._total

    def peak(self, phase: str) -> int:
        """The maximum of `total` in `phase`; 0 if it was never entered."""
        return sum(self.peaks.get(phase, {}).values())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the peak of the block as that of the phase `name`, and of the phases around it."""
        self._phases.append(name)
        self._record()
        try:
            yield
        finally:
            self._phases.pop()

    def label(self, label: str, tensors: Iterable[Tensor]) -> None:
        """Count `tensors` under `label`."""
        for storage in _storages(tensors):
            self._forget(storage._cdata)  # noqa: SLF001 - what identifies a storage
            self._count(storage, label)

    def hold(self, label: str, size: int) -> None:
        """Count `size` further bytes under `label`, or fewer if `size` is negative: of tensors that do not exist."""
        self._add(label, size)
        self._record()

    def __enter__(self) -> Self:
        self._resize = torch.UntypedStorage.resize_
        tracker, resize = self, self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            tracker._resized(storage)
            return result

        # FSDP2 frees and restores parameters by this method, which is no operation of torch.
        torch.UntypedStorage.resize_ = resize_  # pyright: ignore[reportAttributeAccessIssue]
        return super().__enter__()

    def __exit__(self, *details: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*details)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for storage in _storages(tree_leaves((args, kwargs, result))):
            known = self._storages.get(storage._cdata)  # noqa: SLF001
            if known is None or known[2]() is not storage:
                self._count(storage, _OTHER)
            elif known[1] != storage.nbytes():
                self._resized(storage)
        self._record()
        return result

    def _count(self, storage: torch.UntypedStorage, label: str) -> None:
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001
        self._forget(key)
        self._storages[key] = (label, size, weakref.ref(storage, lambda _: self._forget(key)))
        self._add(label, size)

    def _forget(self, key: int) -> None:
        label, size, _ = self._storages.pop(key, (_OTHER, 0, None))
        self._add(label, -size)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._storages.get(storage._cdata)  # noqa: SLF001
        self._count(storage, _OTHER if known is None else known[0])
        self._record()

    def _add(self, label: str, size: int) -> None:
        self.live[label] = self.live.get(label, 0) + size
        self._total += size

    def _record(self) -> None:
        for phase in self._phases:
            if self._total > self.peak(phase):
                self.peaks[phase] = dict(self.live)


def _storages(leaves: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    """The storages of the tensors among `leaves`; of a tensor that consists of others, such as a DTensor, theirs."""
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            continue
        if is_traceable_wrapper_subclass(leaf):
            names, _ = leaf.__tensor_flatten__()
            yield from _storages(getattr(leaf, name) for name in names)
        elif leaf.layout == torch.strided:
            yield leaf.untyped_storage()
