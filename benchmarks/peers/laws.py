"""What a function of a batch should be blind to, tried on a small batch: each law returns whether it holds.

A side takes a batch and returns a tensor [rows, time].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.peers.batch import FLOATS, Side, draw

__all__ = ["broken"]

TIME = 32


def padding(side: Side) -> bool:
    """Eight more columns that nobody acts in change nothing."""
    short = draw(12, TIME, size=4)
    wide = short.map(lambda x: pad(x, (0, 8)), *FLOATS, "action")
    return _same(side(wide)[..., :TIME], side(short), short.action)


def holes(side: Side) -> bool:
    """Without the tokens between action tokens a row is the same row."""
    full = draw(12, TIME, size=4)
    order = full.action.int().argsort(dim=-1, descending=True, stable=True)
    found = side(full.map(lambda x: x.gather(-1, order), *FLOATS, "action"))
    return _same(found, side(full).gather(-1, order), full.action.gather(-1, order))


def tool_reward(side: Side) -> bool:
    """A reward for a tool call counts as one on the action token before it."""
    batch = draw(12, TIME, size=4)
    extra = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
    on, off = (batch.map(lambda x, at=at: x.index_add(1, torch.tensor([at, at]), extra), "reward") for at in (11, 12))
    return not batch.action[:, 12].any() and _same(side(off), side(on), batch.action)


def nan(side: Side) -> bool:
    """NaN where nobody acts is not read; rewards count everywhere."""
    batch = draw(12, TIME, size=4)
    poisoned = [name for name in FLOATS if name != "reward"]
    hurt = batch.map(lambda x: torch.where(batch.action, x, torch.nan), *poisoned)
    found = side(hurt)
    return bool(found.isfinite().all()) and _same(found, side(batch), batch.action)


def labels(side: Side) -> bool:
    """A group's label is only a name."""
    batch = draw(12, TIME, size=4)
    return _same(side(batch.map(lambda group: group * -(2**40) - 7, "group")), side(batch), batch.action)


def irregular(side: Side) -> bool:
    """Groups of 7, 4 and 1 rows; the one alone has nobody to be compared with, and gets 0."""
    batch = draw(12, TIME, size=4)
    mixed = batch.map(lambda _: torch.tensor([0] * 7 + [1] * 4 + [2]), "group")
    parts = [
        side(mixed.map(lambda x, rows=rows: x[rows], *FLOATS, "action", "group"))
        for rows in (slice(0, 7), slice(7, 11))
    ]
    found = side(mixed)
    return _same(found[:11], torch.cat(parts), batch.action[:11]) and not found[11].any()


def inputs(side: Side) -> bool:
    """No input is written to."""
    batch = draw(12, TIME, size=4)
    before = {name: getattr(batch, name).clone() for name in (*FLOATS, "action", "group")}
    side(batch)
    return all(torch.equal(getattr(batch, name), x) for name, x in before.items())


def sync(side: Side) -> bool:
    """It runs on tensors without values: so the host never waits for one."""
    batch = draw(12, TIME, size=4)
    shapes = batch.map(lambda x: x.to("meta"))
    vars(shapes)["uid"] = batch.uid
    side(shapes)
    return True


def _same(found: Tensor, expected: Tensor, action: Tensor) -> bool:
    """Equal at action tokens."""
    return torch.allclose(found[action], expected[action], atol=1e-5)


def broken(side: Side, *, grouped: bool) -> list[str]:
    """The names of the laws that do not hold."""
    laws = [padding, holes, tool_reward, nan, inputs, sync] + [labels, irregular] * grouped
    return [law.__name__ for law in laws if not _holds(law, side)]


def _holds(law: Callable[[Side], bool], side: Side) -> bool:
    try:
        return law(side)
    except Exception:  # noqa: BLE001  A function may fail in any way on what it cannot take.
        return False
