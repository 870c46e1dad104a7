"""Passwords, keys and tokens in settings and texts: they are found by their names and forms, and hidden in messages.

Settings are written to the files of a run, its logs and its trackers, so a credential in them is refused; it comes from
an environment variable or a private file. A word without a telling name or form cannot be recognized.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

__all__ = ["IS_CHECKED", "find_credential", "hide_credentials", "is_server_address"]

IS_CHECKED = "is_checked_for_credentials"
"""Metadata of a field of an attrs class that refuses credentials when the object is created."""

_SECRET = {
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "credential", "credentials",
    "authorization", "bearer", "cookie", "cookies", "apikey", "apitoken", "accesskey", "secretkey", "privatekey",
    "authtoken", "accesstoken", "sessiontoken", "jwt", "pat",
}  # fmt: skip
_OWNERS = {
    "access", "account", "api", "app", "auth", "authorization", "bearer", "bot", "client", "csrf", "deploy",
    "encryption", "gateway", "github", "gitlab", "hf", "hub", "id", "jwt", "license", "master", "oauth", "openai",
    "personal", "private", "project", "proxy", "refresh", "root", "sas", "secret", "security", "service", "session",
    "shared", "signing", "ssh", "storage", "sts", "subscription", "user", "wandb", "webhook",
}  # fmt: skip
_OF_QUERY = {"auth", "code", "credential", "key", "pass", "pin", "pw", "sas", "sig", "signature", "tkn", "token"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}|(?:env|os\.environ)[:/.]\w+")  # the name of a variable, not its value
_OPAQUE = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[\w.~+/=-]{16,}")  # as random keys are
_PLAIN = re.compile(r"[^\s<>|\[\]{}]+")  # as the text of a special token is not

# Keys and tokens that can be recognized by themselves.
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#'\"]+@")
_PAIR = re.compile(r"(?<![\w-])([\w.-]+)=(\$\{\w+\}|\"[^\"]*\"|'[^']*'|[^\s&;,'\"#)\]}]+)")
_OPTION = re.compile(r"(--[\w-]+)([= ])([^\s'\"]+)")
_ITEM = re.compile(r"(([\"'])([\w.-]+)\2: *)([\"'])(.*?)\4")  # of a mapping in JSON or as Python shows it
_BEARER = re.compile(r"(?i)\b(bearer|basic) +(?=\S*[0-9=])[\w.~+/=-]{8,}")


def is_server_address(url: str) -> bool:
    """Whether `url` is http:// or https:// with a host, and has no user, password, query or fragment."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or too large; brackets of an IPv6 address
        return False
    has_more = "@" in parts.netloc or "?" in url or "#" in url
    is_visible = url.isprintable() and " " not in url
    return parts.scheme in ("http", "https") and has_host and not has_more and is_visible


def find_credential(name: str, value: Any) -> str | None:
    """The first credential in the setting `name` with `value`, without showing it; None if there is none.

    It may be in a mapping, a list, a section of settings, a URL, or a command line.

    >>> find_credential("url", "https://user:hunter2@host")
    'url: a user or password in a URL'
    >>> find_credential("kwargs", {"headers": {"X-Api-Key": "abc"}})
    'kwargs.headers.X-Api-Key'
    >>> find_credential("kwargs", {"eos_token": "<eos>", "max_tokens": 5, "key": "answer"})
    """
    if value is None or type(value) in (bool, float):
        return None
    return next(_credentials(name, name, value), None)


def _credentials(path: str, name: str, value: Any) -> Iterator[str]:
    """The credentials in `value`, whose last name in `path` is `name`."""
    if attrs.has(type(value)):
        unchecked = [field.name for field in attrs.fields(type(value)) if not field.metadata.get(IS_CHECKED)]
        value = {name: getattr(value, name) for name in unchecked}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _credentials(f"{path}.{key}", str(key), part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _credentials(path, name, part)
    elif isinstance(value, str) and value and not _VARIABLE.fullmatch(value):
        if _names_secret(name, value):
            yield path
        elif problem := _problem_of_url(value) or _problem_of_text(value):
            yield f"{path}: {problem}"
    elif type(value) is int and _words(name)[-1:] and _words(name)[-1] in _SECRET:
        yield path


@lru_cache(4096)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))


def _names_secret(name: str, value: str) -> bool:
    """Whether a setting or an option `name` with the text `value` is a credential."""
    words = _words(name)
    last, owner = (words[-1] if words else ""), (words[-2] if len(words) > 1 else "")
    if last in _SECRET:
        return True
    if last in ("key", "keys", "token"):
        is_named = owner in _OWNERS if last != "token" else (not owner or owner in _OWNERS) and _PLAIN.fullmatch(value)
        return bool(is_named) or _OPAQUE.fullmatch(value) is not None
    return last == "auth" and (":" in value or _OPAQUE.fullmatch(value) is not None)


