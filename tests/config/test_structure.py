"""Configurations as tables and TOML, and back; settings; and what every mistake is told."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.config.structure import apply, differences, digest, dumps, from_dict, read_toml, to_dict
from purerl.errors import ConfigError
from tests.config.examples import Config, Nested, OutsideConfig, Part, Whole

HERE = "tests.config.examples"
WHOLE = Whole(
    name="w",
    other=Part(most=2.0),
    engine=Config(lr=0.1),
    engines=(Config(lr=0.2), Nested.Config()),
    parts=(Part(), Part(size=4)),
    before=Whole(name="b"),
)

INT, FLOAT = "\n  do:   write its digits alone, as 8", "\n  do:   write it as 0.5 or 1e-3, without quotes"
BOOL, LISTED = "\n  do:   write it without quotes", "\n  need: one that `purerl config` lists"

_numbers = st.floats(allow_nan=False)
_parts = st.builds(
    Part,
    size=st.integers(-50, 50).map(lambda n: 2 * n),
    count=st.integers(1, 2**62),
    rate=st.floats(max_value=1.0, allow_nan=False),
    most=st.none() | _numbers,
    on=st.booleans(),
    word=st.text(),
    mode=st.sampled_from(["fast", "slow", 3]),
    words=st.lists(st.text(), max_size=3).map(tuple),
    pair=st.tuples(st.integers(-(2**62), 2**62), _numbers),
)
_engines = st.none() | st.builds(Config, lr=_numbers) | st.builds(Nested.Config) | st.builds(OutsideConfig)
_wholes = st.builds(
    Whole,
    name=st.text(),
    part=_parts,
    other=st.none() | _parts,
    engine=_engines,
    engines=st.lists(st.builds(Config, lr=_numbers) | st.builds(Nested.Config), max_size=2).map(tuple),
    before=st.none() | st.builds(Whole, name=st.text(), parts=st.tuples(_parts)),
)


# --- there and back ----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(_wholes)
def test_a_table_and_toml_give_back_what_they_were_made_of(config: Whole) -> None:
    assert from_dict(Whole, to_dict(config)) == config
    assert from_dict(Whole, tomllib.loads(dumps(config))) == config
    assert digest(from_dict(Whole, to_dict(config))) == digest(config)
    assert differences(config, config) == []


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "whole.toml").write_text(dumps(WHOLE), encoding="utf-8")
    assert read_toml(tmp_path / "whole.toml", Whole) == WHOLE


def test_the_table_is_plain() -> None:
    table = to_dict(WHOLE)
    assert table["engine"] == {"kind": HERE, "lr": 0.1, "betas": [0.9, 0.99]}
    assert table["parts"][1]["size"] == 4
    assert [one["kind"] for one in table["engines"]] == [HERE, f"{HERE}:Nested"]
    assert "[[engines]]" in dumps(WHOLE)
    assert table["before"]["name"] == "b"
    assert {"most", "engine", "before"} & {*table["part"], *table["before"]} == set(), "None is left out"


def test_an_int_is_a_float_where_a_float_is_declared() -> None:
    part = from_dict(Part, {"rate": 1, "most": 2, "pair": [1, 2]})
    assert [type(value) for value in (part.rate, part.most, *part.pair)] == [float, float, int, float]
    assert digest(Part(rate=1)) == digest(Part(rate=1.0))


def test_a_none_that_toml_cannot_say_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^rate\n  got:  None in Part"):
        to_dict(evolve(Part(), rate=None))


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "changed"),
    [
        ([], WHOLE),
        (["name=x"], evolve(WHOLE, name="x")),
        (['name="x = 1"'], evolve(WHOLE, name="x = 1")),
        (["name=a=b"], evolve(WHOLE, name="a=b")),
        (["name=/data/1.parquet"], evolve(WHOLE, name="/data/1.parquet")),
        (["name=1\nother = 2"], evolve(WHOLE, name="1\nother = 2")),
        (["part.rate=1e-3", "part.on=true"], evolve(WHOLE, part=Part(rate=1e-3, on=True))),
        (["part.size=4", "part.size=6"], evolve(WHOLE, part=Part(size=6))),
        ([" part.size = 4 "], evolve(WHOLE, part=Part(size=4))),
        (["part.words=['a', 'b']"], evolve(WHOLE, part=Part(words=("a", "b")))),
        (["other.most="], evolve(WHOLE, other=Part())),
        (["other="], evolve(WHOLE, other=None)),
        (["other.size=4", "other="], evolve(WHOLE, other=Part(size=4))),
        (["part.size=6", "part={count = 4}"], evolve(WHOLE, part=Part(size=6, count=4))),
        (["part={size = 4}"], evolve(WHOLE, part=Part(size=4))),
        (["before.name=c"], evolve(WHOLE, before=Whole(name="c"))),
        (["before.other.size=4"], evolve(WHOLE, before=Whole(name="b", other=Part(size=4)))),
        (["before.before.name=c"], evolve(WHOLE, before=Whole(name="b", before=Whole(name="c")))),
        (["engine.lr=1"], evolve(WHOLE, engine=Config(lr=1.0))),
        ([f"engine.kind={HERE}"], WHOLE),
        ([f"engine.kind={HERE}:Nested"], evolve(WHOLE, engine=Nested.Config())),
        (["engine.slots=1", f"engine.kind={HERE}:Outside"], evolve(WHOLE, engine=OutsideConfig(slots=1))),
        ([f"before.engine.kind={HERE}"], evolve(WHOLE, before=Whole(name="b", engine=Config()))),
        (["engine="], evolve(WHOLE, engine=None)),
        ([f'engines=["{HERE}"]'], evolve(WHOLE, engines=(Config(),))),
        ([f'engines=[{{kind="{HERE}", lr=1}}]'], evolve(WHOLE, engines=(Config(lr=1.0),))),
        (["engines="], evolve(WHOLE, engines=())),
    ],
)
def test_a_setting_changes_what_it_names_and_nothing_else(made: list[str], changed: Whole) -> None:
    assert apply(WHOLE, made) == changed


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("part.rate=true", f"part.rate\n  got:  true\n  need: a number{FLOAT}"),
        ("part.size=8.7", f"part.size\n  got:  8.7\n  need: a whole number{INT}"),
        ("part.size=8.0", f"part.size\n  got:  8.0\n  need: a whole number{INT}"),
        ("part.size=true", f"part.size\n  got:  true\n  need: a whole number{INT}"),
        ("part.size='1'", f'part.size\n  got:  "1"\n  need: a whole number{INT}'),
        ("part.size=many", f'part.size\n  got:  "many"\n  need: a whole number{INT}'),
        ("part.on=1", f"part.on\n  got:  1\n  need: true or false{BOOL}"),
        ("part.on=yes", f'part.on\n  got:  "yes"\n  need: true or false{BOOL}'),
        ("part.word=1", "part.word\n  got:  1\n  need: a text\n  do:   put it in quotes"),
        ("part.word=2026-11-20", 'part.word\n  got:  "2026-11-20"\n  need: a text\n  do:   put it in quotes'),
        ("part.most=much", f'part.most\n  got:  "much"\n  need: a number{FLOAT}'),
        ("part.mode=quick", 'part.mode\n  got:  "quick"\n  need: one of: fast, slow, 3'),
        ("part.mode=3.0", "part.mode\n  got:  3.0\n  need: one of: fast, slow, 3"),
        ("part.words=abc", 'part.words\n  got:  "abc"\n  need: a list, in square brackets'),
        ("part.words=['a', 1]", "part.words\n  got:  1\n  need: a text\n  do:   put it in quotes"),
        ("part.pair=[1]", "part.pair\n  got:  [1]\n  need: a list of 2"),
        ("part.pair=[1.5, 1]", f"part.pair\n  got:  1.5\n  need: a whole number{INT}"),
        ("part=3", "part\n  got:  3\n  need: a section: keys and values"),
        ("part.size.x=3", "part.size.x\n  got:  part.size is 2\n  need: a section"),
        ("part.sise=3", f"part.sise\n  got:  no such setting{LISTED}\n  do:   did you mean 'size'?"),
        ("prat.size=4", f"prat\n  got:  no such setting{LISTED}\n  do:   did you mean 'part'?"),
        ("prat=", f"prat\n  got:  no such setting{LISTED}\n  do:   did you mean 'part'?"),
        ("name=", "name is missing\n  need: how it is called"),
        ("before.before.part.on=true", "before.before.name is missing\n  need: how it is called"),
        ("part.size=3", "part.size\n  got:  3\n  need: an even number"),
        ("part.count=0", "part\n  got:  'count' must be >= 1: 0"),
        ("part.rate=2", "part: a rate over 1 is none\n  got:  2.0"),
        ("before.part.size=3", "before.part.size\n  got:  3\n  need: an even number"),
        ("parts=[{size = 3}]", "parts.size\n  got:  3\n  need: an even number"),
        ("engine.learning_rate=1", f"engine.learning_rate\n  got:  no such setting{LISTED}\n  do:   one of: betas, lr"),
        (f"engine.kind={HERE}:Missing", f"engine.kind: nothing is found at '{HERE}:Missing'\n..."),
        ("before.engine.lr=1", 'before.engine.kind is missing\n  got:  {"lr": 1}\n  need: one of: ...'),
        ("engines=hf", 'engines\n  got:  "hf"\n  need: a list of sections, each with its kind'),
        ("engines=['nowhere.at_all']", "engines.kind: nothing is found at 'nowhere.at_all'\n..."),
        ("engines=[{lr = 1}]", 'engines.kind is missing\n  got:  {"lr": 1}\n  need: one of: ...'),
        (f"engines=[{{kind = '{HERE}', x=1}}]", f"engines.x\n  got:  no such setting{LISTED}\n  do:   one of: b..."),
        ("engine=hf", 'engine.kind is missing\n  got:  "hf"\n  need: one of: ...'),
        ("=1", "setting '=1'\n  need: key=value, such as trainer.lr=1e-3"),
        ("part..size=1", "setting 'part..size=1'\n  need: key=value, such as trainer.lr=1e-3"),
        ("part.size", "setting 'part.size'\n  need: key=value, such as trainer.lr=1e-3"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_dotted_key(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply(WHOLE, [setting])
    found, (told, more, _) = str(error.value), message.partition("...")
    assert found.startswith(told) if more else found == told


@pytest.mark.parametrize("settings", [["part=x", "part.size=4"], ["part.size=4", "part=x"]])
def test_a_text_is_no_section_that_has_no_text_of_its_own(settings: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^part\n  got:  \"x\" and {\"size\": 4}\n  need: a section"):
        apply(WHOLE, settings)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        apply(WHOLE, ["part.rate=x", "part.sise=1", "before.part.size=3", "engine.lr=true"])
    keys = [line for line in str(error.value).splitlines() if not line.startswith(" ")]
    assert sorted(keys) == ["before.part.size", "engine.lr", "part.rate", "part.sise"]


# --- files, hashes, differences ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read\n  got:  [Errno 2] No such file or directory"),
        (b"name = ", "cannot be read\n  got:  Invalid value (at end of document)"),
        (b"name = '\xff'", "cannot be read\n  got:  'utf-8' codec can't decode"),
        (b"name = 'x'\n[part]\nsize = 'x'", '\npart.size\n  got:  "x"\n  need: a whole number'),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "some.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_toml(path, Whole)
    assert str(error.value).startswith(repr(str(path)))
    assert message in str(error.value)


def test_the_digest_is_the_same_in_another_process_and_differs_with_every_setting() -> None:
    code = f"from {HERE} import *; from purerl.config.structure import digest; print(digest(Whole(name='w')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = [apply(WHOLE, [setting]) for setting in ("name=v", "part.on=true", "engine.lr=2", "engine=", "before=")]
    assert done.stdout.strip() == digest(Whole(name="w"))
    assert len({digest(config) for config in (WHOLE, *others)}) == 6


def test_differences_are_named_by_their_dotted_keys() -> None:
    other = apply(WHOLE, ["part.size=4", "other.most=", "before.engine.kind=" + HERE])
    assert differences(WHOLE, other) == [
        ("part.size", 2, 4),
        ("other.most", 2.0, None),
        ("before.engine.kind", None, HERE),
        ("before.engine.lr", None, 1e-3),
        ("before.engine.betas", None, [0.9, 0.99]),
    ]
