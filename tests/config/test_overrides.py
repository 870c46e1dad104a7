"""Settings written as ``key=value``: what they change, and the error for each mistake."""

from __future__ import annotations

from operator import attrgetter

import pytest
from attrs import evolve

from purerl.config.overrides import apply
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from tests.config.examples import Config, Nested, OutsideConfig, Section, Settings
from tests.config.test_structure import HERE, SETTINGS

INT, FLOAT = "\n  do:   write only its digits, as 8", "\n  do:   write it as 0.5 or 1e-3, without quotes"
BOOL, LISTED = "\n  do:   write it without quotes", "\n  need: one that `purerl config` lists"
QUOTES = "\n  do:   put it in quotes"
SYNTAX = "\n  need: key=value, such as trainer.lr=1e-3"


@pytest.mark.parametrize(
    ("setting", "replaced", "value"),
    [
        ("num_epochs=2", "max_steps", None),
        ("minibatch_size=32", "num_minibatches", None),
        ("trainer.warmup_steps=3", "trainer.warmup_ratio", None),
        ("trainer.warmup_steps=0", "trainer.warmup_ratio", None),
        ("trainer.warmup_steps=", "trainer.warmup_ratio", 1 / 16),
    ],
)
def test_setting_replaces_its_alternative(setting: str, replaced: str, value: float | None) -> None:
    assert attrgetter(replaced)(apply(addition(), [setting])) == value


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ([], SETTINGS),
        (["name=x"], evolve(SETTINGS, name="x")),
        (['name="x = 1"'], evolve(SETTINGS, name="x = 1")),
        (["name=a=b"], evolve(SETTINGS, name="a=b")),
        (["name=/data/1.parquet"], evolve(SETTINGS, name="/data/1.parquet")),
        (["name=1\nother = 2"], evolve(SETTINGS, name="1\nother = 2")),
        (["section.rate=1e-3", "section.enabled=true"], evolve(SETTINGS, section=Section(rate=1e-3, enabled=True))),
        (["section.size=4", "section.size=6"], evolve(SETTINGS, section=Section(size=6))),
        ([" section.size = 4 "], evolve(SETTINGS, section=Section(size=4))),
        (["section.words=['a', 'b']"], evolve(SETTINGS, section=Section(words=("a", "b")))),
        (["optional.limit="], evolve(SETTINGS, optional=Section())),
        (["optional="], evolve(SETTINGS, optional=None)),
        (["optional.size=4", "optional="], evolve(SETTINGS, optional=Section(size=4))),
        (["section.size=6", "section={count = 4}"], evolve(SETTINGS, section=Section(size=6, count=4))),
        (["section={size = 4}"], evolve(SETTINGS, section=Section(size=4))),
        (["inner.name=c"], evolve(SETTINGS, inner=Settings(name="c"))),
        (["inner.optional.size=4"], evolve(SETTINGS, inner=Settings(name="i", optional=Section(size=4)))),
        (["inner.inner.name=c"], evolve(SETTINGS, inner=Settings(name="i", inner=Settings(name="c")))),
        (["engine.lr=1"], evolve(SETTINGS, engine=Config(lr=1.0))),
        ([f"engine.kind={HERE}"], SETTINGS),
        ([f"engine.kind={HERE}:Nested"], evolve(SETTINGS, engine=Nested.Config())),
        (["engine.slots=1", f"engine.kind={HERE}:Outside"], evolve(SETTINGS, engine=OutsideConfig(slots=1))),
        ([f"inner.engine.kind={HERE}"], evolve(SETTINGS, inner=Settings(name="i", engine=Config()))),
        (["engine="], evolve(SETTINGS, engine=None)),
        ([f'engines=["{HERE}"]'], evolve(SETTINGS, engines=(Config(),))),
        ([f'engines=[{{kind="{HERE}", lr=1}}]'], evolve(SETTINGS, engines=(Config(lr=1.0),))),
        (["engines="], evolve(SETTINGS, engines=())),
    ],
)
def test_apply_changes_only_the_settings_that_are_named(settings: list[str], changed: Settings) -> None:
    assert apply(SETTINGS, settings) == changed


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("section.rate=true", f"section.rate\n  got:  true\n  need: a number{FLOAT}"),
        ("section.size=8.7", f"section.size\n  got:  8.7\n  need: an integer{INT}"),
        ("section.size=8.0", f"section.size\n  got:  8.0\n  need: an integer{INT}"),
        ("section.size=true", f"section.size\n  got:  true\n  need: an integer{INT}"),
        ("section.size='1'", f'section.size\n  got:  "1"\n  need: an integer{INT}'),
        ("section.size=many", f'section.size\n  got:  "many"\n  need: an integer{INT}'),
        ("section.enabled=1", f"section.enabled\n  got:  1\n  need: true or false{BOOL}"),
        ("section.enabled=yes", f'section.enabled\n  got:  "yes"\n  need: true or false{BOOL}'),
        ("section.word=1", f"section.word\n  got:  1\n  need: a string{QUOTES}"),
        ("section.word=2026-11-20", f'section.word\n  got:  "2026-11-20"\n  need: a string{QUOTES}'),
        ("section.limit=much", f'section.limit\n  got:  "much"\n  need: a number{FLOAT}'),
        ("section.mode=quick", 'section.mode\n  got:  "quick"\n  need: one of: fast, slow, 3'),
        ("section.mode=3.0", "section.mode\n  got:  3.0\n  need: one of: fast, slow, 3"),
        ("section.words=abc", 'section.words\n  got:  "abc"\n  need: a list, in square brackets'),
        ("section.words=['a', 1]", f"section.words\n  got:  1\n  need: a string{QUOTES}"),
        ("section.pair=[1]", "section.pair\n  got:  [1]\n  need: a list of 2"),
        ("section.pair=[1.5, 1]", f"section.pair\n  got:  1.5\n  need: an integer{INT}"),
        ("section=3", "section\n  got:  3\n  need: a section: keys and values"),
        ("section.size.x=3", "section.size.x\n  got:  section.size is 2\n  need: a section"),
        ("section.sise=3", f"section.sise\n  got:  no such setting{LISTED}\n  do:   did you mean 'size'?"),
        ("section.inner.size=3", f"section.inner.size\n  got:  no such setting{LISTED}\n  do:   one of: count, e..."),
        ("section.inner={}", f"section.inner\n  got:  no such setting{LISTED}\n  do:   one of: count, enable..."),
        ("inned.size=4", f"inned.size\n  got:  no such setting{LISTED}\n  do:   did you mean 'inner'?"),
        ("inned=", f"inned\n  got:  no such setting{LISTED}\n  do:   did you mean 'inner'?"),
        ("name=", "name is missing\n  need: its name"),
        ("inner.inner.section.enabled=true", "inner.inner.name is missing\n  need: its name"),
        ("section.size=3", "section.size\n  got:  3\n  need: an even number"),
        ("section.count=0", "section\n  got:  'count' must be >= 1: 0"),
        ("section.rate=2", "section: sizes do not fit\n  got:  2.0"),
        ("inner.section.size=3", "inner.section.size\n  got:  3\n  need: an even number"),
        ("sections=[{size = 3}]", "sections.size\n  got:  3\n  need: an even number"),
        ("engine.learning_rate=1", f"engine.learning_rate\n  got:  no such setting{LISTED}\n  do:   TRL's 'l..."),
        ("engine.step_size=1", f"engine.step_size\n  got:  no such setting{LISTED}\n  do:   one of: betas, lr"),
        (f"engine.kind={HERE}:Missing", f"engine.kind: cannot find '{HERE}:Missing'\n..."),
        ("inner.engine.lr=1", 'inner.engine.kind is missing\n  got:  {"lr": 1}\n  need: one of: ...'),
        ("engines=hf", 'engines\n  got:  "hf"\n  need: a list of sections, each with its kind'),
        ("engines=['nowhere.at_all']", "engines.kind: cannot find 'nowhere.at_all'\n..."),
        ("engines=[{lr = 1}]", 'engines.kind is missing\n  got:  {"lr": 1}\n  need: one of: ...'),
        (f"engines=[{{kind = '{HERE}', x=1}}]", f"engines.x\n  got:  no such setting{LISTED}\n  do:   one of: b..."),
        ("engine.kind=", "engine.kind is missing\n  got:  {}\n  need: one of: ..."),
        ("engine=3", 'engine.kind is missing\n  got:  3\n  need: one of: ...'),
        ("=1", f"setting '=1'{SYNTAX}"),
        ("section..size=1", f"setting 'section..size=1'{SYNTAX}"),
        ("section.size", f"setting 'section.size'{SYNTAX}"),
    ],
)  # fmt: skip
def test_errors_name_the_dotted_key(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply(SETTINGS, [setting])
    start, is_start, _ = message.partition("...")
    assert str(error.value).startswith(start) if is_start else str(error.value) == start


@pytest.mark.parametrize("settings", [["section=x", "section.size=4"], ["section.size=4", "section=x"]])
def test_a_string_is_refused_for_a_section_without_short_form(settings: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^section\n  got:  \"x\" and {\"size\": 4}\n  need: a section"):
        apply(SETTINGS, settings)


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(ConfigError) as error:
        apply(SETTINGS, ["section.rate=x", "section.sise=1", "inner.section.size=3", "engine.lr=true"])
    keys = [line for line in str(error.value).splitlines() if not line.startswith(" ")]
    assert sorted(keys) == ["engine.lr", "inner.section.size", "section.rate", "section.sise"]
