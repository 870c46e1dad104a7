"""The pages "From TRL" and "From verl": they show every row of the tables."""

from __future__ import annotations

import pytest

from docs.generate import migration
from purerl.config.aliases import LIBRARIES, read_library
from purerl.config.presets import presets

PAGES = dict(migration.pages())


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_page_shows_every_row(name: str) -> None:
    library, lines = read_library(name), PAGES[f"from_{name}"].splitlines()
    for row in library.rows:
        shown = [line for line in lines if all(f"`{text}`" in line for text in (*row.names, *row.settings))]
        shown = [line for line in shown if row.note in line and all(f"`{text}`" in line for text in row.exact)]
        differences = presets()[row.exact[0].partition("=")[2]].differences if row.exact else ()
        assert any(all(text in line for text in differences) for line in shown), row
    for dataset in library.datasets:
        assert any(line.startswith(f"| {dataset.type} | `{dataset.columns[0]}`") for line in lines), dataset


def test_a_page_states_version_and_prefixes() -> None:
    assert "settings of TRL 1.16 with" in PAGES["from_trl"]
    assert "`actor` stands for `actor_rollout_ref.actor`, and" in PAGES["from_verl"]
    assert [name for name, text in PAGES.items() if "{version}" in text or "<!--" in text] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("<!-- rows: DPO -->", ""), ("<!-- datasets -->", "<!-- datasets -->\n\n<!-- datasets -->"), ("DPO -->", "X -->")],
)
def test_a_template_that_does_not_show_each_section_once_is_refused(old: str, new: str) -> None:
    template = (migration._TEMPLATES / "from_trl.md.template").read_text(encoding="utf-8")
    assert old in template
    with pytest.raises(
        ValueError,
        match="the template for TRL must show each of these once: datasets, fields: DPOConfig, .*presets, .*rows: DPO",
    ):
        migration.page(template.replace(old, new), read_library("trl"))
