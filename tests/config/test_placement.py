"""Settings of the placement: what they refuse, and how they are set by their keys."""

from __future__ import annotations

import pytest

from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, read_toml
from purerl.config.untrusted import imported_plugins
from purerl.errors import ConfigError
from purerl.placement.settings import Actors
from purerl.recipes.addition import addition
from purerl.runs import run_config

RAY = "placement.kind=ray"


def test_actors_are_set_by_their_keys_and_nothing_else_is_lost() -> None:
    config = run_config("addition", ["placement.timeout=60", RAY, "placement.roles.policy.count=2"])
    assert config.placement.timeout == 60
    assert config.placement.roles == {"policy": Actors(count=2)}
    changed = apply(apply(addition(), ["placement.timeout=60"]), [RAY, "placement.trainers.count=3"])
    assert (changed.placement.timeout, changed.placement.num_trainers) == (60, 3)


def test_a_configuration_is_read_as_it_was_written(tmp_path) -> None:
    config = apply(addition(), [RAY, "placement.trainers.gpus=0.5", "placement.generators.spread=true"])
    (tmp_path / "r.toml").write_text(dumps(config))
    assert read_toml(tmp_path / "r.toml", RunConfig) == config
    assert imported_plugins(config) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["placement.trainers.count=2"], 'placement.trainers has no effect[\\s\\S]*placement.kind = "ray"'),
        ([RAY, "placement.ranks=2"], "placement.ranks has no effect"),
        ([RAY, "placement.trainers.cout=2"], "did you mean 'count'"),
        ([RAY, "placement.trainers.gpus=1.5"], "an integer, or a number between 0 and 1"),
        (
            [RAY, "placement.roles.critic.count=1"],
            "placement.roles.critic has no effect",
        ),
        (["placement.kind=rya"], "one of: local, ray"),
    ],
)
def test_settings_without_effect_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(apply(addition(), settings))
