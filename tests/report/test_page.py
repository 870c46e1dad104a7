"""The report is one file that loads no resources, runs only its own script, and keeps the size limit."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.monitoring.metric_meanings import meanings
from purerl.report.page import render_page, write_report
from tests.loop.small import fake
from tests.report.sample_runs import make_run

ASSETS = [Path(str(path)) for path in files("purerl.report").joinpath("assets").iterdir()]
HOSTILE = [
    "</script><script>window.hit = 1</script>",
    "<!-- <script> <img src=x onerror='window.hit = 1'>",
    "nul \x00, escape \x1b[2J, right to left \u202e, separators \u2028 \u2029",
    "emoji 👩‍👩‍👧, zero width \u200b, backslashes \\u003c \\",
    "$title ${title} $$",
]


def _embedded_data(page: str) -> dict:
    matches = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(matches) == 1
    return json.loads(matches[0])


def test_completions_are_embedded_unchanged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[("<b>prompt</b>", HOSTILE)])
    write_report([run], tmp_path / "page.html", megabytes=5)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    (group,) = _embedded_data(page)["runs"][0]["completions"]["groups"]
    assert group["prompt"] == "<b>prompt</b>"
    assert [row["completion"] for row in group["rows"]] == HOSTILE
    assert len(re.findall("<script", page)) == 2, "the page has one element for data and one for its script"
    assert "<b>prompt" not in page


def test_run_names_and_settings_are_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<img src=x>&$data", settings={"model": "</script><script>"})
    write_report([run], tmp_path / "page.html", megabytes=5)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>&lt;img src=x&gt;&amp;$data · purerl report</title>" in page
    assert _embedded_data(page)["runs"][0]["config"]["model"] == "</script><script>"


def test_run_name_may_be_invalid_unicode(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run").rename(tmp_path / "caf\udce9")
    shutil.rmtree(run / "rollouts")  # pyarrow cannot read files below such a path
    write_report([run], tmp_path / "page.html", megabytes=5)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert _embedded_data(page)["runs"][0]["name"] == "caf\udce9"


def test_content_security_policy_allows_only_the_script_and_style_of_the_page() -> None:
    page = render_page([])
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page).group(1)
    assert policy.startswith("default-src 'none'; ")
    for name, pattern in (
        ("script-src", '<script type="module">(.*?)</script>'),
        ("style-src", "<style>(.*?)</style>"),
    ):
        digest = hashlib.sha256(re.search(pattern, page, re.DOTALL).group(1).encode()).digest()
        assert f"{name} 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "unsafe" not in policy


def test_page_has_no_urls_and_never_parses_html() -> None:
    page = re.sub('"http://www.w3.org/2000/svg"', "", render_page([]))
    assert re.findall(r"https?://|//\w+\.\w+/|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(", page) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|DOMParser", page) == []


@pytest.mark.parametrize(
    "path", [path for path in ASSETS if path.suffix in (".js", ".css", ".html")], ids=lambda path: path.name
)
def test_asset_is_short_and_part_of_the_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert max(map(len, text.splitlines())) <= 120
    assert text.strip().splitlines()[1] in render_page([])


def test_page_fills_but_never_exceeds_the_size_limit(tmp_path: Path) -> None:
    groups = [("p", ["a long answer " * 5] * 4)] * 12
    runs = [make_run(tmp_path / name, steps=10, groups=groups) for name in ("first", "second")]
    for megabytes in (0.2, 0.4):
        report = write_report(runs, tmp_path / "page.html", megabytes=megabytes)
        assert report.size == (tmp_path / "page.html").stat().st_size
        assert 0.8 * megabytes * 1e6 < report.size <= megabytes * 1e6
    embedded_runs = _embedded_data(report.path.read_text())["runs"]
    assert report.num_completions == sum(run["completions"]["num_rows"] for run in embedded_runs)


def test_size_limit_smaller_than_the_curves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_report([make_run(tmp_path / "run")], tmp_path / "page.html", megabytes=0.01)
    assert str(caught.value).splitlines() == [
        "megabytes",
        "  got:  0.01",
        "  need: at least 0.1, the size of the curves and settings alone",
        "  do:   set a larger size, or give fewer runs",
    ]
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["nowhere/page.html", "run"])
def test_output_in_a_missing_directory_is_refused_before_runs_are_read(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "rollouts" / "000001.parquet").write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        write_report([run], tmp_path / name, megabytes=5)
    assert str(caught.value).splitlines() == [
        "output",
        f"  got:  {str(tmp_path / name)!r}",
        "  need: a file in an existing directory",
        "  do:   create the directory, or choose another file",
    ]


def test_unwritable_output_is_refused_before_runs_are_read(tmp_path: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    with pytest.raises(ConfigError, match=r"got:  .*No such file.*\n  need: a writable file"):
        write_report([tmp_path / "no run"], Path("/proc/page.html"), megabytes=5)


@pytest.mark.parametrize("megabytes", [math.nan, math.inf, 1e308])
def test_size_limit_that_is_not_finite_is_refused_before_runs_are_read(tmp_path: Path, megabytes: float) -> None:
    with pytest.raises(ConfigError, match="megabytes\n  got:  .*\n  need: a finite number"):
        write_report([tmp_path / "no run"], tmp_path / "page.html", megabytes=megabytes)


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/000001.parquet", "notes.txt", "link"])
def test_file_of_a_run_is_not_replaced(tmp_path: Path, name: str) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    (run / "link").symlink_to(run / "metrics.jsonl")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError) as caught:
        write_report([other], run / name, megabytes=5)
    assert str(caught.value).splitlines() == [
        "output",
        f"  got:  {str(run / name)!r}",
        "  need: a file with the suffix .html, or a file outside of run directories",
        "  do:   choose another file",
    ]
    assert (run / "metrics.jsonl").read_bytes() == before


def test_page_in_a_run_directory_can_be_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for _ in range(2):
        assert write_report([run], run / "page.html", megabytes=5).size == (run / "page.html").stat().st_size


def test_failure_keeps_the_existing_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = make_run(tmp_path / "run")
    (tmp_path / "page.html").write_text("existing page")
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_report([run], tmp_path / "page.html", megabytes=5)
    assert (tmp_path / "page.html").read_text() == "existing page"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


def test_import_does_not_load_torch_or_pyarrow() -> None:
    code = "import sys, purerl.report.page; print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False False\n"


def test_meanings_include_general_entries_and_those_of_the_policy() -> None:
    names = [
        "rollout/length_max",
        "reward/style",
        "critic/loss/value",
        "critic/grad_norm",
        "reward_model/grad_norm",
        "eval/maj@8",
        "eval/math/accuracy",
        "eval/math/pass@8",
        "mismatch/logp_abs_diff",
        "environment/turns",
        "rollout/staleness_max",
        "my/own",
    ]
    entries = meanings(names)
    assert [name for name in names if name not in entries] == ["my/own"]
    assert entries["rollout/length_max"][0] == "tokens"
    assert entries["critic/grad_norm"] == meanings(["policy/grad_norm"])["policy/grad_norm"]
    assert entries["reward_model/grad_norm"] == entries["critic/grad_norm"]
    assert entries["eval/math/accuracy"] == meanings(["eval/accuracy"])["eval/accuracy"]
    assert entries["eval/math/pass@8"] == meanings(["eval/pass@<k>"])["eval/pass@<k>"]
    assert "|`old_logp` - `rollout_logp`|" in entries["mismatch/logp_abs_diff"][1]


def test_table_of_metrics_in_the_package_is_the_page_of_the_documentation() -> None:
    table = files("purerl.monitoring").joinpath("metrics.md")
    assert table.read_bytes() == (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_bytes()


def test_report_of_a_trained_run_during_and_after_training(tmp_path: Path) -> None:
    directory, page = tmp_path / "run", tmp_path / "page.html"

    def progress() -> tuple[bool, int, int]:
        write_report([directory], page, megabytes=5)
        (run,) = _embedded_data(page.read_text(encoding="utf-8"))["runs"]
        return run["finished"], run["last_step"], run["completions"]["num_steps"]

    train(fake(max_steps=4, evaluate=None), directory=directory)
    assert progress() == (True, 4, 4)
    (run,) = _embedded_data(page.read_text(encoding="utf-8"))["runs"]
    row = run["completions"]["groups"][0]["rows"][0]
    assert re.sub("<eos>|<pad>", "", "".join(row["per_token"]["text"])) == row["completion"]
    # The state after a kill: no summary, and the last line of the metrics is incomplete.
    (directory / "summary.json").unlink()
    lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:30])
    assert progress() == (False, 3, 4)
