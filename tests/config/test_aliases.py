"""Tables of names in TRL, in verl and in earlier versions of purerl, and the remedies that are made from them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from purerl.algos.modifiers import kl_loss
from purerl.composition import with_modifiers
from purerl.config.aliases import LIBRARIES, Library, Row, read_library, read_renamed
from purerl.config.check import check
from purerl.config.presets import presets
from purerl.config.suggestions import suggestion
from purerl.data.columns import detect_formats
from purerl.errors import ConfigError
from purerl.plugins import find, names
from purerl.recipes import resolve
from tests.config.known_settings import has, is_setting, problems

METRICS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
FORMATS = {"text": pa.string(), "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))}


# --- our side: every setting exists ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIBRARIES)
def test_settings_in_the_tables_of_other_libraries_exist(name: str) -> None:
    """Values of a row hold together, and plain names alone."""
    rows = [row for row in read_library(name).rows if row.kind != "metric"]
    together = {(row.names, row.settings if "=" in one else (one,)) for row in rows for one in row.settings}
    wrong = {names: found for names, settings in together if (found := problems(settings))}
    assert wrong == {}


@pytest.mark.parametrize("name", LIBRARIES)
def test_metrics_in_the_tables_of_other_libraries_are_documented(name: str) -> None:
    documented = set(re.findall("`(.+?)`", METRICS.read_text(encoding="utf-8")))
    metrics = [metric for row in read_library(name).rows if row.kind == "metric" for metric in row.settings]
    assert len(metrics) > 15
    # A term of a loss is documented by the general name of its kind, and a metric of the critic by that of the policy.
    plain = [re.sub("^critic/", "policy/", re.sub("/loss/.*", "/loss/<term>", metric)) for metric in metrics]
    assert [metric for metric in plain if metric not in documented] == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_exact_settings_are_a_preset_of_the_library_with_the_algorithm_of_the_row(name: str) -> None:
    for row in [row for row in read_library(name).rows if row.exact]:
        assert problems(row.exact) == []
        key, _, kind = row.exact[0].partition("=")
        preset = presets()[kind]
        assert (key, preset.library) == ("algorithm.kind", read_library(name).name), row
        assert row.settings[0].removeprefix("algorithm.kind=") in (preset.algorithm["kind"], kind.partition("@")[0])


@pytest.mark.parametrize("name", LIBRARIES)
def test_presets_of_a_library_are_in_its_table(name: str) -> None:
    library = read_library(name)
    shown = {row.exact[0].partition("=")[2] for row in library.rows if row.exact}
    assert {preset.name for preset in presets().values() if preset.library == library.name} == shown


def test_settings_in_the_table_of_old_names_exist() -> None:
    new = [(old, new) for old, settings in read_renamed().items() for new in settings if "/" not in old]
    assert [(old, setting) for old, setting in new if not is_setting(setting)] == []


@pytest.mark.parametrize(
    "settings",
    [
        ("rollout.sample",),
        ("roles.critic.trainer.kindd",),
        ("algorithm.kind=gropo",),
        ("rollout.max_resample_rounds=x",),
        ("algorithm.epsilon",),
        ("algorithm.kl_loss.epsilon",),
        ("algorithm.kl_loss=many",),
        ("model.path.length",),
    ],
)
def test_a_setting_that_does_not_exist_is_reported(settings: tuple[str, ...]) -> None:
    assert problems(settings)


@attrs.frozen
class _Section:
    engine: Any = attrs.field(metadata={"plugin": "trainer"})
    size: int = 1


@attrs.frozen
class _Config:
    table: Mapping[str, _Section]
    optional: _Section | None = None


def test_settings_in_mappings_and_plugins_are_found() -> None:
    for key in ("table.policy.size", "table.policy.engine.lr", "table.policy.engine.kind", "optional.size"):
        assert has(_Config, key.split(".")), key
    for key in ("table.policy.length", "table.policy.engine.length", "optional.engine.kind.lr", "size"):
        assert not has(_Config, key.split(".")), key


# --- their side: no name hides a setting -------------------------------------------------------------------------


def _old_and_foreign_names() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, the settings that replace it): long forms too, without values."""
    yield from read_renamed().items()
    for library in map(read_library, LIBRARIES):
        for row in library.rows:
            for name in _forms(library, row) if row.kind == "setting" else ():
                yield name, row.settings


