"""Episodes of several turns in the report in a real browser: conversations, tokens of turns, rows of one episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.report.page import write_report
from tests.report.chromium import Page, marks
from tests.report.sample_runs import make_conversation, make_episodes, make_evaluation, make_run
from tests.report.test_page import HOSTILE

pytestmark = [pytest.mark.slow, *marks]

EPISODES = [[["look it up"], ["3"]], [["ask", "4"]]]


def _open(browser: Any, run: Path) -> Page:
    browser.get(write_report([run], run / "page.html", megabytes=5).path.as_uri())
    return Page(browser)


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Page:
    run = make_run(tmp_path / "run", steps=1)
    make_episodes(run, 1, EPISODES)
    return _open(browser, run)


def _open_row(page: Page, preview: str) -> None:
    """Click on the row of the list whose completion starts with `preview`."""
    texts = page.find_text("#rows .completion")
    page.click(f"#rows tr:nth-child({next(k for k, text in enumerate(texts, 1) if preview in text)})")


def _messages(page: Page) -> list[list[str]]:
    """The lines of each message."""
    return [text.splitlines() for text in page.find_text("#detail .message")]


def test_conversation_shows_turns_tool_calls_observations_and_rewards(page: Page) -> None:
    _open_row(page, "ask")
    assert _messages(page) == [
        ["user", "How warm?"],
        ["assistant turn 0 · state 0 · reward 0", "ask", 'call weather {"city": "Oslo 0"}'],
        ["tool weather", "0 degrees"],
        ["assistant turn 1 · state 1 · reward 1", "4"],
    ]
    own = page.find_text("#detail .message.own .body")
    assert own == ["ask", "4"], "only what the model has written"
    assert len(page.find_all("#detail .message .token")) == len("ask4"), "each byte is a token"
    assert len(page.find_all("#detail .message .body.context")) == 2
    token = page.find("#detail .message .token")
    strength = page.evaluate("arguments[0].style.getPropertyValue('--strength')", token)
    assert strength == "32%", "the log-probability is -0.5"
    page.hover(token)
    assert "turn" in page.find_text("#tooltip dt")
    assert page.driver.get_log("browser") == []


def test_rows_of_one_episode_are_shown_together_with_its_reward(page: Page) -> None:
    _open_row(page, "look")
    facts = dict(zip(page.find_text("#detail .facts dt"), page.find_text("#detail .facts dd"), strict=True))
    assert (facts["reward"], facts["reward of this row"]) == ("1", "0")
    assert page.find("#detail header").text.startswith("run step 1 · group 0 · row 0 · episode 0")
    headers = page.find_text("#detail .message.own .message-head")
    assert headers == ["assistant turn 0 · state 0 · reward 0", "assistant turn 1 · state 1 · row 1 · reward 1"]
    assert page.find_text("#detail h4")[-1] == "The 3 rows of the 2 episodes of this prompt, mean reward 1"
    assert [text.splitlines()[0] for text in page.find_text("#detail .episode")] == ["episode, reward 1"]
    assert len(page.find_all("#detail .episode .sibling")) == 2
    assert len(page.find_all("#detail .sibling")) == 3
    assert sorted(page.find_text("#rows .completion")) == ["3", "ask0 degrees4", "look it up"], "from the first turn on"
    page.click("#detail .episode .sibling:nth-child(2)")
    assert "row 1 · episode 0" in page.find("#detail header").text


def test_rows_of_an_episode_are_next_to_each_other_in_the_list(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    make_episodes(run, 1, EPISODES)
    path = run / "rollouts" / "000001.parquet"
    table = parquet.read_table(path)
    sizes = [len(tokens) for tokens in table["tokens"].to_pylist()]
    advantages = [[value] * size for value, size in zip((0.1, 0.9, 0.5), sizes, strict=True)]
    parquet.write_table(table.append_column("advantage", pa.array(advantages)), path)
    page = _open(browser, run)
    assert page.find_text("#rows .completion") == ["look it up", "3", "ask0 degrees4"]
    assert page.find_text("#rows td:nth-child(6)") == ["0.1", "0.9", "0.5"], "the advantage is that of the row"


def test_tokens_of_the_row_have_headings_of_turns_and_observations_look_different(page: Page) -> None:
    _open_row(page, "ask")
    page.click('input[name="messages"][value="tokens"]')
    assert page.find_text("#detail .turn-start") == ["turn 0", "turn 1"]
    assert page.find("#detail .transcript").text.splitlines() == ["turn 0", "How warm?ask", "turn 1", "0 degrees4"]
    observation = page.find_all("#detail .transcript .token.observation")
    assert "".join(token.text for token in observation).replace(" ", "") == "0degrees"
    background = "background-color"
    sampled = page.find("#detail .transcript .token:not(.context)")
    assert observation[0].value_of_css_property(background) != sampled.value_of_css_property(background)
    page.click('input[name="messages"][value="messages"]')
    assert page.find_all("#detail .conversation")


def test_row_without_messages_shows_its_tokens(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    make_episodes(run, 1, EPISODES[1:], messages=False)
    page = _open(browser, run)
    assert page.find("#detail .transcript").text.splitlines() == ["How warm?", "turn 0", "ask", "turn 1", "0 degrees4"]
    assert not page.find_all("#detail .conversation, input[name=messages]")


def test_long_conversation_is_folded_until_it_is_opened(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    make_episodes(run, 1, [[[f"answer {turn}" for turn in range(20)]]])
    page = _open(browser, run)
    assert len(page.find_all("#detail .message")) == 4 + 6
    assert page.find("#detail .messages summary").text == "30 more messages"
    page.press("j")  # the fold is drawn once, also if the row is drawn again
    page.click("#detail .messages summary")
    page.evaluate("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
    assert page.find_text("#detail .message.own .body") == [f"answer {turn}" for turn in range(20)]
    assert page.find_text("#detail .call")[1] == 'call weather {"city": "Oslo 1"} (error: no such city)'
    page.set_value("#search", "19 degrees")
    assert page.find("#count").text.startswith("0 of 1")
    page.set_value("#search", "18 degrees")
    assert page.find("#count").text.startswith("1 of 1"), "the text of observations is searched"


def test_conversation_of_an_evaluation_and_hostile_texts(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    messages = make_conversation(*HOSTILE, prompt=HOSTILE[0], rewards=False)
    messages[2] |= {"name": HOSTILE[0], "role": '"><script>hit = 1</script>'}
    make_evaluation(run, 1, messages=json.dumps(messages))
    page = _open(browser, run)
    page.set_value('[data-filter="source"]', "evaluation: math")
    page.set_value('[data-filter="sort"]', "best")
    page.click("#rows tr:nth-child(1)")
    shown = page.find_all("#detail .message")
    assert len(shown) == len(messages) if len(messages) <= 14 else 10
    assert page.find_all("#detail .message.own"), "what the model has written is not gray"
    assert not page.find_all("input[name=messages]"), "an evaluation stores no tokens"
    assert page.evaluate("window.hit") is None
    page.set_value('[data-filter="sort"]', "worst")
    page.click("#rows tr:nth-child(1)")
    assert page.find("#detail .transcript").text == "0+0=1", "an attempt without a conversation"
    assert page.driver.get_log("browser") == []
