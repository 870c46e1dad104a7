"""The report in a real browser: its content and its controls. Skipped if Chromium or its driver is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purerl.report.page import write_report
from purerl.store.code import record_code
from tests.report.chromium import Page, marks
from tests.report.sample_runs import make_metrics, make_run
from tests.report.test_page import HOSTILE

pytestmark = [pytest.mark.slow, *marks]

LONG = "First, think.\n\tThen 🙂 answer. " * 30


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs with arithmetic, hostile and long completions, and a metric that is NaN at one step."""
    folder = tmp_path_factory.mktemp("runs")
    groups = [("1+1=", ("2", "3", "4")), ("say", HOSTILE), ("think", (LONG, "no"))]

    def metrics_with_nan(step: int) -> dict[str, float]:
        return make_metrics(step) | {"policy/approx_kl": float("nan") if step == 2 else 0.1 * step}

    first = make_run(folder / "first", groups=groups)
    second = make_run(folder / "second", groups=groups[:1], algorithm="dapo", metrics=metrics_with_nan)
    return write_report([first, second], folder / "page.html", megabytes=5).path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Page]:
    browser.get_log("performance")  # discards the requests of earlier pages
    browser.get(file.as_uri())
    page = Page(browser)
    yield page
    assert set(page.requests()) <= {file.as_uri(), "data:,"}
    assert browser.get_log("browser") == []
    assert page.evaluate("window.hit") is None


def _drawn_runs(page: Page, metric: str) -> list[str]:
    """The indices of the runs in the chart of `metric`."""
    curves = page.find_all(f'[data-metric="{metric}"] g[data-run]')
    return [curve.get_attribute("data-run") for curve in curves]


def test_page_loads_no_resources_and_logs_no_errors(page: Page, file: Path) -> None:
    assert file.as_uri() in page.requests()
    assert page.driver.title == "first, second · purerl report"
    assert page.find_text("#runs .plain:first-of-type tbody th bdi")[:2] == ["first", "second"]


def test_legend_hides_and_shows_a_run(page: Page) -> None:
    assert _drawn_runs(page, "reward/mean") == ["0", "1"]
    page.click("#legend .chip")
    assert _drawn_runs(page, "reward/mean") == ["1"]
    assert set(page.find_text("#rows td:nth-child(3)")) == {"1+1="}, "completions of the hidden run are visible"
    page.click("#legend .chip")
    assert _drawn_runs(page, "reward/mean") == ["0", "1"]


def test_curve_skips_nan_and_follows_the_values(page: Page) -> None:
    assert len(page.find_all('[data-metric="policy/approx_kl"] g[data-run] circle')) == 3
    circles = page.find_all('[data-metric="reward/mean"] [data-run="0"] circle')
    heights = [float(circle.get_attribute("cy")) for circle in circles]
    assert len(heights) == 4
    assert heights == sorted(heights, reverse=True), "the reward increases"


def test_horizontal_axis_log_scale_and_smoothing(page: Page) -> None:
    ticks = '[data-metric="reward/mean"] .axes text[text-anchor="middle"]'
    assert page.find_text(ticks)[-1].isdigit()
    page.click('input[name="x"][value="seconds"]')
    assert page.find_text(ticks)[-1].endswith(" s")
    page.click("#log")
    page.set_value("#smoothing", 0.5)
    page.click("#log")
    page.click('input[name="x"][value="step"]')
    page.hover(page.find('[data-metric="reward/mean"] .plot'))
    smoothed = "0.1667 (0.2)"  # (0.2 + 0.1 / 2) / (1 + 1 / 2), and the value without smoothing
    assert page.find_text("#tooltip dd") == [smoothed, smoothed]


def test_hovering_a_curve_shows_its_values_and_a_cursor_in_all_charts(page: Page) -> None:
    page.hover(page.find('[data-metric="reward/mean"] .plot'))
    assert page.find("#tooltip").text.startswith("reward/mean step 2")
    assert page.find_text("#tooltip dd") == ["0.2", "0.2"]
    assert len(page.find_all('[data-metric="policy/entropy"] .cursor circle')) == 2


def test_hovering_a_metric_name_shows_its_meaning(page: Page) -> None:
    page.hover(page.find('[data-metric="policy/entropy"] figcaption'))
    assert "nats" in page.find("#tooltip").text
    assert "Mean entropy of the next-token distribution" in page.find("#tooltip").text


def test_phases_have_different_colors(browser: Any, tmp_path: Path) -> None:
    phases = ("generate", "reward", "score", "advantage", "update", "sync", "evaluate", "store")
    seconds = {f"time/{phase}": 0.1 for phase in phases} | {"time/step": 1.0, "time/cpu": 3.0}
    run = make_run(tmp_path / "run", metrics=lambda step: {"reward/mean": step, **seconds})
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    assert page.find_text("#phases .key span") == [*phases, "other"]
    assert len({_background_color(page, segment) for segment in page.find_all("#phases .phase")}) == 9