def _forms(library: Library, row: Row) -> Iterator[str]:
    for text in row.names:
        name = text.partition("=")[0]
        first, dot, rest = name.partition(".")
        yield from dict.fromkeys([name, library.prefixes.get(first, first) + dot + rest])


def test_a_name_that_is_a_setting_replaces_itself() -> None:
    settings = [each for each in dict.fromkeys(_old_and_foreign_names()) if is_setting(each[0])]
    assert settings
    assert [each for each in settings if each[1] != (each[0],) or suggestion(each[0]) is not None] == []


def test_new_names_of_metrics_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    new = {metric for old, metrics in read_renamed().items() if "/" in old for metric in metrics}
    terms = {metric for metric in new if "/loss/" in metric}
    assert "policy/approx_kl" in new
    assert [metric for metric in new - terms if f"`{metric}`" not in page] == []
    assert terms <= {f"policy/loss/{term}" for kind in names("algorithm") for term in _loss_terms(kind)}


def _loss_terms(kind: str) -> set[str]:
    """The names of the policy's loss terms of an algorithm, including the KL term if it can have one."""
    algorithm = find("algorithm", kind).algorithm()
    with suppress(ConfigError):
        algorithm = with_modifiers(algorithm, kl_loss.Config())
    return {term.name for objective in algorithm.objectives if objective.role == "policy" for term in objective.terms}


# --- remedies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("examples", "it is called 'batch_size' here (it was 'examples')"),
        ("steps", "it is called 'max_steps' or 'num_epochs' here (it was 'steps')"),
        ("rollout.lag", "it is called 'rollout.max_staleness' here (it was 'rollout.lag')"),
        ("initial_run.steps", "it is called 'max_steps' or 'num_epochs' here (it was 'steps')"),
        ("clip_norm", "it is called 'trainer.max_grad_norm' here (it was 'trainer.clip_norm')"),
        ("policy/kl", "it is called 'policy/approx_kl' here (it was 'policy/kl')"),
        ("learning_rate", "TRL's 'learning_rate' is 'trainer.lr' here"),
        ("trainer.learning_rate", "TRL's 'learning_rate' is 'trainer.lr' here"),
        ("epsilon", "TRL's 'epsilon' is 'algorithm.clip_low' and 'algorithm.clip_high' here"),
        ("beta", "TRL's 'beta' is 'algorithm.kl_loss' (GRPO) or 'algorithm.beta' (DPO) here"),
        ("loss_type", "TRL's 'loss_type' is 'algorithm.kind' here"),
        ("bf16", "TRL's 'bf16' is 'trainer.mixed_precision=bfloat16' here"),
        ("rollout.n", "verl's 'rollout.n' is 'rollout.samples_per_prompt' here"),
        ("actor_rollout_ref.rollout.n", "verl's 'rollout.n' is 'rollout.samples_per_prompt' here"),
        ("my.actor.optim.lr_warmup_steps", "verl's 'actor.optim.lr_warmup_steps' is 'trainer.warmup_steps' here"),
        ("trainer.max_steps", "it is called 'max_steps' here"),
        ("algorithm.kl_loss_coef", "it is called 'algorithm.kl_loss' here (it was 'algorithm.kl_loss_coef')"),
        ("entropy_coef", "TRL's 'entropy_coef' is 'algorithm.entropy_bonus' here"),
        ("delta", "TRL's 'delta' is 'algorithm.dual_clip' here"),
        ("actor.loss_agg_mode", "verl's 'actor.loss_agg_mode' is 'algorithm.reduction' here"),
        ("actor.kl_loss_type", "verl's 'actor.kl_loss_type' is 'algorithm.kl_loss.estimator' here"),
    ],
)
def test_suggestion_names_the_setting(key: str, remedy: str) -> None:
    assert suggestion(key) == remedy


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("max_steps", "it is a setting with the same name"),
        ("actor.optim.learning_rates", "names are compared exactly"),
        ("Learning_Rate", "names are compared exactly"),
        ("rollout", "a section is no name in the tables"),
        ("generation.n", "n is the last part of two names with different settings"),
        ("data.path", "path is the last part of two names with different settings"),
        ("evaluate.steps", "an old name without a dot is matched as a whole"),
        ("gsm8k", "it is a function"),
        ("RLOOTrainer", "it is a class"),
        ("", "it is empty"),
        (".", "it is empty"),
    ],
)
def test_suggestion_is_none(key: str, reason: str) -> None:
    assert suggestion(key) is None, reason


