"""Servers of policy and judges: which of them a run knows as its own, and which ones it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.hf import generator as hf
from purerl.backends.serving.lease import new_owner
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.vllm import generator as vllm
from purerl.config.check import check
from purerl.config.paths import resolve_judges, resolve_paths
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError, EngineError
from purerl.opening.engines import check_running
from purerl.placement.settings import Actors, Placement
from purerl.recipes.addition import addition
from purerl.rewards.judges.settings import Judge
from purerl.rewards.settings import Reward

FIRST, SECOND = "http://host:1", "http://host:2"


def generator(*urls: str, **settings: Any) -> vllm.Config:
    return vllm.Config(server=ServerSettings(urls=urls), **settings)


def config_of(policy: Any, **judges: Any) -> RunConfig:
    roles = {name: Role(model="m", judge=Judge(), generator=own) for name, own in judges.items()}
    rewards = tuple(Reward(role=name) for name in judges)
    return evolve(addition(), generator=policy, rewards=rewards, roles={"rewards": roles})


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (config_of(generator(FIRST), a=generator(FIRST)), "roles.rewards.a.generator.server.urls"),
        (config_of(generator(FIRST), a=generator(SECOND, FIRST + "/")), "roles.rewards.a.generator.server.urls"),
        (config_of(hf.Config(), a=generator(FIRST), b=generator(FIRST)), "roles.rewards.b.generator.server.urls"),
    ],
)
def test_a_server_of_two_generators_is_refused(config: RunConfig, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(key)}\n  got:  {FIRST}\n  need: a server of its own"):
        check(config)


def test_judges_may_have_servers_of_their_own() -> None:
    check(config_of(generator(FIRST), a=generator(SECOND)))
    check(config_of(hf.Config(), a=None, b=generator(FIRST), c=generator(SECOND)))


def test_several_actors_of_a_judge_cannot_use_the_same_servers() -> None:
    config = config_of(hf.Config(), a=generator(FIRST))
    placement = Placement(kind="ray", generators=Actors(count=2))
    with pytest.raises(ConfigError, match=r"generators.count\n  got:  2\n  need: .* roles.rewards.a.generator.server"):
        check(evolve(config, placement=placement))


def test_weights_of_a_judge_do_not_change_so_their_mismatch_does_not_grow() -> None:
    config = config_of(hf.Config(), a=generator(FIRST, max_mismatch_growth=10.0))
    with pytest.raises(
        ConfigError, match=r"^roles.rewards.a.generator.max_mismatch_growth has no effect\n  got:  10.0"
    ):
        check(config)


def test_servers_of_judges_are_those_of_the_run_and_have_logs_in_its_directory(tmp_path: Path) -> None:
    config = config_of(generator(), a=generator(), b=generator(FIRST), c=hf.Config(), d=None)
    resolved = resolve_judges(resolve_paths(config, tmp_path), tmp_path)
    judges = requirements_of(resolved).judges
    logs = {name: judges[f"rewards.{name}"].generator.server.logs for name in "ab"}
    assert logs == {name: f"{tmp_path}/servers/{name}" for name in "ab"}
    assert resolved.generator.server.logs == f"{tmp_path}/servers"
    assert [judges[f"rewards.{name}"].generator for name in "cd"] == [hf.Config()] * 2
    assert new_owner(Path(logs["b"]).parent).run != new_owner(tmp_path).run, "the policy cannot take it over"


def test_an_evaluation_does_not_know_the_servers_of_judges_as_its_own(tmp_path: Path) -> None:
    resolved = resolve_paths(config_of(generator(), a=generator(FIRST)), tmp_path)
    assert requirements_of(resolved).judges["rewards.a"].generator.server.logs == "{run}/servers"


def test_servers_of_judges_are_looked_at_before_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def look(config: Any, *, model: Any) -> None:
        looked.append((config.server.urls, model.path))
        if config.server.urls == (SECOND,):
            raise EngineError("it is used by another run")

    monkeypatch.setattr(vllm, "check_running", look)
    config = config_of(generator(FIRST), a=generator(SECOND))
    with pytest.raises(EngineError):
        check_running((config.generator, config.model), requirements_of(config).judges)
    assert looked == [((FIRST,), config.model.path), ((SECOND,), "m")]
