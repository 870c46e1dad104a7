"""The commands that a shell script would run, read without running anything.

Assignments, conditions, loops, functions and here-documents are followed. A condition that is not known does not hold,
and of a loop that never ends nothing is read; both are in the notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from purerl.errors import ConfigError
from purerl.porting.shell.conditions import is_true
from purerl.porting.shell.tokens import Token, here_documents, tokenize
from purerl.porting.shell.words import Words

__all__ = ["Script", "ShellCommand", "read_script"]


class ShellCommand(NamedTuple):
    """A command of a script: its words, with marks for unknown parts, and its line."""

    words: tuple[str, ...]
    line: int


class Script(NamedTuple):
    """The commands of a script, sentences about what is not known, and the expansion that knows the marks.

    documents  the here-documents, read as scripts, because a program such as ``bash`` or ``sbatch`` may run them
    """

    commands: tuple[ShellCommand, ...]
    notes: tuple[str, ...]
    words: Words
    documents: tuple[Script, ...] = ()


def read_script(text: str, file: str, environment: Mapping[str, str]) -> Script:
    """The commands of the script `text`, which is called `file`, without arguments, in this `environment`.

    Raises: ConfigError for text that is no shell script.

    >>> read_script("N=2; python -m main_ppo data.size=$((N * 4)) $@", "run.sh", {}).commands[0].words
    ('python', '-m', 'main_ppo', 'data.size=8')
    """
    run = _Run(tokenize(text), Words(file, environment))
    run.block(frozenset(), active=True)
    variables = {
        **environment,
        **{name: value for name, value in run.words.variables.items() if isinstance(value, str)},
    }
    return Script(
        tuple(run.commands),
        tuple(dict.fromkeys(run.notes)),
        run.words,
        tuple(script for body in here_documents(text) if (script := _document(body, file, variables)) is not None),
    )


def _document(text: str, file: str, environment: Mapping[str, str]) -> Script | None:
    """The script in a here-document; None if its text is none."""
    try:
        return read_script(text, file, environment)
    except ConfigError:
        return None


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=", re.DOTALL)
_DECLARATIONS = {"export", "local", "declare", "readonly", "typeset"}
_REDIRECTIONS = {"<", ">", ">>", ">&", "<&", "&>", "&>>", ">|", "<>", "<<<", "<<", "<<-"}
_SEPARATORS = {"\n", ";", "&", "|", "|&", "&&", "||", ";;", ";&", ";;&", "(", ")"}
_WITHOUT_EFFECT = {"true", ":", "set", "echo", "exit", "return"}
_MAX_ITEMS, _MAX_DEPTH = 1000, 50


class _Run:
    """A reading of the tokens of a script. With `active` false, a part of it is passed over."""

    def __init__(self, tokens: list[Token], words: Words, depth: int = 0) -> None:
        self.tokens, self.words, self.depth = tokens, words, depth
        self.position = 0
        self.commands: list[ShellCommand] = []
        self.notes: list[str] = []
        self.functions: dict[str, int] = {}

    def note(self, line: int, text: str) -> None:
        """Add a sentence about `line`."""
        self.notes.append(f"{self.words.file}:{line}: {text}")

    def text(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.position].text if self.position < len(self.tokens) else ""

    def take(self, *expected: str) -> Token:
        """The next token, and go to the one after it; with `expected`, also over new lines and ; before it."""
        while expected and self.text() in ("\n", ";") and self.text() not in expected:
            self.position += 1
        token = self.tokens[self.position] if self.position < len(self.tokens) else Token("", 0, is_word=False)
        self.position += not expected or token.text in expected
        return token

    def block(self, ends: Collection[str], *, active: bool) -> bool | None:
        """Read statements until one of `ends`. Returns the status of the last one that was run."""
        status: bool | None = True
        runs = active
        while self.position < len(self.tokens) and self.text() not in ends:
            start = self.position
            if self.text() in ("&&", "||"):
                is_wanted = status is not False if self.take().text == "&&" else status is False
                runs = active and is_wanted
            elif self.text() in _SEPARATORS - {"("}:
                self.position += 1
                runs = active
            else:
                result = self.statement(active=runs)
                status = result if runs else status
            self.position += self.position == start  # a word that begins no statement, such as a second `fi`
        return status

    def statement(self, *, active: bool) -> bool | None:
        """Read one statement. Returns whether it succeeds; None if that is not known."""
        token = self.tokens[self.position]
        compound: dict[str, Callable[..., bool | None]] = {
            "if": self._if,
            "for": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "function": self._function,
            "[[": self._double_brackets,
            "{": self._group,
            "(": self._group,
        }
        if token.text == "!":
            self.position += 1
            status = self.statement(active=active) if self.position < len(self.tokens) else None
            return None if status is None else not status
        if token.text.startswith("((") and not token.is_word:
            self.position += 1
            value = self.words.arithmetic(token.text[2:-2], token.text) if active else ""
            return value != "0" if value.lstrip("-").isdigit() else None
        if token.text in compound:
            return compound[token.text](active=active)
        following = [each.text for each in self.tokens[self.position + 1 : self.position + 3]]
        return self._function(active=active) if following == ["(", ")"] else self._simple(active=active)

    # --- compound statements ---------------------------------------------------------------------------------------

    def _group(self, *, active: bool) -> bool | None:
        end = "}" if self.take().text == "{" else ")"
        status = self.block({end}, active=active)
        self.take(end)
        return status

    def _if(self, *, active: bool) -> bool | None:
        line, is_over = self.take().line, not active
        while self.position < len(self.tokens):
            status = self._condition({"then"}, line, active=not is_over)
            self.take("then")
            self.block({"elif", "else", "fi"}, active=not is_over and status)
            is_over = is_over or status
            if self.take("elif", "else", "fi").text != "elif":
                break
        if self.position and self.tokens[self.position - 1].text == "else":
            self.block({"fi"}, active=not is_over)
            self.take("fi")
        return True

    def _condition(self, ends: Collection[str], line: int, *, active: bool) -> bool:
        lenient, self.words.lenient = self.words.lenient, True
        start, commands = self.position, len(self.commands)
        status = self.block(ends, active=active)
        self.words.lenient = lenient
        if active and (status is None or len(self.commands) > commands):
            text = " ".join(token.text for token in self.tokens[start : self.position] if token.text != "\n")
            self.note(line, f"whether `{text.strip(' ;')}` holds is not known; it is read as false")
            status = False
        del self.commands[commands:]
        return bool(status)

    def _for(self, *, active: bool) -> bool | None:
        line, name, items = self.take().line, self.take().text, list[str]()
        if not re.fullmatch(r"[A-Za-z_]\w*", name):  # for ((i = 0; ...))
            active = self._not_read(line, active=active)
        if self.text() == "in":
            self.position += 1
            while self.position < len(self.tokens) and self.tokens[self.position].is_word:
                items += self._fields(self.take()) if active else []
        self.take("do", "{")
        start, commands = self.position, len(self.commands)
        for item in items[:_MAX_ITEMS]:
            self.position, self.words.variables[name] = start, item
            self.block({"done"}, active=active)
        if not items:
            self.block({"done"}, active=False)
        self.take("done")
        if len(self.commands) - commands > 1:
            self.note(line, f"a loop of {len(items)} runs")
        return True

    def _while(self, *, active: bool) -> bool | None:
        line = self.take().line
        holds = self._condition({"do"}, line, active=active)
        self.take("do")
        self.block({"done"}, active=self._not_read(line, active=active) if holds else False)
        self.take("done")
        return True

    def _not_read(self, line: int, *, active: bool) -> bool:
        if active:
            self.note(line, "this loop is not read")
        return False

    def _case(self, *, active: bool) -> bool | None:
        line = self.take().line
        word, is_over = self._fields(self.take()) if active else [], not active
        value = " ".join(word)
        if active and "\ue000" in value:
            self.note(line, f"the value of `{self.words.restored(value)}` is not known")
        self.take("in")
        while self.take("esac").text not in ("esac", ""):
            start = self.position
            self.take("(")
            patterns = []
            while self.text() not in (")", ""):
                token = self.take()
                patterns += [token.text] if token.is_word else []
            self.take(")")
            matches = not is_over and _is_matching(value, [" ".join(self.words.fields(each)) for each in patterns])
            self.block({";;", ";&", ";;&", "esac"}, active=matches)
            is_over = is_over or matches
            self.take(";;", ";&", ";;&")
            self.position += self.position == start
        return True

    def _function(self, *, active: bool) -> bool | None:
        if self.text() == "function":
            self.position += 1
        name = self.take().text
        while self.text() in ("(", ")", "\n"):
            self.position += 1
        self.take("{")
        if active:
            self.functions[name] = self.position
        self.block({"}"}, active=False)
        self.take("}")
        return True

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        if self.depth > _MAX_DEPTH:
            return None
        back, outer = self.position, self.words.arguments
        self.position, self.words.arguments, self.depth = self.functions[name], arguments, self.depth + 1
        status = self.block({"}"}, active=True)
        self.position, self.words.arguments, self.depth = back, outer, self.depth - 1
        return status

    def _double_brackets(self, *, active: bool) -> bool | None:
        line, words = self.take().line, list[str]()
        lenient, self.words.lenient = self.words.lenient, True
        self.words.line = line
        while self.text() not in ("]]", ""):
            token = self.take()
            words += [self.words.text(token.text) if token.is_word else token.text] if active else []
        self.words.lenient = lenient
        self.take("]]")
        return is_true([word for word in words if word not in ("(", ")", "\n")]) if active else None

    # --- simple commands -------------------------------------------------------------------------------------------

    def _fields(self, token: Token) -> list[str]:
        self.words.line = token.line
        return self.words.fields(token.text)

    def _simple(self, *, active: bool) -> bool | None:
        tokens: list[Token] = []
        while self.position < len(self.tokens) and self.text() not in _SEPARATORS:
            if self.text() in _REDIRECTIONS:
                self.position += 1
                self.position += self.text() not in _SEPARATORS
            else:
                tokens.append(self.take())
        if not tokens and self.text() == "(":
            self.position += 1
        if not active or not tokens:
            return None
        count = next((i for i, token in enumerate(tokens) if not _ASSIGNMENT.match(token.text)), len(tokens))
        if tokens[count:]:
            return self._run_words(tokens[count:])
        self._assign(tokens)
        return True

    def _assign(self, tokens: list[Token]) -> None:
        for token in tokens:
            self.words.line = token.line
            self.words.assign(token.text)

    def _run_words(self, tokens: list[Token]) -> bool | None:
        name = tokens[0].text
        if name in _DECLARATIONS:
            self._assign([token for token in tokens[1:] if _ASSIGNMENT.match(token.text)])
            return True
        if name in ("[", "test"):
            lenient, self.words.lenient = self.words.lenient, True
            words = [self.words.text(token.text) for token in tokens[1:] if token.text != "]"]
            self.words.lenient = lenient
            return is_true(words)
        fields = [field for token in tokens for field in self._fields(token)]
        if fields and fields[0] in self.functions:
            return self._call(fields[0], fields[1:])
        inner = _inner_script(fields)
        if inner is not None and self.depth < _MAX_DEPTH:
            return self._nested(inner)
        return self._builtin(fields, tokens[0].line)

    def _builtin(self, fields: list[str], line: int) -> bool | None:
        """Run a command of the shell itself; keep any other one."""
        match fields:
            case ["false"]:
                return False
            case ["unset", *names]:
                for each in names:
                    self.words.variables.pop(each, None)
            case ["shift", *_]:
                del self.words.arguments[:1]
            case ["source" | ".", file, *_]:
                self.note(line, f"{self.words.restored(file)} is not read")
            case [command, *_] if command not in _WITHOUT_EFFECT:
                self.commands.append(ShellCommand(tuple(fields), line))
                return None
        return True

    def _nested(self, text: str) -> bool | None:
        inner = _Run(tokenize(text), self.words, self.depth + 1)
        status = inner.block(frozenset(), active=True)
        self.commands += inner.commands
        self.notes += inner.notes
        return status


def _inner_script(fields: list[str]) -> str | None:
    """The script that a command runs: that of ``eval``, or of ``bash -c``."""
    match fields:
        case ["eval", *rest]:
            return " ".join(rest)
        case [*_, "bash" | "sh" | "zsh", "-c" | "-lc", text]:
            return text
    return None


def _is_matching(value: str, patterns: list[str]) -> bool:
    """Whether `value`, if it is known, matches one of `patterns` of a ``case``."""
    return "\ue000" not in value and any(is_true([value, "==", pattern]) for pattern in patterns)
