"""A browser that opens reports in tests. Such tests are skipped if Chromium or its driver is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["Page", "marks", "opened_browser"]

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_DRIVER = shutil.which("chromedriver")

marks = [
    pytest.mark.browser,
    pytest.mark.skipif(not (_CHROMIUM and _DRIVER), reason="needs chromium and chromium-driver"),
]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1200",
)  # fmt: skip


class Page:
    """An open page, with shortcuts to query and operate it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def find_all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_text(self, selector: str) -> list[str]:
        return [element.text for element in self.find_all(selector)]

    def evaluate(self, expression: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {expression}", *arguments)

    def set_value(self, selector: str, value: object) -> None:
        """Set the value of an input and dispatch the events of a user's input."""
        expression = (
            "arguments[0].value = arguments[1], ['input', 'change'].map(e => arguments[0].dispatchEvent(new Event(e)))"
        )
        self.evaluate(expression, self.find(selector), value)

    def click(self, selector: str) -> None:
        self.evaluate("arguments[0].click()", self.find(selector))

    def press(self, keys: str) -> None:
        self.find("body").send_keys(keys)

    def hover(self, element: Any) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        self.evaluate("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    def requests(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def opened_browser() -> Iterator[Any]:
    """Open a browser, yield its driver, and close it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _CHROMIUM or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(_DRIVER))
    yield driver
    driver.quit()