def test_every_name_has_a_suggestion_or_keeps_its_name() -> None:
    names_without = [name for name, settings in _old_and_foreign_names() if suggestion(name) is None]
    assert [name for name in names_without if (name, (name,)) not in set(_old_and_foreign_names())] == []


@pytest.mark.parametrize(
    ("setting", "name", "line"),
    [
        ("learning_rate=1e-3", "TRL's 'learning_rate'", "trainer.lr = 0.001"),
        ("num_generations=8", "TRL's 'num_generations'", "rollout.samples_per_prompt = 8"),
        ("rollout.n=4", "verl's 'rollout.n'", "rollout.samples_per_prompt = 4"),
        ("actor_rollout_ref.rollout.n=4", "verl's 'rollout.n'", "rollout.samples_per_prompt = 4"),
        ("trainer.total_epochs=1", "verl's 'trainer.total_epochs'", "num_epochs = 1.0"),
        ("algorithm.kl_loss_coef=1", "", "algorithm.kl_loss = 1"),
        ("algorithm.kl_reward_coef=1", "", "algorithm.kl_reward = 1"),
        ("critic.lr=1e-3", "", "roles.critic.trainer.lr = 0.001"),
        ("judging.workers=2", "", "reward_workers.num_workers = 2"),
        ("trainer.clip_norm=1", "", "trainer.max_grad_norm = 1"),
    ],
)
def test_other_names_of_settings_are_refused_with_the_line_to_write(setting: str, name: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve("addition", [setting])
    key, target = setting.partition("=")[0], line.partition(" = ")[0]
    remedy = f"{name} is {target!r} here: write {line}"
    if not name:
        remedy = f"it is called {target!r} here: write {line} (it was {key!r})"
    need = "one that `purerl config` lists"
    assert str(error.value) == f"{key}\n  got:  no such setting\n  need: {need}\n  do:   {remedy}"


@pytest.mark.parametrize("old", [old for old in read_renamed() if "/" in old and not old.startswith("eval/")])
def test_old_names_of_metrics_are_refused_in_stop_when(old: str) -> None:
    config = resolve("addition", [f"stop_when.metric={old}", "stop_when.at_least=1"])
    with pytest.raises(ConfigError, match=rf"^stop_when.metric\n  got:  {old}\n.*\n  do:   it is called '"):
        check(config)


def test_importing_the_tables_loads_neither_torch_nor_the_files() -> None:
    code = """
import sys
from purerl.config import aliases, suggestions
assert aliases.read_library.cache_info().currsize == aliases.read_renamed.cache_info().currsize == 0
print(suggestions.suggestion("examples") is not None, "torch" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "True False\n"


# --- data sets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "prompt_format"),
    [(dataset, each) for name in LIBRARIES for dataset in read_library(name).datasets for each in dataset.formats],
)
def test_data_sets_are_read_for_their_purpose(dataset: Any, prompt_format: str) -> None:
    types = dict.fromkeys(dataset.columns, FORMATS[prompt_format])
    types |= {"label": pa.bool_()} if "label" in types else {}
    schema = pa.schema([*types.items()])
    assert dataset.example_type in [layout.example_type for layout in detect_formats(schema)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_tables_are_complete(name: str) -> None:
    library = read_library(name)
    assert len(library.rows) > 40
    assert len(library.datasets) >= 2
    assert [row for row in library.rows if not row.names or not row.settings] == []
    assert len({(row.section, row.names, row.requires) for row in library.rows}) == len(library.rows)
