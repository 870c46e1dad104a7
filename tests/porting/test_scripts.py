"""Whole scripts and YAML files of TRL, and the TOML files that they become.

The files are beside this one, in trl/. `python -m tests.porting.test_scripts` writes the TOML files again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.config.tables import read_table
from purerl.porting.outcomes import FILL_IN
from purerl.porting.trl.importing import import_trl, translate_trl
from purerl_cli.main import app

FOLDER = Path(__file__).parent / "trl"
PROCESSES = {"grpo_vllm.yaml": 4}
SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".yaml"))


def _imported(source: Path) -> str:
    return import_trl(source.relative_to(Path.cwd()), processes=PROCESSES.get(source.name, 1))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_file_of_trl_becomes_a_toml_file(source: Path) -> None:
    assert _imported(source) == source.with_suffix(".toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_run_is_configured_by_the_toml_file(source: Path) -> None:
    """The value that only running the script of DPO would give is filled in here."""
    table = read_table(source.with_suffix(".toml"))
    if source.name == "dpo.py":
        assert table["trainer"].pop("lr") == FILL_IN
    else:
        assert FILL_IN not in source.with_suffix(".toml").read_text(encoding="utf-8")
    config = from_dict(RunConfig, table)
    assert config.seed == (7 if source.name == "grpo.py" else 42)


def test_every_setting_that_was_given_is_in_one_list() -> None:
    for source in SOURCES:
        found = translate_trl(source)
        lists = [found.translated.keys(), found.unneeded.keys(), found.missing.keys()]
        assert sum(map(len, lists)) == len(set().union(*lists)), source.name


def test_the_command_writes_a_file_and_never_replaces_one(tmp_path: Path) -> None:
    target = tmp_path / "run.toml"
    arguments = ["import", "trl", "tests/porting/trl/kto.py", "--output", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.stdout == f"{target}: check it with `purerl train {target} --dry-run`\n"
    assert target.read_text(encoding="utf-8") == (FOLDER / "kto.toml").read_text(encoding="utf-8")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert f"got:  '{target}', which exists" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tests/porting/trl/kto.toml"], "got:  the extension '.toml'"),
        (["tests/porting/trl/kto.py", "--trainer", "kto"], "--trainer has no effect"),
        (["no.py"], "'no.py' cannot be read"),
    ],
)
def test_the_command_refuses_what_it_cannot_read(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["import", "trl", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


if __name__ == "__main__":
    for each in SOURCES:
        each.with_suffix(".toml").write_text(_imported(each), encoding="utf-8")