def _problem_of_url(text: str) -> str | None:
    if not _SCHEME.match(text):
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return "a user or password in a URL" if "@" in text else None
    user, has_user, _ = parts.netloc.rpartition("@")
    if has_user and (parts.scheme in ("http", "https", "ws", "wss") or ":" in user) and not _is_variable(user):
        return "a user or password in a URL"
    for name, value in parse_qsl(f"{parts.query}&{parts.fragment}"):
        words = _words(name)
        is_secret = _names_secret(name, value) or (words and words[-1] in _OF_QUERY)
        if is_secret and not _VARIABLE.fullmatch(value):
            return f"the parameter {name} of a URL"
    return None


def _is_variable(user: str) -> bool:
    """Whether the user and password of a URL are names of variables."""
    return all(_VARIABLE.fullmatch(unquote(part)) for part in user.split(":") if part)


def _problem_of_text(text: str) -> str | None:
    """The problem of a text that may be a command line; None if there is none."""
    if _KNOWN.search(text) or _BEARER.search(text):
        return "a key or token"
    pairs = (name for name, value in _PAIR.findall(text) if _is_secret_pair(name, value))
    named = next(pairs, None)
    return f"the value of {named}" if named else _problem_of_options(text)


def _is_secret_pair(name: str, value: str) -> bool:
    """Whether ``name=value`` in a text is a credential. ``token=`` and ``key=`` alone are too common in texts."""
    words, value = _words(name), value.strip("'\"")
    is_named = bool(words) and (words[-1] in _SECRET or len(words) > 1)
    return is_named and not _VARIABLE.fullmatch(value) and _names_secret(name, value)


def _problem_of_options(text: str) -> str | None:
    """The problem of the options of a command line, ``--token VALUE`` or ``--header "NAME: VALUE"``."""
    if len(text.split()) < 2:  # most settings; `shlex` is slow
        return None
    try:
        words = shlex.split(text)
    except ValueError:  # quotes that do not end: it is no command line
        words = text.split()
    for option, word in pairwise(words):
        if problem := _problem_of_option(option, word):
            return problem
    return None


def _problem_of_option(option: str, word: str) -> str | None:
    """The problem of a word of a command line; `option` is the word before it."""
    if word.startswith("--") and "=" in word:
        option, _, word = word.partition("=")
    if _VARIABLE.fullmatch(word) or word.startswith("-"):
        return None
    if (option.startswith("--") and _names_secret(option, word)) or (option in ("-u", "--user") and ":" in word):
        return f"the value of {option}"
    header, _, content = word.partition(":")
    is_reference = _VARIABLE.fullmatch(content.rpartition(" ")[2]) is not None
    if option in ("-H", "--header") and not is_reference and _names_secret(header, content.strip()):
        return f"the header {header}"
    return _problem_of_url(word)


def hide_credentials(text: str) -> str:
    """`text` with ``***`` in place of passwords, keys and tokens that can be recognized.

    >>> hide_credentials("cannot reach https://user:hunter2@host/v1?api_key=abc&n=1")
    'cannot reach https://***@host/v1?api_key=***&n=1'
    >>> hide_credentials("got: {'model': 'm', 'password': 'hunter2'}")
    "got: {'model': 'm', 'password': '***'}"
    """
    text = _KNOWN.sub("***", _BEARER.sub(r"\1 ***", _USER.sub(r"\1***@", text)))
    return _OPTION.sub(_hidden_option, _ITEM.sub(_hidden_item, _PAIR.sub(_hidden_pair, text)))


def _hidden_pair(match: re.Match[str]) -> str:
    name, value = match.groups()
    is_parameter = match.string[max(0, match.start() - 1) : match.start()] in ("?", "&")
    is_secret = _is_secret_pair(name, value) or (is_parameter and {*_words(name)[-1:]} & _OF_QUERY)
    return f"{name}=***" if is_secret else match[0]


def _hidden_option(match: re.Match[str]) -> str:
    option, sign, value = match.groups()
    return f"{option}{sign}***" if _names_secret(option, value) and not _VARIABLE.fullmatch(value) else match[0]


def _hidden_item(match: re.Match[str]) -> str:
    start, _, name, quote, value = match.groups()
    return f"{start}{quote}***{quote}" if value and _names_secret(name, value) else match[0]
