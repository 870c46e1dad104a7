"""The micro-batches of this rank: their rows, and whether these share prefixes or are packed; and empty scores.

Every rank works out the micro-batches of all ranks from the same batch, without communication. So all of them agree on
what a sharded model needs: the number of micro-batches, and in each of them one or two forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.backends.hf.decoder.images import identities
from purerl.backends.hf.decoder.limits import CHOICES
from purerl.backends.hf.model.packing import Pack, pack
from purerl.backends.hf.model.prefix import Plan, plan, separate_plan
from purerl.backends.hf.moe.replay import ROUTES
from purerl.backends.training import Budget
from purerl.errors import InputError
from purerl.kernels.partition import rank_microbatches, rank_packs, tokens_needed
from purerl.ranks import Ranks

__all__ = ["ExtraKeys", "MicroBatch", "arrange", "arrange_packs", "check_built_for", "zero_score"]


class ExtraKeys(NamedTuple):
    """The numbers of what a micro-batch reads beside tokens, see `training/extras.py`.

    images   content ids of its images, sorted; None: no rank has images in this micro-batch
    experts  [rows] numbers of the records of experts; None: the routers choose
    """

    images: tuple[int, ...] | None = None
    experts: Tensor | None = None


class MicroBatch(NamedTuple):
    """The indices of its rows in the batch, and how they are read: padded, if neither of the next two is set.

    prefixes  how they share prefixes
    pack      the pack in which they are
    extras    what they read beside tokens; None: nothing
    """

    rows: Tensor
    prefixes: Plan | None = None
    pack: Pack | None = None
    extras: ExtraKeys | None = None


def arrange(batch: TensorDict, *, unit: str, budget: Budget, share: bool, ranks: Ranks) -> list[MicroBatch]:
    """The micro-batches of this rank.

    unit    "row" or "group": what a micro-batch does not split
    budget  of a micro-batch: rows, or rows times tokens of the longest row, as in `microbatches`
    share   whether prefixes may be shared

    All ranks have the same number of micro-batches; the last ones may be empty. The k-th micro-batch of all ranks
    shares prefixes if that is worthwhile on at least one rank. Groups stay on one rank if prefixes may be shared and
    there are at least as many groups as ranks.
    """
    rows, cost = torch.arange(len(batch)), tokens_needed(batch["action"])
    whole_groups = unit == "group" or (share and len(batch["group"].unique()) >= ranks.size)
    labels = batch["group"] if unit == "group" else rows
    together = batch["group"] if whole_groups else rows
    parts = rank_microbatches(cost, labels, together, budget.sizes(cost), ranks=ranks.size, budget=budget.maximum)
    return [_agreed(batch, of_ranks, share=share, rank=ranks.rank) for of_ranks in zip(*parts, strict=True)]


def arrange_packs(batch: TensorDict, *, unit: str, budget: Budget, ranks: Ranks) -> list[MicroBatch]:
    """The micro-batches of this rank, each of which is read as one pack.

    unit    "row" or "group": what a micro-batch does not split
    budget  of a pack: its rows or its tokens, as in `rank_packs`

    All ranks have the same number of micro-batches, of similar size; some are empty if there are few rows.
    """
    tokens = tokens_needed(batch["action"])
    labels = batch["group"] if unit == "group" else torch.arange(len(batch))
    parts = rank_packs(budget.sizes(tokens), labels, tokens, ranks=ranks.size, budget=budget.maximum)
    micro_batches = []
    for of_ranks in zip(*parts, strict=True):
        rows, extras = of_ranks[ranks.rank], _extras(batch, of_ranks, ranks.rank)
        micro_batches.append(MicroBatch(rows, pack=pack(batch["action"][rows]), extras=extras))
    return micro_batches


def _agreed(batch: TensorDict, of_ranks: Sequence[Tensor], *, share: bool, rank: int) -> MicroBatch:
    """The k-th micro-batch of `rank`, from the rows of the k-th one of each rank."""
    plans = [_plan(batch, rows) if share else None for rows in of_ranks]
    rows, prefixes = of_ranks[rank], plans[rank]
    if prefixes is None and any(plan is not None for plan in plans):
        prefixes = separate_plan(batch["tokens"][rows], batch["action"][rows])
    return MicroBatch(rows, prefixes, extras=_extras(batch, of_ranks, rank))


def _plan(batch: TensorDict, rows: Tensor) -> Plan | None:
    image = batch["image"][rows] if "image" in batch.keys() else None
    content = identities(batch["tokens"][rows], image)
    return plan(content, batch["action"][rows], batch["group"][rows])


def _extras(batch: TensorDict, of_ranks: Sequence[Tensor], rank: int) -> ExtraKeys | None:
    """The images of `rank`; None if no rank has any. Rows without action tokens are not read."""
    if "image" not in batch.keys():
        return None
    read = batch["image"] * batch["action"].any(-1, keepdim=True)
    if not any(read[rows].any() for rows in of_ranks):
        return None
    ids = read[of_ranks[rank]].unique()
    return ExtraKeys(images=tuple(ids[ids > 0].tolist()))


# --- outputs -------------------------------------------------------------------------------------------------------


def check_built_for(names: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise InputError if one of the outputs `names` is not among the `outputs` that a trainer was built for."""
    if unknown := [name for name in names if name not in outputs]:
        got, need = ", ".join(unknown), "among " + ", ".join(outputs)
        raise InputError("an output that this trainer was not built for", got=got, need=need)


def zero_score(batch: TensorDict, output: str, top_k: int) -> Tensor:
    """Zeros in the shape of the score `output` of all rows; `top_k` most likely tokens, unless `batch` has choices."""
    if output == ROUTES:
        return torch.zeros_like(batch["row"])
    shape = list(batch["action"].shape)
    if output.startswith("topk"):
        shape.append(batch[CHOICES].shape[-1] if CHOICES in batch.keys() else top_k)
    return batch["temperature"].new_zeros(shape, dtype=torch.int64 if output == "topk_tokens" else None)
