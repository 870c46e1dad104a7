"""A position in the tokens of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from purerl.rewards.answers.nodes import AnswerSyntaxError
from purerl.rewards.answers.tokens import Token

__all__ = ["Cursor"]

_MAX_TOKENS = 300


class Cursor:
    """The tokens of an answer, and the position of the next one. The last token has the kind "last"."""

    def __init__(self, tokens: Sequence[Token]):
        if len(tokens) > _MAX_TOKENS:
            raise AnswerSyntaxError("an answer that is too long")
        self._tokens, self.position = [*tokens], 0

    @property
    def next(self) -> Token:
        """The next token."""
        return self._tokens[self.position]

    @property
    def previous(self) -> Token:
        """The token before the next one."""
        return self._tokens[self.position - 1]

    @property
    def after_next(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self.position + 1, len(self._tokens) - 1)]

    def advance(self) -> Token:
        """Return the next token, and move behind it."""
        token = self.next
        self.position += token.kind != "last"
        return token

    def accept(self, kind: str, *texts: str) -> Token | None:
        """As `advance`, if the next token is of `kind` and, if there are `texts`, is one of them; otherwise None."""
        return self.advance() if self.next.kind == kind and (not texts or self.next.text in texts) else None

    def expect(self, kind: str, *texts: str) -> Token:
        """As `accept`. Raises AnswerSyntaxError if there is another token."""
        token = self.accept(kind, *texts)
        if token is None:
            raise AnswerSyntaxError(f"{' or '.join(texts) or kind} is missing before {self.next.text!r}")
        return token

    def split_number(self) -> None:
        r"""Split the next token after its first digit, as LaTeX does in ``\\frac12``."""
        token = self.next
        if token.kind == "number" and len(token.text) > 1 and token.text.isdecimal():
            parts = [Token("number", token.text[0]), Token("number", token.text[1:])]
            self._tokens[self.position : self.position + 1] = parts
