"""The pages for those who come from TRL and verl: every name of ours in their tables is there, and data are read so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import pyarrow as pa
import pytest

from purerl.config.schema import RunConfig
from purerl.config.structure import apply
from purerl.data.columns import detect_formats
from purerl.errors import ConfigError
from purerl.plugins import find, locate, names
from purerl.recipes.gsm8k import gsm8k

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("from_trl", "from_verl")
FORMS = {"text": pa.string(), "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))}


def _rows(page: str, head: str) -> Iterator[list[str]]:
    """The cells of all rows of the tables of `page` in whose head there is a column `head`."""
    inside = False
    for line in (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif head in cells:
            inside = True
        elif inside and set(line) != set("|-"):
            yield cells


def _names(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def _is_setting(key: str) -> bool:
    """Whether some run has a setting of this dotted key."""
    classes: list[Any] = [RunConfig]
    for name in key.split("."):
        fields = [attrs.fields_dict(attrs.resolve_types(cls))[name] for cls in classes if name in _fields(cls)]
        if not fields:
            return False
        group = fields[0].metadata.get("plugin")
        kinds = [find(group, kind).Config for kind in names(group)] if group else []
        classes = kinds + [one for f in fields for one in (f.type, *get_args(f.type)) if attrs.has(one)]
    return True


def _fields(cls: type) -> dict[str, Any]:
    return attrs.fields_dict(cls)


def _wrong(cell: str) -> list[str]:
    """What in `cell`, of a column of ours, is no setting, no setting with that value, and no function."""
    settings = [name for name in _names(cell) if "=" in name]
    try:
        apply(gsm8k("m", "d"), settings)
    except ConfigError as error:
        return [str(error)]
    others = [name for name in _names(cell) if "=" not in name]
    functions = [name for name in others if name.startswith("purerl.")]
    assert all(callable(locate(name)) for name in functions)
    return [name for name in others if name not in functions and not _is_setting(name)]


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_ours_is_there(page: str) -> None:
    rows = list(_rows(page, "purerl"))
    assert len(rows) > 40
    assert [cells for cells in rows if len(cells) != 3 or not _names(cells[0]) or not _names(cells[1])] == []
    assert [wrong for cells in rows for wrong in _wrong(cells[1])] == []


@pytest.mark.parametrize(
    "name", ["rollout.sample", "algorithm.kind=gropo", "rollout.max_resample_rounds=x", "algorithm.epsilon"]
)
def test_a_name_that_is_not_there_is_found(name: str) -> None:
    assert _wrong(f"`{name}`")


@pytest.mark.parametrize("page", PAGES)
def test_data_are_read_as_the_page_says(page: str) -> None:
    rows = list(_rows(page, "learned from as"))
    assert len(rows) >= 2
    for _, columns, forms, purpose in rows:
        for form in forms.split(", "):
            schema = pa.schema([(name, FORMS[form]) for name in _names(columns)])
            assert purpose in [match.example_type for match in detect_formats(schema)], columns
