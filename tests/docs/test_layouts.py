"""docs/explanation/layouts.md: every line of its table is what the plan of the layout says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.layouts import LAYOUTS, MODELS, Layout, row, table
from purerl.backends.megatron.mesh import MegatronMesh

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "layouts.md").read_text(encoding="utf-8")
_MARKS = {True: (), False: (pytest.mark.slow,)}  # the trainer hf is simulated, which takes seconds


def _name(layout: Layout) -> str:
    return f"{layout.model} {layout.mesh}"


@pytest.mark.parametrize(
    "layout",
    [pytest.param(each, marks=_MARKS[isinstance(each.mesh, MegatronMesh)], id=_name(each)) for each in LAYOUTS],
)
def test_a_line_is_that_of_the_plan(layout: Layout, tmp_path: Path) -> None:
    assert row(layout, tmp_path) in PAGE.splitlines()


def test_the_table_has_a_line_for_every_layout_and_no_other(tmp_path: Path) -> None:
    rows = table(tmp_path)
    head, line = next(rows), next(rows)
    [lines] = [part for part in PAGE.split("\n\n") if part.startswith(f"{head}\n{line}\n")]
    assert [line.split(" | ")[0] for line in lines.splitlines()[2:]] == [f"| {layout.model}" for layout in LAYOUTS]
    assert {layout.model for layout in LAYOUTS} == MODELS.keys()
