"""The rule of temporary files: test_modules.py applies it to every module."""

from __future__ import annotations

from tests.library.temporary_rules import uses

FOUND = (
    "tempfile.mkdtemp()",
    "from tempfile import TemporaryDirectory",
    "Path(tempfile.gettempdir())",
    "tempfile.NamedTemporaryFile()",
    "open('/tmp/state')",
    "Path('/dev/shm')",
    "'cc -o /tmp/program'",
)
ALLOWED = ("tempfile.TemporaryFile()", "'/tmpfs'", "'the directory for temporary files'")


def test_uses_are_found() -> None:
    assert [code for code in FOUND if not [*uses(code)]] == []


def test_files_without_a_name_are_allowed() -> None:
    assert [code for code in ALLOWED if [*uses(code)]] == []
