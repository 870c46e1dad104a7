"""CHANGELOG.md, and the fragments in changes/ from which towncrier writes it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import purerl

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
KINDS = [kind["directory"] for kind in TOWNCRIER["type"]]
WIDTH, MAX_LINES = 120, 120
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[\w-]+)?\)")


def _section(version: str) -> list[str]:
    return re.split(r"^(?=## )", CHANGELOG.partition(f"## {version}")[2], flags=re.MULTILINE)[0].strip().splitlines()


def _problems(name: str, text: str) -> list[str]:
    """The rules that a fragment breaks."""
    lines = text.splitlines()
    rules = {
        "name": re.fullmatch(rf"\+[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md", name),
        "width": all(len(line) <= WIDTH for line in lines),
        "length": 1 <= len(lines) <= 4,
        "bullet": not text.startswith(("-", "*", " ")),
        "link": LINK.search(text) and all((ROOT / target).is_file() for target in LINK.findall(text)),
    }
    return [rule for rule, holds in rules.items() if not holds]


def test_the_changelog_starts_with_the_current_version() -> None:
    assert re.findall(r"^## (\S+)", CHANGELOG, re.MULTILINE)[0] == purerl.__version__


def test_the_section_of_the_current_version_is_short_and_each_entry_has_a_link() -> None:
    lines = _section(purerl.__version__)
    assert len(lines) + 1 <= MAX_LINES
    assert [line for line in lines if len(line) > WIDTH] == []
    kinds = re.findall(r"^### (.+)$", "\n".join(lines), re.MULTILINE)
    assert kinds == [kind["name"] for kind in TOWNCRIER["type"] if kind["name"] in kinds]
    entries = re.split(r"^- ", "\n".join(lines), flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if not LINK.search(entry)] == []


def test_fragments_have_a_name_a_kind_a_link_and_short_lines() -> None:
    fragments = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "changes").glob("[!.]*")}
    assert {name: _problems(name, text) for name, text in fragments.items() if _problems(name, text)} == {}


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        ("+replay-images.new.md", "It reads images: [replay](docs/how-to/replay.md).\n", []),
        ("replay.new.md", "It reads images: [replay](docs/how-to/replay.md).\n", ["name"]),
        ("+replay.better.md", "It reads images: [replay](docs/how-to/replay.md).\n", ["name"]),
        ("+replay.new.md", "- It reads images: [replay](replay.md).\n", ["bullet", "link"]),
        ("+replay.new.md", f"It reads {'many ' * 30} images.\n", ["width", "link"]),
        ("+replay.new.md", "", ["length", "link"]),
    ],
)
def test_rules_of_a_fragment(name: str, text: str, problems: list[str]) -> None:
    assert _problems(name, text) == problems


def test_contributing_describes_every_kind() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("### Describe a change")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == KINDS
    [(name, fragment)] = re.findall(r"`changes/(\+[\w.-]+)`:\n\n    (.+\n)", section)
    assert _problems(name, fragment) == []


def test_towncrier_writes_a_section_in_the_form_of_the_changelog(tmp_path: Path) -> None:
    pytest.importorskip("towncrier", reason="towncrier is not installed: pip install -e '.[dev]'")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "+b.new.md").write_text("It reads images:\n[replay](docs/how-to/replay.md).\n")
    (tmp_path / "changes" / "+a.renamed.md").write_text("`a` is `b`: [replay](docs/how-to/replay.md).\n")
    command = [sys.executable, "-m", "towncrier", "build", "--keep", "--version", "9.9.9", "--date", "2030-01-01"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    written = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    assert written == CHANGELOG.replace(
        "<!-- changes -->\n",
        "<!-- changes -->\n\n## 9.9.9 (2030-01-01)\n\n### Renamed\n\n- `a` is `b`: [replay](docs/how-to/replay.md).\n\n"
        "### New\n\n- It reads images:\n  [replay](docs/how-to/replay.md).\n\n",
    )
