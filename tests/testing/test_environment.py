"""`check_environment` accepts good environments, and each of its checks finds environments that break its rule."""

from __future__ import annotations

import pytest

from purerl.errors import ConfigError
from purerl.system.workers import connection
from purerl.testing import check_environment
from purerl.testing.environment import CHECKS
from tests.envs.environments import Guess
from tests.testing.planted.environments import Echo, Ends, NotPicklable, Tools, close_all
from tests.testing.planted.lists import ENVIRONMENTS

EXAMPLES = [{"text": "first"}, {"text": "second"}]


@pytest.mark.slow
def test_good_environments_are_accepted() -> None:
    check_environment(Guess, EXAMPLES, has_states=True)
    check_environment(Tools, EXAMPLES)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_check_detects_planted_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [other.__name__ for other in CHECKS if other is not ENVIRONMENTS[name].check]
    _assert_reported(name, others, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_whole_suite_reports_planted_error_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _assert_reported(name, [], monkeypatch)


def _assert_reported(name: str, exempt: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    error = ENVIRONMENTS[name]
    try:
        monkeypatch.setattr(connection, "MAX_ANSWER", 2**20)
        with pytest.raises(AssertionError, match=error.words) as caught:
            check_environment(error.factory, EXAMPLES, exempt=exempt)
        assert str(caught.value).startswith(f"{error.check.__name__}: ")
        assert "\n  rule: " in str(caught.value)
    finally:
        close_all()


def test_every_check_has_a_planted_error() -> None:
    assert {error.check for error in ENVIRONMENTS.values()} == {*CHECKS}


def test_states_are_required_if_declared() -> None:
    with pytest.raises(AssertionError, match="need the state"):
        check_environment(Echo, EXAMPLES, has_states=True)


def test_echo_is_good() -> None:
    check_environment(Echo, EXAMPLES)
    check_environment(Ends, EXAMPLES)
    check_environment(NotPicklable, EXAMPLES)  # a run gets plain observations, whatever their class is


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'has_all_methods'"):
        check_environment(Echo, EXAMPLES, exempt=["has_all_method"])
    with pytest.raises(ConfigError, match="at least one row"):
        check_environment(Echo, [])