def test_run_without_rewards_shows_its_loss(browser: Any, tmp_path: Path) -> None:
    def preference_metrics(step: int) -> dict[str, float]:
        return {"policy/loss/preference": 1 / step, "policy/accuracy": step / 4, "policy/margin": step}

    run = make_run(tmp_path / "run", metrics=preference_metrics, algorithm="dpo")
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    metrics = ["policy/loss/preference", "policy/accuracy"]
    assert page.find_text("#runs > .scroll-x thead th")[3:-3] == ["eval/accuracy", *metrics]
    assert page.find_text("#runs tbody .first-to-last")[1:] == ["1 → 0.25", "0.25 → 1"]
    assert page.find_text("#curves > .charts figcaption") == [*metrics, "policy/margin", "time by phase"]


def test_warnings_of_a_run_are_shown_in_a_box(browser: Any, tmp_path: Path) -> None:
    def metrics(step: int) -> dict[str, float]:
        return make_metrics(step) | {"policy/learning_rate": float(step > 6), "reward/valid_fraction": 0.0}

    run = make_run(tmp_path / "run", steps=20, metrics=metrics)
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    present, ended = page.find_text(".warnings li")
    assert present.splitlines()[0].strip() == "no_reward since step 5"
    assert present.splitlines()[1:] == [
        "no completion of the last 5 steps has a reward, so nothing was trained.",
        "Likely cause: every reward function returned None or failed.",
        "Try: check the reward functions and the columns that they read; failures.jsonl has the failures.",
    ]
    assert ended.splitlines()[0].strip() == "zero_learning_rate steps 5 to 16"
    browser.get(write_report([make_run(tmp_path / "good")], tmp_path / "good.html", megabytes=5).path.as_uri())
    assert Page(browser).find_all(".warnings") == []


