"""The roles of messages. An answer with a role that nothing knows would not be learned."""

from __future__ import annotations

import re
from difflib import get_close_matches

from purerl.data.chat import Chat
from purerl.errors import DataError

__all__ = ["ROLES", "check_role", "nearest_role"]

ROLES = ("system", "developer", "user", "assistant", "tool")

_SYNONYMS = {
    "assistant": ("model", "gpt", "chatgpt", "bot", "chatbot", "ai", "agent", "answer", "output", "response"),
    "user": ("human", "person", "question", "input", "instruction", "prompter"),
    "tool": ("function", "observation", "ipython", "environment", "tool_response", "tool_result"),
}


def nearest_role(role: str) -> str | None:
    """The known role that is meant by `role`, as other libraries write it or nearly.

    >>> nearest_role("Assistant"), nearest_role("gpt"), nearest_role("critic")
    ('assistant', 'assistant', None)
    """
    name = role.strip().lower()
    synonyms = (known for known, names in _SYNONYMS.items() if name in names)
    return next(synonyms, None) or next(iter(get_close_matches(name, ROLES, n=1, cutoff=0.7)), None)


def check_role(chat: Chat, role: str, row: str) -> None:
    """Raise DataError for a `role` of a message of `row` that is unknown, unless the chat template names it.

    Roles that mean the assistant are refused in any case: only turns of the role assistant are learned.
    """
    meant = nearest_role(role)
    template = str(chat.tokenizer.get_chat_template(tools=chat.chat_template_kwargs.get("tools")))
    is_named = re.search(rf"""['"]{re.escape(role)}['"]""", template) is not None
    if role not in ROLES and (meant == "assistant" or not is_named):
        raise DataError(
            f"{row}: a message with the unknown role {role!r}",
            need=f"one of: {', '.join(ROLES)}; or a role that the chat template names",
            do=f"did you mean {meant!r}?" if meant else "use one of these roles, or remove the message",
        )
