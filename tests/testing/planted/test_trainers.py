"""The fake trainer passes the conformance suite, and each planted error is reported by the check that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.backends.fake import trainer as fake
from purerl.testing.trainer import CHECKS, check_trainer
from tests.testing.planted.lists import TRAINERS


@pytest.mark.parametrize("name", TRAINERS)
def test_whole_suite_reports_planted_error_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No check before it fails: of several failures, the first one is the cause."""
    error, arguments = TRAINERS[name], fake.conformance(Path())
    error.apply(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        check_trainer(arguments.pop("build"), **arguments)
    message = str(caught.value)
    assert message.startswith(f"{error.check.__name__}: ")
    assert error.words in message
    assert "\n  rule: " in message


def test_every_check_has_a_planted_error() -> None:
    assert {error.check.__name__ for error in TRAINERS.values()} == {check.__name__ for check in CHECKS}


def test_message_of_an_error_has_the_check_the_exception_and_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = fake.conformance(Path())
    TRAINERS["export_raises_an_exception"].apply(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        check_trainer(arguments.pop("build"), **arguments)
    assert str(caught.value) == (
        "an_exported_trainer_can_be_closed: got PermissionError: read-only\n"
        "expected no exception\n"
        "  rule: `export` writes files, and `close` succeeds afterwards."
    )
    assert isinstance(caught.value.__cause__, PermissionError)
