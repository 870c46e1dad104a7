"""`python -m tests.find` finds the tests of a file."""

from __future__ import annotations

import pytest

from tests import find

pytestmark = pytest.mark.slow

ROOT = find.ROOT


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("purerl/loop/window.py", "property_tests/test_window.py"),  # of its name
        ("purerl/algos/dapo.py", "tests/algos/test_surrogate_algorithms.py"),  # imported
        ("purerl/recipes/postfix_dpo.py", "tests/recipes/test_postfix.py"),  # named in a text
        ("purerl/store/manifest.py", "tests/cli/test_stop.py"),  # by a module that imports it
        ("purerl/system/workers/guard.py", "tests/system/workers/test_processes.py"),  # of its package
    ],
)
def test_finds(path: str, test: str) -> None:
    assert ROOT / test in find.tests_of(ROOT / path)


def test_every_module_has_tests() -> None:
    modules = [path for path in (ROOT / "purerl").rglob("*.py") if path.name != "__init__.py"]
    assert [path for path in modules if not find.tests_of(path)] == []


def test_prints_each_file_with_its_first_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert find.main("purerl/loop/window.py") == 0
    assert capsys.readouterr().out.startswith("property_tests/test_window.py  The supplier of groups: ")


def test_unknown_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert find.main("purerl/loop/windov.py") == 2
    assert find.main("windov") == 2
    expected = "purerl/algos/windov.py does not exist: give the path of a file, or the name of an algorithm\n"
    assert capsys.readouterr().err.endswith(expected)
