"""Evaluations, unusual rewards and files that cannot be read, in the report in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.report.page import write_report
from tests.report.chromium import Page, marks
from tests.report.sample_runs import make_evaluation, make_run

pytestmark = [pytest.mark.slow, *marks]


def _facts(page: Page) -> dict[str, str]:
    return dict(zip(page.find_text("#detail .facts dt"), page.find_text("#detail .facts dd"), strict=True))


def test_evaluations_are_listed_with_their_answers_components_and_ground_truth(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    for step in (0, 2):
        make_evaluation(run, step, data_sets=("math", "<b>new</b>"))
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    assert page.find("#count").text == "20 of 20 completions"
    page.set_value('[data-filter="source"]', "training")
    assert page.find("#count").text == "4 of 20 completions"
    page.set_value('[data-filter="source"]', "evaluation: <b>new</b>")
    assert page.find("#count").text == "8 of 20 completions"
    page.set_value("#step", 3)
    page.set_value('[data-filter="sort"]', "worst")
    page.click("#rows tr:nth-child(1)")
    assert page.find("#detail header").text.startswith("run step 2 · evaluation <b>new</b> · problem 0 · attempt 1")
    assert _facts(page) == {
        "reward": "0",
        "correct": "incorrect",
        "answer": "1",
        "tokens": "7",
        "finish reason": "stop",
        "reward/exact": "0",
        "reward/short": "0.25",
    }
    assert page.find(".ground-truth").text == "0"
    assert page.find("#detail .transcript").text == "0+0=1"
    assert "2 of 2 steps and 2 of 2 evaluations of run" in page.find("#completions").text
    assert not browser.get_log("browser")


def test_files_that_cannot_be_read_are_named_on_the_page(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    for step, expected in ((1, "2 of 2 completions"), (2, None)):
        path = run / "rollouts" / f"{step:06d}.parquet"
        path.write_bytes(b"broken")
        browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
        page = Page(browser)
        assert page.find_text(".skipped")[step - 1].startswith(f"Left out: {str(path)!r} cannot be read")
        assert page.find_text("#count") == ([expected] if expected else [])


def test_row_whose_reward_is_not_a_number_is_shown_last(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[("a=", ("1", "2", "3"))])
    path = run / "rollouts" / "000001.parquet"
    table = parquet.read_table(path)
    rewards = table["reward"].to_pylist()
    rewards[0][-1] = float("nan")
    index = table.column_names.index("reward")
    parquet.write_table(table.set_column(index, "reward", pa.array(rewards, pa.list_(pa.float32()))), path)
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    for order in ("best", "worst"):
        page.set_value('[data-filter="sort"]', order)
        assert page.find_text("#rows td:nth-child(5)") == ["0", "0", "nan"]
    page.set_value('[data-filter="minReward"]', -1)
    assert page.find_text("#rows td:nth-child(5)") == ["0", "0"]