def test_steps_after_which_code_was_changed_are_listed_and_marked(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for digest, step in (("a", 0), ("b", 2)):
        record_code(run, {"reward.py": digest}, step)
    report = write_report([run, make_run(tmp_path / "other")], tmp_path / "page.html", megabytes=5)
    browser.get(report.path.as_uri())
    page = Page(browser)
    assert page.find_text('[aria-label="Changed code"] li') == ["after step 2 edited: reward.py"]
    [line] = page.find_all('[data-metric="reward/mean"] .code-change')
    second = page.find_all('[data-metric="reward/mean"] g[data-run="0"] circle')[1]  # of steps 1 to 4
    assert float(line.get_attribute("x1")) == pytest.approx(float(second.get_attribute("cx")))


def test_different_settings_and_constant_metrics_are_listed(page: Page) -> None:
    assert page.find_text(".folds > details:first-child > summary") == ["Settings that differ"]
    page.find(".folds > details:first-child > summary").click()
    assert page.find_text(".folds > details:first-child tbody tr") == ["algorithm.kind grpo dapo"]
    assert "policy/skipped = 0" in page.find_text(".constant")


def test_settings_that_differ_are_those_of_sections_that_all_runs_have(browser: Any, tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", settings={"seed": 1, "initial_run.lr": 0.1, "initial_run.data.files": "a"})
    second = make_run(tmp_path / "second", settings={"seed": 2, "initial_run.lr": 0.2, "critic.trainer.lr": 0.5})
    browser.get(write_report([first, second], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    sections = [section.get_attribute("id") for section in page.find_all("main > section")]
    assert sections == ["curves", "runs", "completions"]
    own, initial, *_ = page.find_all(".folds > details")
    for fold in (own, initial):
        fold.find_element("css selector", "summary").click()
    assert own.text.splitlines()[0] == "Settings that differ"
    assert own.text.splitlines()[2:] == ["seed 1 2", "Only in some of the runs: critic.trainer"]
    assert initial.text.splitlines()[0] == "Settings of initial_run that differ"
    assert initial.text.splitlines()[2:] == ["initial_run.lr 0.1 0.2", "Only in some of the runs: initial_run.data"]


def test_each_filter_selects_completions(page: Page) -> None:
    def count() -> str:
        return page.find("#count").text

    assert count() == "52 of 52 completions"
    page.set_value("#search", "EMOJI")
    assert count() == "4 of 52 completions"
    page.set_value("#search", "")
    page.set_value("#step", 2)
    assert count() == "13 of 52 completions"
    assert set(page.find_text("#rows td:nth-child(2)")) == {"2"}
    page.set_value('[data-filter="minReward"]', 0.5)
    assert count() == "4 of 52 completions"
    page.set_value('[data-filter="maxReward"]', 0.9)
    assert count() == "0 of 52 completions match the filters"
    page.set_value('[data-filter="maxReward"]', "")
    page.set_value('[data-filter="run"]', 1)
    assert count() == "1 of 52 completions"
    page.set_value('[data-filter="finish"]', "length")
    assert count() == "0 of 52 completions match the filters"


def test_completions_are_sorted(page: Page) -> None:
    page.set_value('[data-filter="sort"]', "longest")
    assert page.find("#rows td:nth-child(3)").text == "think"
    page.set_value('[data-filter="sort"]', "worst")
    assert page.find("#rows td:nth-child(5)").text == "0"


def test_row_without_a_reward_is_shown_last_and_has_no_number(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[("a=", ("1", "2", "3"))], unrewarded="2")
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page, rewards = Page(browser), "#rows td:nth-child(5)"
    page.set_value('[data-filter="sort"]', "best")
    assert page.find_text(rewards) == ["1", "0", "\N{EN DASH}"]
    page.set_value('[data-filter="sort"]', "worst")
    assert page.find_text(rewards) == ["0", "1", "\N{EN DASH}"]
    page.click("#rows tr:nth-child(3)")
    assert page.find_text("#detail h4") == ["Ground truth", "The 3 completions of this prompt, mean reward 0.5"]
    page.set_value('[data-filter="maxReward"]', 0.5)
    assert page.find_text(rewards) == ["0"]
    page.set_value('[data-filter="maxReward"]', "")
    page.set_value('[data-filter="minReward"]', -1)
    assert page.find_text(rewards) == ["0", "1"]


def _background_color(page: Page, element: Any) -> str:
    return page.evaluate("getComputedStyle(arguments[0]).backgroundColor", element)


def test_selected_completion_shows_colored_tokens_and_its_group(page: Page) -> None:
    page.set_value("#search", "1+1=")
    page.set_value('[data-filter="run"]', 0)
    page.click("#rows tr:nth-child(2)")
    tokens = page.find_all("#detail .transcript .token")
    assert [token.text for token in tokens][-1] == "<end>"
    assert page.find("#detail .context").text == "1+1="
    negative = _background_color(page, tokens[0])
    page.click("#rows tr:nth-child(1)")
    positive = _background_color(page, page.find("#detail .transcript .token"))
    assert "color(" in positive or "oklab" in positive
    assert positive != negative, "positive and negative advantages have the same color"
    assert page.find(".ground-truth").text == "the answer to 1+1="
    assert page.find_text("#detail h4") == [
        "Ground truth",
        "The 3 completions of this prompt, mean reward 0.3333",
        "The same prompt in second, mean reward 0.3333",
    ]
    page.click('input[value="logp"]')
    first, last = (_background_color(page, page.find_all("#detail .transcript .token")[k]) for k in (0, -1))
    assert first != last, "tokens with different log-probabilities have the same color"


def test_hovering_a_token_shows_its_values(page: Page) -> None:
    page.set_value("#search", "1+1=")
    page.hover(page.find("#detail .transcript .token"))
    tooltip = page.find("#tooltip").text.replace("\N{MINUS SIGN}", "-")
    for line in ("rollout log-prob.\n-0.1", "old log-prob.\n-0.09", "advantage\n0.5", "in loss\nyes"):
        assert line in tooltip


def test_hostile_completions_are_shown_as_text(page: Page) -> None:
    page.set_value("#search", "window.hit")
    assert page.find("#detail .transcript").text == "say</script><script>window.hit = 1</script><end>"
    page.set_value("#search", "right to left")
    shown = page.find("#detail .transcript").text
    assert "nul ␀, escape ␛[2J, right to left [U+202E], separators [U+2028] [U+2029]" in shown


def test_keyboard_shortcuts(page: Page) -> None:
    def selected() -> list[int]:
        return [k for k, row in enumerate(page.find_all("#rows tr")) if row.get_attribute("aria-selected") == "true"]

    assert selected() == [0]
    page.press("jjk")
    assert selected() == [1]
    page.press("]")
    assert page.find('output[for="step"]').text == "1"
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.evaluate("document.activeElement.blur()")
    page.press("\ue00c")
    assert selected() == []
    assert not page.find_all("#detail .transcript")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(page: Page, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colors = {
        name: page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
        for name in ("bg", "card", "ink", "muted", "run-0", "run-1", "run-2", "run-3", "run-4", "run-5")
    }
    for background in ("bg", "card"):
        assert _contrast(colors["ink"], colors[background]) > 12
        assert _contrast(colors["muted"], colors[background]) > 4.5
    assert all(_contrast(colors[f"run-{k}"], colors["card"]) > 3 for k in range(6))


def _contrast(color: str, background: str) -> float:
    """The contrast ratio of two colors, as defined by the Web Content Accessibility Guidelines."""
    light, dark = sorted((_luminance(color), _luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_small_screen_does_not_scroll_horizontally(page: Page) -> None:
    size = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.driver.refresh()
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert not page.find("#detail").is_displayed()
        page.click("#rows tr:nth-child(2)")
        assert page.find("#detail").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_run_without_rollouts_shows_a_message(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    shutil.rmtree(run / "rollouts")
    browser.get(write_report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    assert "There are no rollouts yet" in page.find("#completions").text
    assert page.find("h1").text == "run"
