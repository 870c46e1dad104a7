"""The images and the experts of micro-batches: kept by their numbers, and read when a micro-batch is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.backends.hf.decoder.images import ImageBatch, ImageReader
from purerl.backends.hf.model.token_model import Extras
from purerl.backends.hf.moe.replay import ROUTES
from purerl.backends.hf.training.expert_records import RouteRecords, SampledRoutes, set_store
from purerl.backends.hf.training.layout import ExtraKeys, MicroBatch
from purerl.errors import InputError
from purerl.expert_routes import RouteStore
from purerl.types import RowInt, TokenBool, TokenInt

__all__ = ["ExtraReader"]

ReadPositions = Callable[[TokenInt, TokenBool], tuple[TokenInt, TokenBool]]


class ExtraReader:
    """Makes the extras of the micro-batches of one trainer.

    device   of the model
    records  of experts; None: the trainer replays none
    read     `TokenModel.read_positions`, if the trainer may read images
    images   set when the store of images is known
    """

    def __init__(
        self, device: torch.device, records: RouteRecords | SampledRoutes | None, read: ReadPositions | None = None
    ) -> None:
        self.device, self.records, self.read = device, records, read
        self.images: ImageReader | None = None

    @property
    def records_experts(self) -> bool:
        """Whether a pass can record the experts of its tokens, as the output `ROUTES`."""
        return isinstance(self.records, RouteRecords)

    def use_routes(self, store: RouteStore) -> None:
        """Read the records of a generator from `store`. Raises InputError as `set_store`."""
        set_store(self.records, store)

    def replays(self, batch: TensorDict, call: str) -> bool:
        """Whether a `call` of the trainer, "score", "step" or "gradient", replays the experts of `batch`.

        A step always does. Of scores, those with the records of a generator do: others are recorded by this pass.
        """
        has_records = ROUTES in batch.keys()
        if call == "score":
            return has_records and isinstance(self.records, SampledRoutes)
        return self.records is not None and (has_records or call == "step")

    def fetch(self, batch: TensorDict, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        """`parts` of `batch` with the numbers of their records, which are then on this rank. A collective call.

        Raises: BatchError, on every rank, for records that do not exist, or do not fit the rows or the model.
        """
        if self.records is None:
            return [*parts]
        numbers = self.records.fetch(batch[ROUTES], batch["action"], [part.rows for part in parts])
        pairs = zip(parts, numbers, strict=True)
        return [part._replace(extras=(part.extras or ExtraKeys())._replace(experts=own)) for part, own in pairs]

    def of(self, batch: TensorDict, part: MicroBatch) -> Extras | None:
        """The extras of one micro-batch of `batch`, on the device; None if it has none.

        Raises: InputError for images without a store of images.
        """
        if part.extras is None:
            return None
        images = None if part.extras.images is None else self._images(batch[part.rows], part.extras.images)
        return Extras(images, self.experts(part, batch["tokens"].shape[1]))

    def experts(self, part: MicroBatch, time: int) -> Tensor | None:
        """[rows, time, layers, k] the experts of one micro-batch, on the device; None: its routers choose."""
        keys = part.extras
        if self.records is None or keys is None or keys.experts is None:
            return None
        return self.records.padded(keys.experts, time)

    def _images(self, rows: TensorDict, ids: tuple[int, ...]) -> ImageBatch:
        if self.images is None or self.read is None:
            raise InputError("rows with images", got="a trainer without a store of images", need="use_images first")
        tokens, action = self.read(rows["tokens"], rows["action"])
        image, _ = self.read(rows["image"], rows["action"])
        return self.images.rows(tokens, image * action.any(-1, keepdim=True), ids).to(self.device)

    def begin(self, batch: TensorDict, outputs: Sequence[str]) -> None:
        """A pass over `batch` begins: if `ROUTES` is among its `outputs`, drop the records of the last one."""
        if isinstance(self.records, RouteRecords) and ROUTES in outputs:
            self.records.begin(batch["action"])

    def keep(self, rows: RowInt, name: str, result: Tensor) -> Tensor:
        """The output `name` of these `rows` of the pass: of recorded experts, the numbers of the records."""
        if isinstance(self.records, RouteRecords) and name == ROUTES:
            return self.records.keep(rows, result)
        return result
