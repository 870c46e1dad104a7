"""Laws of functions that return a tensor [rows, time].

Each law tests a function on a small batch, and returns whether it holds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.peers.batch import FLOATS, Function, draw

__all__ = ["broken_laws"]

TIME = 32


def padding(function: Function) -> bool:
    """Eight more columns without action tokens change nothing."""
    short = draw(12, TIME, size=4)
    wide = short.map(lambda x: pad(x, (0, 8)), *FLOATS, "action")
    return _same(function(wide)[..., :TIME], function(short), short.action)


def holes(function: Function) -> bool:
    """Removing the tokens between action tokens changes nothing."""
    full = draw(12, TIME, size=4)
    order = full.action.int().argsort(dim=-1, descending=True, stable=True)
    result = function(full.map(lambda x: x.gather(-1, order), *FLOATS, "action"))
    return _same(result, function(full).gather(-1, order), full.action.gather(-1, order))


def tool_reward(function: Function) -> bool:
    """A reward on a tool's token counts as a reward on the action token before it."""
    batch = draw(12, TIME, size=4)
    extra = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
    on, off = (batch.map(lambda x, at=at: x.index_add(1, torch.tensor([at, at]), extra), "reward") for at in (11, 12))
    return not batch.action[:, 12].any() and _same(function(off), function(on), batch.action)


def nan(function: Function) -> bool:
    """NaN outside of action tokens has no effect, except in rewards, which count everywhere."""
    batch = draw(12, TIME, size=4)
    poisoned = [name for name in FLOATS if name != "reward"]
    result = function(batch.map(lambda x: torch.where(batch.action, x, torch.nan), *poisoned))
    return bool(result.isfinite().all()) and _same(result, function(batch), batch.action)


def labels(function: Function) -> bool:
    """Labels of groups are only names."""
    batch = draw(12, TIME, size=4)
    return _same(function(batch.map(lambda group: group * -(2**40) - 7, "group")), function(batch), batch.action)


def irregular(function: Function) -> bool:
    """Groups of 7, 4 and 1 rows are independent, and the group with one row gets 0."""
    batch = draw(12, TIME, size=4)
    mixed = batch.map(lambda _: torch.tensor([0] * 7 + [1] * 4 + [2]), "group")
    parts = [
        function(mixed.map(lambda x, rows=rows: x[rows], *FLOATS, "action", "group"))
        for rows in (slice(0, 7), slice(7, 11))
    ]
    result = function(mixed)
    return _same(result[:11], torch.cat(parts), batch.action[:11]) and not result[11].any()


def inputs(function: Function) -> bool:
    """No input is modified."""
    batch = draw(12, TIME, size=4)
    before = {name: getattr(batch, name).clone() for name in (*FLOATS, "action", "group")}
    function(batch)
    return all(torch.equal(getattr(batch, name), x) for name, x in before.items())


def sync(function: Function) -> bool:
    """The function runs on tensors without values, so the host never waits for the device."""
    batch = draw(12, TIME, size=4)
    shapes = batch.map(lambda x: x.to("meta"))
    vars(shapes)["uid"] = batch.uid
    function(shapes)
    return True


def _same(result: Tensor, expected: Tensor, action: Tensor) -> bool:
    """Equal at action tokens."""
    return torch.allclose(result[action], expected[action], atol=1e-5)


def broken_laws(function: Function, *, grouped: bool) -> list[str]:
    """The names of the laws that do not hold."""
    laws = [padding, holes, tool_reward, nan, inputs, sync] + [labels, irregular] * grouped
    return [law.__name__ for law in laws if not _holds(law, function)]


def _holds(law: Callable[[Function], bool], function: Function) -> bool:
    try:
        return law(function)
    except Exception:  # noqa: BLE001 - a function may raise anything if it does not support an input
        return False
