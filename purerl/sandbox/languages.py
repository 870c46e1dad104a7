"""Programs in several languages: how a file is run, by the ending of its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from purerl.errors import ConfigError, nearest
from purerl.sandbox.processes import find_interpreter
from purerl.sandbox.settings import SandboxSettings

__all__ = ["LANGUAGES", "Language", "command_of", "find_language"]


class Language(NamedTuple):
    """A language.

    endings  of the names of its files
    script   what a shell runs in the directory of the file "$1", with the arguments of the program after it
    """

    endings: tuple[str, ...]
    script: str


# Without layers, /tmp is that of the host, where anybody may put a program; TMPDIR is the directory of the run.
_COMPILE_AND_RUN = '-O2 -o "$TMPDIR/program" "$1" {} && shift && exec "$TMPDIR/program" "$@"'

LANGUAGES: Mapping[str, Language] = {
    "python": Language((".py",), 'exec "$PYTHON" "$@"'),
    "bash": Language((".sh", ".bash"), 'exec bash "$@"'),
    "javascript": Language((".js", ".mjs", ".cjs"), 'exec node "$@"'),
    "c": Language((".c",), f"cc {_COMPILE_AND_RUN.format('-lm')}"),
    "c++": Language((".cpp", ".cc", ".cxx"), f"c++ {_COMPILE_AND_RUN.format('')}"),
    "java": Language((".java",), 'exec java "$@"'),
    "perl": Language((".pl",), 'exec perl "$@"'),
}
"""Language -> how its programs run. Their compilers and interpreters must be installed in /usr."""


def find_language(path: str) -> str:
    """The language of a file, by the ending of its name.

    >>> find_language("a/b.cpp")
    'c++'

    Raises: ConfigError if the ending is unknown.
    """
    suffix = Path(path).suffix
    for name, language in LANGUAGES.items():
        if suffix in language.endings:
            return name
    known = [ending for language in LANGUAGES.values() for ending in language.endings]
    raise ConfigError(
        "language", got=f"a file that ends with {suffix!r}", need=", ".join(known), do="name the language"
    )


def command_of(language: str, file: str, arguments: tuple[str, ...], settings: SandboxSettings) -> list[str]:
    """The command that runs `file`, which is in the working directory.

    Raises: ConfigError if the language is unknown.
    """
    if language not in LANGUAGES:
        raise ConfigError("language", got=repr(language), do=nearest(language, LANGUAGES))
    python = find_interpreter(settings.python).path if language == "python" else "python"
    return ["/bin/sh", "-c", f"PYTHON={python}; {LANGUAGES[language].script}", "sh", file, *arguments]
