"""Input that is deep, long, or of another kind: a message in seconds, and no traceback."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.system.nesting import MAX_NESTING
from purerl_cli.main import app


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _check(result: Result, *texts: str) -> None:
    """Check that `result` is a message about invalid input that has these texts."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr, result.stderr


# --- nesting -------------------------------------------------------------------------------------------------------

TOO_DEEP = f"more than {MAX_NESTING} lists and"
DEEP_TOML = {
    "arrays": "a = " + "[" * 5000,
    "tables": "a = " + "{a = " * 5000,
    "names": "[" + "a." * 5000 + "a]",
    "closed arrays": "a = " + "[" * 200 + "]" * 200,
    "names of a key": "a." * 5000 + "a = 1",
}


@pytest.mark.parametrize("name", DEEP_TOML)
def test_nested_toml_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(DEEP_TOML[name])
    _check(_run("train", path, "--dry-run"), "run.toml' cannot be read", TOO_DEEP)
    _check(_run("config", path), TOO_DEEP)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("data.files=" + "[" * 5000, TOO_DEEP),
        ("rewards=" + "[{a = " * 2000, TOO_DEEP),
        ("a." * 5000 + "a=1", "got:  5,001 names"),
    ],
)
def test_nested_setting_is_refused(setting: str, text: str) -> None:
    _check(_run("train", "gsm8k", "--dry-run", "--set", setting), text)


def test_nested_table_of_an_option_is_refused() -> None:
    kind = '{kind = "format", a = ' + "[" * 5000
    _check(_run("eval", "model", "--data", "rows.jsonl", "--reward", kind), TOO_DEEP)


@pytest.mark.parametrize("row", ["[" * 5000, '{"prompt": ' + "[" * 5000, '{"prompt": "a", "x": ' + '{"a": ' * 5000])
def test_nested_row_is_refused(row: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(row)
    _check(_run("data", "inspect", tmp_path / "rows.jsonl"), "line 1 of", "got:")


# --- many keys -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("section", ["", "[trainer]\nkind = 'hf'", "[algorithm]\nkind = 'grpo'", "[rollout]", "[data]"])
def test_many_unknown_keys_are_refused_in_seconds(section: str, tmp_path: Path) -> None:
    keys = "".join(f"key_{number} = 1\n" for number in range(200_000))
    (tmp_path / "run.toml").write_text(f"{section}\n{keys}")
    start = time.process_time()
    result = _run("train", tmp_path / "run.toml", "--dry-run")
    seconds = time.process_time() - start
    _check(result, "the first 100 settings that purerl does not have", "key_0 = 1", "key_99 = 1")
    assert "key_100 = 1" not in result.stderr
    assert seconds < 5


# --- modules -------------------------------------------------------------------------------------------------------

MODULE = "import attrs\n@attrs.frozen\nclass Config:\n    pass\ndef algorithm(config=Config()):\n"
MODULES = {
    "None": ("    return None", "got:  None\n  need: an Algorithm from algorithm()"),
    "a number": ("    return 3", "got:  3\n"),
    "a tuple": ("    return (1, 2)", "got:  (1, 2)\n"),
    "another NamedTuple": (
        "    import typing\n    return typing.NamedTuple('A', [('reads', int)])(1)",
        "got:  A(reads=1)\n  need: an Algorithm",
    ),
    "a class": ("    return Config", "need: an Algorithm from algorithm()"),
    "objectives of another kind": (
        "    from purerl.algos import grpo\n    return grpo.algorithm()._replace(objectives=3)",
        "got:  the objective 3\n",
    ),
    "an objective of another kind": (
        "    from purerl.algos import grpo\n    return grpo.algorithm()._replace(objectives=(None,))",
        "got:  the objective None\n",
    ),
    "an exception": ("    return {}['a']", "cannot be built\n  got:  KeyError: 'a'\n"),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_without_an_algorithm_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, text = MODULES[name]
    file = tmp_path / f"algorithm_{[*MODULES].index(name)}_{abs(hash(str(tmp_path)))}.py"
    file.write_text(f"{MODULE}{body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for command in (("algo", "show", file), ("algo", "diff", "grpo", file)):
        _check(_run(*command), text)
