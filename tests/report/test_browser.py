"""The page in a real browser: what a reader sees and does. Skipped where there is no Chromium with its driver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purerl.report.page import report
from tests.report.made import hand_made, plain_metrics
from tests.report.test_page import HOSTILE

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (_CHROMIUM and _DRIVER), reason="needs chromium and chromium-driver"),
]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1200",
)  # fmt: skip

LONG = "First, think.\n\tThen 🙂 answer. " * 30


class Page:
    """A page that is open, and short ways to look at it and to use it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *arguments)

    def set(self, selector: str, value: object) -> None:
        """Give a field a value as a reader's hand would, events included."""
        script = (
            "arguments[0].value = arguments[1], ['input', 'change'].map(e => arguments[0].dispatchEvent(new Event(e)))"
        )
        self.run(script, self.one(selector), value)

    def click(self, selector: str) -> None:
        self.run("arguments[0].click()", self.one(selector))

    def press(self, keys: str) -> None:
        self.one("body").send_keys(keys)

    def point_at(self, element: Any) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    def requests(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _CHROMIUM
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(_DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: arithmetic, hostile texts and a long one, and a metric that is no number at times."""
    folder = tmp_path_factory.mktemp("runs")
    texts = [("1+1=", ("2", "3", "4")), ("say", HOSTILE), ("think", (LONG, "no"))]

    def broken(step: int) -> dict[str, float]:
        return plain_metrics(step) | {"policy/approx_kl": float("nan") if step == 2 else 0.1 * step}

    one = hand_made(folder / "one", texts=texts)
    other = hand_made(folder / "other", texts=texts[:1], algorithm="dapo", metrics=broken)
    return report([one, other], folder / "page.html", megabytes=5).path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Page]:
    browser.get_log("performance")  # what was asked for before
    browser.get(file.as_uri())
    page = Page(browser)
    yield page
    assert set(page.requests()) <= {file.as_uri(), "data:,"}
    assert browser.get_log("browser") == []
    assert page.run("window.hit") is None


def _drawn(page: Page, metric: str) -> list[str]:
    """The numbers of the runs that are drawn for `metric`."""
    groups = page.all(f'[data-metric="{metric}"] g[data-run]')
    return [group.get_attribute("data-run") for group in groups]


def test_it_loads_nothing_but_itself_and_complains_of_nothing(page: Page, file: Path) -> None:
    assert file.as_uri() in page.requests()
    assert page.driver.title == "one, other · purerl report"
    assert page.texts("#runs .plain:first-of-type tbody th bdi")[:2] == ["one", "other"]


def test_curves_of_all_runs_and_one_is_toggled(page: Page) -> None:
    assert _drawn(page, "reward/mean") == ["0", "1"]
    page.click("#legend .chip")
    assert _drawn(page, "reward/mean") == ["1"]
    assert {row.text for row in page.all("#rows td:nth-child(3)")} == {"1+1="}, "its completions are hidden too"
    page.click("#legend .chip")
    assert _drawn(page, "reward/mean") == ["0", "1"]


def test_a_curve_has_its_points_where_they_are_and_a_gap_where_there_is_no_number(page: Page) -> None:
    assert len(page.all('[data-metric="policy/approx_kl"] g[data-run] circle')) == 3
    places = [float(one.get_attribute("cy")) for one in page.all('[data-metric="reward/mean"] [data-run="0"] circle')]
    assert len(places) == 4
    assert places == sorted(places, reverse=True), "the reward grows"


def test_axis_scale_and_smoothing(page: Page) -> None:
    ticks = '[data-metric="reward/mean"] .axes text[text-anchor="middle"]'
    assert page.texts(ticks)[-1].isdigit()
    page.click('input[name="x"][value="seconds"]')
    assert page.texts(ticks)[-1].endswith(" s")
    page.click("#log")
    page.set("#smoothing", 0.5)
    page.click("#log")
    page.click('input[name="x"][value="step"]')
    page.point_at(page.one('[data-metric="reward/mean"] .plot'))
    assert page.texts("#tip dd") == ["0.1667 (0.2)", "0.1667 (0.2)"], "(0.2 + 0.1 / 2) / (1 + 1 / 2), and 0.2"


def test_pointing_at_a_curve_tells_its_values_and_marks_the_place_everywhere(page: Page) -> None:
    page.point_at(page.one('[data-metric="reward/mean"] .plot'))
    assert page.one("#tip").text.startswith("reward/mean step 2")
    assert page.texts("#tip dd") == ["0.2", "0.2"]
    assert len(page.all('[data-metric="policy/entropy"] .cursor circle')) == 2


def test_a_metric_is_explained_where_its_name_stands(page: Page) -> None:
    page.point_at(page.one('[data-metric="policy/entropy"] figcaption'))
    assert "A fall toward 0 ends exploration" in page.one("#tip").text


def test_every_phase_has_a_color_of_its_own(browser: Any, tmp_path: Path) -> None:
    phases = ("generate", "reward", "score", "advantage", "update", "sync", "evaluate", "store")
    seconds = {f"time/{phase}": 0.1 for phase in phases} | {"time/step": 1.0, "time/cpu": 3.0}
    run = hand_made(tmp_path / "run", metrics=lambda step: {"reward/mean": step, **seconds})
    browser.get(report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    assert page.texts("#phases .key span") == [*phases, "other"]
    assert len({_color(page, cell) for cell in page.all("#phases .phase")}) == 9


def test_a_run_without_rewards_shows_what_it_learns(browser: Any, tmp_path: Path) -> None:
    def pairs(step: int) -> dict[str, float]:
        return {"policy/loss/preference": 1 / step, "policy/accuracy": step / 4, "policy/margin": step}

    run = hand_made(tmp_path / "run", metrics=pairs, algorithm="dpo")
    browser.get(report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    page = Page(browser)
    learning = ["policy/loss/preference", "policy/accuracy"]
    assert page.texts("#runs > .wide thead th")[3:-3] == ["eval/accuracy", *learning]
    assert page.texts("#runs tbody .journey")[1:] == ["1 → 0.25", "0.25 → 1"]
    assert page.texts("#curves > .charts figcaption") == [*learning, "policy/margin", "time by phase"]


def test_settings_that_differ_and_constants(page: Page) -> None:
    assert page.texts(".folds > .card:first-child tbody tr") == ["algorithm.kind grpo dapo"]
    assert "policy/skipped = 0" in page.texts(".fact")


def test_completions_are_filtered_by_each_filter(page: Page) -> None:
    def count() -> str:
        return page.one("#count").text

    assert count() == "52 of 52 completions"
    page.set("#search", "EMOJI")
    assert count() == "4 of 52 completions"
    page.set("#search", "")
    page.set("#step", 2)
    assert count() == "13 of 52 completions"
    assert set(page.texts("#rows td:nth-child(2)")) == {"2"}
    page.set('[data-filter="low"]', 0.5)
    assert count() == "4 of 52 completions"
    page.set('[data-filter="high"]', 0.9)
    assert count() == "0 of 52 completions: nothing fits these filters"
    page.set('[data-filter="high"]', "")
    page.set('[data-filter="run"]', 1)
    assert count() == "1 of 52 completions"
    page.set('[data-filter="finish"]', "length")
    assert count() == "0 of 52 completions: nothing fits these filters"


def test_they_are_sorted(page: Page) -> None:
    page.set('[data-filter="sort"]', "longest")
    assert page.one("#rows td:nth-child(3)").text == "think"
    page.set('[data-filter="sort"]', "worst")
    assert page.one("#rows td:nth-child(5)").text == "0"


def _color(page: Page, element: Any) -> str:
    return page.run("getComputedStyle(arguments[0]).backgroundColor", element)


def test_an_opened_completion_shows_its_tokens_in_colors_and_its_group(page: Page) -> None:
    page.set("#search", "1+1=")
    page.set('[data-filter="run"]', 0)
    page.click("#rows tr:nth-child(2)")
    tokens = page.all("#detail .transcript .token")
    assert [token.text for token in tokens][-1] == "<end>"
    assert page.one("#detail .given").text == "1+1="
    worse = _color(page, tokens[0])
    page.click("#rows tr:nth-child(1)")
    better = _color(page, page.one("#detail .transcript .token"))
    assert "color(" in better or "oklab" in better
    assert better != worse, "an advantage above 0 and one below"
    assert page.texts("#detail h4") == [
        "The 3 completions of this prompt, mean reward 0.3333",
        "The same prompt in other, mean reward 0.3333",
    ]
    page.click('input[value="logp"]')
    first, last = (_color(page, page.all("#detail .transcript .token")[k]) for k in (0, -1))
    assert first != last, "the second token is less likely"


def test_a_token_tells_what_is_known_of_it(page: Page) -> None:
    page.set("#search", "1+1=")
    page.point_at(page.one("#detail .transcript .token"))
    told = page.one("#tip").text.replace("\N{MINUS SIGN}", "-")
    for line in ("log-probability, sampler\n-0.1", "log-probability, trainer\n-0.09", "advantage\n0.5", "counted\nyes"):
        assert line in told


def test_hostile_texts_are_shown_as_texts(page: Page) -> None:
    page.set("#search", "window.hit")
    assert page.one("#detail .transcript").text == "say</script><script>window.hit = 1</script><end>"
    page.set("#search", "right to left")
    shown = page.one("#detail .transcript").text
    assert "nul ␀, escape ␛[2J, right to left [U+202E], separators [U+2028] [U+2029]" in shown


def test_keys_move_search_and_close(page: Page) -> None:
    def selected() -> list[int]:
        return [k for k, row in enumerate(page.all("#rows tr")) if row.get_attribute("aria-selected") == "true"]

    assert selected() == [0]
    page.press("jjk")
    assert selected() == [1]
    page.press("]")
    assert page.one('output[for="step"]').text == "1"
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    page.run("document.activeElement.blur()")
    page.press("\ue00c")
    assert selected() == []
    assert not page.all("#detail .transcript")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(page: Page, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colors = {
        name: page.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
        for name in ("bg", "card", "ink", "soft", "run-0", "run-1", "run-2", "run-3", "run-4", "run-5")
    }
    for ground in ("bg", "card"):
        assert _contrast(colors["ink"], colors[ground]) > 12
        assert _contrast(colors["soft"], colors[ground]) > 4.5
    assert all(_contrast(colors[f"run-{k}"], colors["card"]) > 3 for k in range(6))


def _contrast(one: str, other: str) -> float:
    """The contrast of two colors, as the Web Content Accessibility Guidelines define it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_on_a_small_screen_nothing_is_wider_than_it(page: Page) -> None:
    size = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.driver.refresh()
    try:
        assert page.run("document.documentElement.scrollWidth") <= 420
        assert not page.one("#detail").is_displayed()
        page.click("#rows tr:nth-child(2)")
        assert page.one("#detail").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_run_without_rollouts_says_so(browser: Any, tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run")
    shutil.rmtree(run / "rollouts")
    browser.get(report([run], tmp_path / "page.html", megabytes=5).path.as_uri())
    assert "There are no rollouts yet" in Page(browser).one("#completions").text
    assert Page(browser).one("h1").text == "run"
