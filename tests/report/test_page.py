"""The page is one file that loads nothing, runs nothing but its own script, and is no larger than asked."""

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
from purerl.report.meanings import meanings
from purerl.report.page import page, report
from tests.loop.small import fake
from tests.report.made import hand_made

ASSETS = [Path(str(path)) for path in files("purerl.report").joinpath("assets").iterdir()]
HOSTILE = [
    "</script><script>window.hit = 1</script>",
    "<!-- <script> <img src=x onerror='window.hit = 1'>",
    "nul \x00, escape \x1b[2J, right to left \u202e, separators \u2028 \u2029",
    "emoji 👩‍👩‍👧, zero width \u200b, backslashes \\u003c \\",
    "$title ${title} $$",
]


def _data(text: str) -> dict:
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def test_whatever_a_completion_says_comes_back_as_data(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=1, texts=[("<b>prompt</b>", HOSTILE)])
    report([run], tmp_path / "page.html", megabytes=5)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (group,) = _data(text)["runs"][0]["completions"]["groups"]
    assert group["prompt"] == "<b>prompt</b>"
    assert [row["completion"] for row in group["rows"]] == HOSTILE
    assert len(re.findall("<script", text)) == 2, "the data's and the page's own"
    assert "<b>prompt" not in text


def test_a_hostile_name_of_a_run_or_a_setting_is_text(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "<img src=x>&$data", settings={"model": "</script><script>"})
    report([run], tmp_path / "page.html", megabytes=5)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>&lt;img src=x&gt;&amp;$data · purerl report</title>" in text
    assert _data(text)["runs"][0]["config"]["model"] == "</script><script>"


def test_a_name_that_is_no_unicode_does_not_stop_it(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run").rename(tmp_path / "caf\udce9")
    shutil.rmtree(run / "rollouts")  # no Parquet file can be written below such a name
    report([run], tmp_path / "page.html", megabytes=5)
    assert _data((tmp_path / "page.html").read_text(encoding="utf-8"))["runs"][0]["name"] == "caf\udce9"


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    text = page([])
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text).group(1)
    assert policy.startswith("default-src 'none'; ")
    for name, pattern in (
        ("script-src", '<script type="module">(.*?)</script>'),
        ("style-src", "<style>(.*?)</style>"),
    ):
        digest = hashlib.sha256(re.search(pattern, text, re.DOTALL).group(1).encode()).digest()
        assert f"{name} 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "unsafe" not in policy


def test_the_page_names_no_address_and_never_reads_text_as_html() -> None:
    text = re.sub('"http://www.w3.org/2000/svg"', "", page([]))
    assert re.findall(r"https?://|//\w+\.\w+/|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|DOMParser", text) == []


@pytest.mark.parametrize(
    "path", [path for path in ASSETS if path.suffix in (".js", ".css", ".html")], ids=lambda p: p.name
)
def test_an_asset_is_a_room_and_is_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert max(map(len, text.splitlines())) <= 120
    assert text.strip().splitlines()[1] in page([])


def test_the_page_is_no_larger_than_asked_and_uses_most_of_it(tmp_path: Path) -> None:
    runs = [
        hand_made(tmp_path / name, steps=10, texts=[("p", ["a long answer " * 9] * 4)] * 6) for name in ("one", "two")
    ]
    for megabytes in (0.2, 0.4):
        written = report(runs, tmp_path / "page.html", megabytes=megabytes)
        assert written.size == (tmp_path / "page.html").stat().st_size
        assert 0.8 * megabytes * 1e6 < written.size <= megabytes * 1e6
    assert written.completions == sum(run["completions"]["rows"] for run in _data(written.path.read_text())["runs"])


def test_a_size_that_the_curves_alone_exceed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        report([hand_made(tmp_path / "run")], tmp_path / "page.html", megabytes=0.01)
    assert str(caught.value).splitlines() == [
        "the size of the report",
        "  got:  0.01 MB",
        "  need: 0.1 MB for the curves and settings alone",
        "  do:   give fewer runs, or allow more",
    ]
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["nowhere/page.html", "run"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    run = hand_made(tmp_path / "run")
    (run / "rollouts" / "000001.parquet").write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        report([run], tmp_path / name, megabytes=5)
    assert str(caught.value).splitlines() == [
        "the report's file",
        f"  got:  {str(tmp_path / name)!r}",
        "  need: a file in a folder that exists",
    ]


def test_a_folder_that_takes_no_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    with pytest.raises(ConfigError, match=r"got:  .*No such file.*\n  need: a file that can be written"):
        report([tmp_path / "no run"], Path("/proc/page.html"), megabytes=5)


@pytest.mark.parametrize("megabytes", [math.nan, math.inf, 1e308])
def test_a_size_that_is_no_number_is_refused_before_anything_is_read(tmp_path: Path, megabytes: float) -> None:
    with pytest.raises(ConfigError, match="the size of the report\n  got:  .* MB\n  need: a number of megabytes"):
        report([tmp_path / "no run"], tmp_path / "page.html", megabytes=megabytes)


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/000001.parquet", "notes.txt", "link"])
def test_a_file_of_a_run_is_not_replaced(tmp_path: Path, name: str) -> None:
    run, other = hand_made(tmp_path / "run"), hand_made(tmp_path / "other")
    (run / "link").symlink_to(run / "metrics.jsonl")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError) as caught:
        report([other], run / name, megabytes=5)
    assert str(caught.value).splitlines() == [
        "the report's file",
        f"  got:  {str(run / name)!r}",
        "  need: a file outside of runs, or an .html file",
        "  do:   name another file",
    ]
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_page_beside_its_run_is_written_again(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run")
    for _ in range(2):
        assert report([run], run / "page.html", megabytes=5).size == (run / "page.html").stat().st_size


def test_what_fails_leaves_the_page_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    run = hand_made(tmp_path / "run")
    (tmp_path / "page.html").write_text("of before")
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        report([run], tmp_path / "page.html", megabytes=5)
    assert (tmp_path / "page.html").read_text() == "of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


def test_it_needs_no_torch() -> None:
    code = "import sys, purerl.report.page; print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_the_table_of_metrics_explains_kinds_and_the_critics_too() -> None:
    names = [
        "rollout/length_max",
        "reward/style",
        "critic/loss/value",
        "critic/grad_norm",
        "mismatch/logp_abs_diff",
        "my/own",
    ]
    found = meanings(names)
    assert [name for name in names if name not in found] == ["my/own"]
    assert found["rollout/length_max"][0] == "tokens"
    assert found["critic/grad_norm"] == meanings(["policy/grad_norm"])["policy/grad_norm"]
    assert "|`old_logp` - `rollout_logp`|" in found["mismatch/logp_abs_diff"][1]


def test_a_real_run_is_reported_while_it_goes_on_and_after(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(fake(max_steps=4, evaluate=None), directory=directory)
    written = report([directory], tmp_path / "page.html", megabytes=5)
    (run,) = _data(written.path.read_text(encoding="utf-8"))["runs"]
    assert (run["finished"], run["done"], run["completions"]["steps"]) == (True, 4, 4)
    row = run["completions"]["groups"][0]["rows"][0]
    assert re.sub("<eos>|<pad>", "", "".join(row["at"]["text"])) == row["completion"]
    # As a kill would leave it: not finished, and metrics a line behind the rollouts.
    (directory / "summary.json").unlink()
    lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:30])
    (run,) = _data(report([directory], tmp_path / "page.html", megabytes=5).path.read_text(encoding="utf-8"))["runs"]
    assert (run["finished"], run["done"], run["completions"]["steps"]) == (False, 3, 4)
