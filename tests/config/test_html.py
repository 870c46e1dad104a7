"""A configuration in a notebook."""

from __future__ import annotations

import re

from attrs import evolve

from purerl.recipes import resolve


def test_a_configuration_is_shown_as_its_changed_settings_and_folded_all_of_them() -> None:
    config = evolve(resolve("addition", ["trainer.lr=0.002"]), name="a & b".replace("&", "-"))
    html = config._repr_html_()
    changed, every = html.split("<details>")
    assert changed.startswith("<b>RunConfig</b> a - b<table>")
    assert "<tr><td><code>trainer.lr</code></td><td><code>0.002</code></td><td></td>" in changed
    assert "<code>placement.kind</code>" not in changed
    assert "<code>placement.kind</code>" in every
    count = len(re.findall("<tr><td>", every))
    assert f"<summary>all {count} settings, with defaults</summary>" in every
    assert count > len(re.findall("<tr><td>", changed)) > 5


def test_everything_is_escaped() -> None:
    config = evolve(resolve("addition", []), prepare_data="<script>:x&y")
    html = config._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;:x&amp;y" in html
