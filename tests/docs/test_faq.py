"""The page "Frequent questions": its metrics are documented, its settings are valid, its commands exist."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command

from purerl.composition import build_algorithm
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl_cli.main import app

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "faq.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", PAGE)
RECIPE = ["model=MODEL", "data=DATA"]
# Settings that need another one to be valid.
NEEDS = {
    "roles.reference.update_every=50": ["algorithm.kl_loss=0.01"],
    "roles.reference.update_mix=0.6": ["algorithm.kl_loss=0.01", "roles.reference.update_every=50"],
    "debug.profile_memory=true": ["debug.profile_steps=[3]"],
    "debug.memory_snapshot=true": ["debug.profile_steps=[3]"],
    "trainer.cpu_offload=true": ["trainer.mesh.shard=4"],
}
# Files and their keys, a prefix of metrics, and a modifier and a setting that are named without a value.
OTHER = {"failures.jsonl", "summary.json", "peak_device_memory", "time/", "kl_loss", "trainer.lr", "system"}
OTHER |= {
    "<think>",
    "enable_thinking",
    "{% generation %}",
    "per_device_train_batch_size",
    "ppo_micro_batch_size_per_gpu",
}


def _metrics() -> set[str]:
    return {name for name in CODE if re.fullmatch(r"(policy|reward|rollout|mismatch|advantage|eval)/\w+(/\w+)*", name)}


def _settings() -> list[str]:
    return sorted({text for text in CODE if re.match(r"[a-z_]+(\.\w+)*=", text)})


def test_every_metric_is_documented() -> None:
    assert len(_metrics()) > 20
    assert [name for name in _metrics() if f"`{name}`" not in METRICS] == []


@pytest.mark.parametrize("setting", _settings())
def test_every_setting_is_valid(setting: str) -> None:
    build_algorithm(resolve("gsm8k", [*RECIPE, *NEEDS.get(setting, ()), setting]).algorithm)


def test_a_setting_that_does_not_exist_is_found() -> None:
    with pytest.raises(ConfigError, match="trainer.warmup_step"):
        resolve("gsm8k", [*RECIPE, "trainer.warmup_step=0"])


def test_every_name_is_checked() -> None:
    """A name is a metric, a setting with its value, a command, or in a list of other names."""
    rest = {c for c in CODE if c not in _metrics() | {*_settings()} and not c.startswith(("purerl ", "--"))}
    assert rest <= OTHER


def test_options_exist() -> None:
    commands = get_command(app).commands
    with_options = [commands["eval"], commands["plan"], commands["data"].commands["inspect"]]
    named = [text for text in CODE if text.startswith(("purerl ", "--"))]
    options = {option for text in named for option in re.findall(r"--[\w-]+", text)}
    known = {option for command in with_options for parameter in command.params for option in parameter.opts}
    assert options
    assert options <= known
    assert {text.split()[1] for text in named if text.startswith("purerl ")} <= set(commands)
