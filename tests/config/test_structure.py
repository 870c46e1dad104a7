"""Configurations as tables and TOML, and back; digests and differences."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.config.overrides import apply
from purerl.config.structure import digest, dumps, from_dict, read_toml, to_dict
from purerl.config.tables import differences
from purerl.errors import ConfigError
from tests.config.examples import Config, Nested, OutsideConfig, Section, Settings

HERE = "tests.config.examples"
SETTINGS = Settings(
    name="s",
    optional=Section(limit=2.0),
    engine=Config(lr=0.1),
    engines=(Config(lr=0.2), Nested.Config()),
    sections=(Section(), Section(size=4)),
    inner=Settings(name="i"),
)

_numbers = st.floats(allow_nan=False)
_sections = st.builds(
    Section,
    size=st.integers(-50, 50).map(lambda n: 2 * n),
    count=st.integers(1, 2**62),
    rate=st.floats(max_value=1.0, allow_nan=False),
    limit=st.none() | _numbers,
    enabled=st.booleans(),
    word=st.text(),
    mode=st.sampled_from(["fast", "slow", 3]),
    words=st.lists(st.text(), max_size=3).map(tuple),
    pair=st.tuples(st.integers(-(2**62), 2**62), _numbers),
)
_engines = st.none() | st.builds(Config, lr=_numbers) | st.builds(Nested.Config) | st.builds(OutsideConfig)
_settings = st.builds(
    Settings,
    name=st.text(),
    section=_sections,
    optional=st.none() | _sections,
    engine=_engines,
    engines=st.lists(st.builds(Config, lr=_numbers) | st.builds(Nested.Config), max_size=2).map(tuple),
    inner=st.none() | st.builds(Settings, name=st.text(), sections=st.tuples(_sections)),
)


# --- tables and TOML ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(_settings)
def test_tables_and_toml_give_the_same_configuration(config: Settings) -> None:
    assert from_dict(Settings, to_dict(config)) == config
    assert from_dict(Settings, tomllib.loads(dumps(config))) == config
    assert digest(from_dict(Settings, to_dict(config))) == digest(config)
    assert differences(to_dict(config), to_dict(config)) == []


def test_read_toml_reads_what_dumps_writes(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(dumps(SETTINGS), encoding="utf-8")
    assert read_toml(tmp_path / "settings.toml", Settings) == SETTINGS


def test_to_dict_has_only_plain_values() -> None:
    table = to_dict(SETTINGS)
    assert table["engine"] == {"kind": HERE, "lr": 0.1, "betas": [0.9, 0.99]}
    assert table["sections"][1]["size"] == 4
    assert [engine["kind"] for engine in table["engines"]] == [HERE, f"{HERE}:Nested"]
    assert "[[engines]]" in dumps(SETTINGS)
    assert table["inner"]["name"] == "i"
    assert {"limit", "engine", "inner"} & {*table["section"], *table["inner"]} == set(), "None is left out"


def test_an_integer_is_converted_to_a_declared_float() -> None:
    section = from_dict(Section, {"rate": 1, "limit": 2, "pair": [1, 2]})
    assert [type(value) for value in (section.rate, section.limit, *section.pair)] == [float, float, int, float]
    assert digest(Section(rate=1)) == digest(Section(rate=1.0))


def test_none_in_a_field_with_another_default_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^rate\n  got:  None in Section"):
        to_dict(evolve(Section(), rate=None))


# --- files, digests, differences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read\n  got:  [Errno 2] No such file or directory"),
        (b"name = ", "cannot be read\n  got:  Invalid value (at end of document)"),
        (b"name = '\xff'", "cannot be read\n  got:  'utf-8' codec can't decode"),
        (b"name = 'x'\n[section]\nsize = 'x'", '\nsection.size\n  got:  "x"\n  need: an integer'),
    ],
)
def test_errors_of_a_file_name_the_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_toml(path, Settings)
    assert str(error.value).startswith(repr(str(path)))
    assert message in str(error.value)


def test_digest_is_equal_in_every_process_and_differs_with_every_setting() -> None:
    code = f"from {HERE} import *; from purerl.config.structure import digest; print(digest(Settings(name='s')))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    changes = ("name=v", "section.enabled=true", "engine.lr=2", "engine=", "inner=")
    changed = [apply(SETTINGS, [change]) for change in changes]
    assert output.strip() == digest(Settings(name="s"))
    assert len({digest(config) for config in (SETTINGS, *changed)}) == 6


def test_differences_have_dotted_keys() -> None:
    changed = apply(SETTINGS, ["section.size=4", "optional.limit=", "inner.engine.kind=" + HERE])
    assert differences(to_dict(SETTINGS), to_dict(changed)) == [
        ("section.size", 2, 4),
        ("optional.limit", 2.0, None),
        ("inner.engine.kind", None, HERE),
        ("inner.engine.lr", None, 1e-3),
        ("inner.engine.betas", None, [0.9, 0.99]),
    ]
