"""Languages of programs: the name of the file, how it is compiled, and how it runs, in a sandbox.

The commands run in the directory of the program. Interpreters and compilers must be installed on this computer, in a
directory that sandboxes can read, such as /usr.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["LANGUAGES", "Language", "find_language"]


class Language(NamedTuple):
    """A language.

    file    name of the file with the program
    tool    the interpreter or compiler
    run     command for a shell that runs the program
    build   command for a shell that compiles it into the directory `build`; empty if there is nothing to compile
    labels  other names, as labels of code fences and in data sets
    """

    file: str
    tool: str
    run: str
    build: str = ""
    labels: tuple[str, ...] = ()


_BINARY = "exec build/program"

LANGUAGES: Mapping[str, Language] = {
    "python": Language("program.py", "python3", "exec python3 program.py", labels=("py", "ipython", "pypy")),
    "bash": Language("program.sh", "bash", "exec bash program.sh", labels=("sh", "shell")),
    "javascript": Language("program.js", "node", "exec node program.js", labels=("js", "node", "nodejs")),
    "perl": Language("program.pl", "perl", "exec perl program.pl", labels=("pl",)),
    "ruby": Language("program.rb", "ruby", "exec ruby program.rb", labels=("rb",)),
    "php": Language("program.php", "php", "exec php program.php"),
    "lua": Language("program.lua", "lua", "exec lua program.lua"),
    "r": Language("program.R", "Rscript", "exec Rscript program.R"),
    "c": Language("program.c", "cc", _BINARY, "cc -O2 -o build/program program.c -lm"),
    "c++": Language(
        "program.cpp", "c++", _BINARY, "c++ -O2 -std=c++17 -o build/program program.cpp", ("cpp", "cc", "cxx")
    ),
    "java": Language(
        "Main.java", "javac", "exec java -XX:+UseSerialGC -Xss64m -cp build Main", "javac -d build Main.java"
    ),
    "go": Language("program.go", "go", _BINARY, "go build -o build/program program.go", ("golang",)),
    "rust": Language("program.rs", "rustc", _BINARY, "rustc -O -o build/program program.rs", ("rs",)),
}
"""Language -> how its programs are compiled and run."""

_NAMES = {label: name for name, language in LANGUAGES.items() for label in (name, *language.labels)}
_VERSION = re.compile(r"-?[\d.]+$")


def find_language(label: str) -> str | None:
    """The language with this name or label, with or without a version; None if it is unknown.

    A version selects nothing: programs with the label `python2` run in Python 3, and those with `c++20` as C++17.

    >>> find_language("CPP"), find_language("python3.11"), find_language("text")
    ('c++', 'python', None)
    """
    name = label.strip().lower()
    return _NAMES.get(name) or _NAMES.get(_VERSION.sub("", name))
