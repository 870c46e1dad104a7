"""Each family on two ranks with each mesh, compared with two ranks that each have the whole model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from purerl.ranks import current_ranks
from tests.families.tables import (
    MESHES,
    config_with,
    default_of,
    difference,
    is_refused,
    misleading,
    model_of,
    outcome_of,
    remedied,
)
from tests.families.tiny import families
from tests.ranks import run_cases


def cases(directory: Path, part: int, parts: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every `parts`-th family, from the one at `part`, with each mesh."""
    for family in families()[part::parts]:
        for mesh in MESHES:
            yield f"{family}, {mesh}", partial(check, directory, family, mesh)


def check(directory: Path, family: str, mesh: str) -> None:
    """Raise AssertionError if the outcome differs, or the refusal is misleading or not in refused.toml."""
    current_ranks().on_first(lambda: model_of(directory, family))
    model = model_of(directory, family)
    config, default = config_with(mesh, model), default_of(model)
    outcome = outcome_of(model, config)
    assert (outcome.refusal is not None) is is_refused(family, mesh), outcome.refusal or f"{family} is trained"
    if outcome.refusal is None:
        assert (found := difference(family, mesh, outcome, default)) is None, found
        return
    assert (problem := misleading(outcome.refusal, model, config)) is None, problem
    other = remedied(outcome.refusal, config)
    if other is not None and default.refusal is None:
        assert (refusal := outcome_of(model, other).refusal) is None, f"the remedy is refused: {refusal}"


if __name__ == "__main__":
    run_cases(lambda directory: cases(directory, *map(int, sys.argv[1:])))
