"""A trainer that does not fit its number of ranks is refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from purerl.algos import ppo
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.trainer import Config
from purerl.backends.megatron.mesh import MegatronMesh
from purerl.backends.megatron.trainer import Config as MegatronConfig
from purerl.composition import Composition
from purerl.config.check import check, check_ranks, check_settings
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.opening.engines import check_role_model
from purerl.placement.settings import Actors, Placement
from purerl.recipes.addition import addition
from purerl.settings import Model
from tests.backends.tiny import write_model

SHARDED = Config(mesh=Mesh(shard=2))
RECIPE = addition()
ACTORS = Placement(kind="ray", trainers=Actors(count=2), roles={"critic": Actors(count=3)})
PPO = evolve(RECIPE, algorithm=Composition(ppo.Config()))

REFUSED = {
    "policy": (evolve(RECIPE, trainer=SHARDED), "trainer.mesh\n  got:  shard 2 = 2, with 3 ranks"),
    "initial run": (
        evolve(RECIPE, initial_run=evolve(RECIPE.initial_run, trainer=SHARDED)),
        "initial_run.trainer.mesh\n  got:  shard 2 = 2, with 3 ranks",
    ),
    "critic": (
        evolve(PPO, roles={"critic": Role(trainer=SHARDED)}),
        "roles.critic.trainer.mesh\n  got:  shard 2 = 2, with 3 ranks",
    ),
    "megatron": (
        evolve(RECIPE, trainer=MegatronConfig(mesh=MegatronMesh(pipeline=2))),
        "trainer.mesh\n  got:  tensor 1 x context 1 x pipeline 2 = 2, with 3 ranks",
    ),
    "actors": (
        evolve(PPO, trainer=SHARDED, placement=ACTORS),
        "trainer.mesh\n  got:  shard 2 = 2, with 3 ranks",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mesh_that_does_not_fit_the_ranks_is_refused(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        check_ranks(config.placement, check_settings(config), 3)
    assert str(caught.value).startswith(message)


def test_mesh_that_fits_the_ranks_is_accepted() -> None:
    actors = evolve(PPO, trainer=SHARDED, placement=evolve(ACTORS, roles={"critic": Actors(count=4)}))
    for config, ranks in ((evolve(RECIPE, trainer=SHARDED), 2), (actors, 1)):
        check_ranks(config.placement, check_settings(config), ranks)


def test_settings_alone_are_refused_if_they_state_the_number_of_ranks() -> None:
    config = evolve(RECIPE, trainer=SHARDED)
    check(config)  # torchrun decides
    with pytest.raises(ConfigError, match="with 3 ranks"):
        check(evolve(config, placement=Placement(ranks=3)))


def test_model_that_the_mesh_does_not_divide_is_refused_with_the_key_of_the_mesh(tmp_path: Path) -> None:
    path = Model(write_model(tmp_path / "model"))  # with two heads
    trainer = Config(mesh=Mesh(sequence=3))
    for config, name, key in (
        (evolve(RECIPE, model=path, trainer=trainer), "policy", "trainer.mesh.sequence"),
        (evolve(PPO, roles={"critic": Role(model=path, trainer=trainer)}), "critic", "roles.critic.trainer.mesh.seq"),
    ):
        role = requirements_of(config).models[name]
        with pytest.raises(ConfigError, match=rf"^{key}.*\n  got:  3, and 2 heads"):
            check_role_model(name, role)


def test_mesh_is_refused_before_the_initial_run(tmp_path: Path) -> None:
    config: RunConfig = evolve(RECIPE, trainer=SHARDED)
    with pytest.raises(ConfigError, match="with 1 rank"):
        train(config, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
