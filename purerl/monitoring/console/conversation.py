"""Print the conversation of an episode, turn by turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import indent

from rich.text import Text

from purerl.monitoring.console.messages import Message
from purerl.monitoring.console.terminal_text import format_number
from purerl.system.terminal import escape

__all__ = ["render_messages", "summarize_messages"]

_ROLE_STYLES = {"assistant": "bold green", "tool": "bold cyan"}
_MARGIN = "  | "


def render_messages(messages: Iterable[Message]) -> Text:
    r"""`messages` as a Rich renderable: for each its role, its text, its tool calls, and the reward of a turn.

    Characters that are not printable are escaped, so no text can change the terminal.

    >>> print(render_messages([Message("assistant", "2\n", reward=1.0), Message("tool", "\x1b[2J", name="run")]))
    assistant, reward 1.000
      | 2
    tool run
      | \x1b[2J
    """
    return Text("\n").join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> Iterator[Text]:
    style = _ROLE_STYLES.get(message.role, "bold")
    yield Text.assemble((escape(_author(message), newlines=False), style), _facts(message))
    if content := message.content.rstrip("\n"):
        # What the model has written has the color of the terminal; all other text is dim.
        yield Text(indent(escape(content), _MARGIN, lambda line: True), "" if message.role == "assistant" else "dim")
    for call in message.calls:
        text = f"{escape(call.name, newlines=False)} {escape(call.arguments)}"
        error = "" if call.error is None else f" (error: {escape(call.error, newlines=False)})"
        yield Text.assemble((f"{_MARGIN}call ", "yellow"), text, (error, "red"))


def _author(message: Message) -> str:
    return f"{message.role} {message.name}" if message.name else message.role


def _facts(message: Message) -> str:
    player = "" if message.player is None else f", player {message.player}"
    return player + ("" if message.reward is None else f", reward {format_number(message.reward)}")


def summarize_messages(messages: Sequence[Message]) -> str:
    """The turns of the model and the answers between them, in one line.

    The turns are the messages of the role assistant, from the first one on.

    >>> summarize_messages([Message("user", "1+1"), Message("assistant", "add(1, 1)"), Message("tool", "2")])
    'add(1, 1) [tool: 2]'
    """
    roles = [message.role for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return " ".join(
        message.content if message.role == "assistant" else f"[{message.role}: {message.content}]"
        for message in messages[first:]
    )
