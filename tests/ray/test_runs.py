"""Runs with engines in actors: the metrics of one process, and of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo, ppo
from purerl.algos.modifiers import bypass, kl_reward
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.placement.settings import Actors, Placement
from purerl.rewards.settings import Reward
from purerl.settings import Model
from purerl.store.settings import Checkpoint
from tests.loop.classifiers import write_classifier
from tests.loop.runs import records, without_times
from tests.loop.small import fake, small_real
from tests.loop.test_sampled_routes import CHANGED, config_of
from tests.placement.worlds import assert_close, run_world

pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")

EXACT = Model("{run}/prepared/model", dtype="float64")
PPO = Composition(ppo.Config(), (kl_reward.Config(coef=0.05),))


def on_ray(config: RunConfig, count: int = 2, **settings: Any) -> RunConfig:
    """`config` with the trainers in `count` actors."""
    return evolve(config, placement=Placement(kind="ray", trainers=Actors(count=count), **settings))


def test_fake_engines_give_the_metrics_of_one_process_bit_for_bit(tmp_path: Path) -> None:
    train(fake(), directory=tmp_path / "one")
    train(on_ray(fake(), 1), directory=tmp_path / "ray")
    assert without_times(records(tmp_path / "ray")) == without_times(records(tmp_path / "one"))
    weights = [tmp_path / name / "final/model.safetensors" for name in ("one", "ray")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_two_actors_give_the_metrics_of_two_ranks_bit_for_bit(tmp_path: Path) -> None:
    assert [rank.status for rank in run_world(fake(), tmp_path / "ranks")] == [0, 0]
    train(on_ray(fake()), directory=tmp_path / "ray")
    assert without_times(records(tmp_path / "ray")) == without_times(records(tmp_path / "ranks"))


LAYOUTS = {
    "colocated": {},
    "two generators": {"generators": Actors(count=2)},
    "split": {"roles": {"critic": Actors(), "reference": Actors(count=2)}},
    "split policy": {"roles": {"policy": Actors()}, "generators": Actors(spread=True)},
}


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """PPO with a critic, a reference that follows the policy, and a classifier as the reward; and such a run."""
    folder = tmp_path_factory.mktemp("one")
    path = write_classifier(folder / "classifier")
    roles = {
        "reference": Role(update_every=1, update_mix=0.5),
        "rewards": {"m": Role(model=Model(path, dtype="float64"))},
    }
    rewards = (Reward("tests.loop.rewards:digits"), Reward(role="m"))
    config = small_real(3, model=EXACT, algorithm=PPO, evaluate=None, roles=roles, rewards=rewards)
    train(config, directory=folder / "run")
    return config, folder / "run"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_metrics_of_one_process(
    layout: str, in_one_process: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, one = in_one_process
    train(on_ray(config, **LAYOUTS[layout]), directory=tmp_path / "ray")
    assert len(records(tmp_path / "ray")) == 4
    assert_close(tmp_path / "ray", one)


def test_a_run_continues_with_other_actors_and_in_one_process(tmp_path: Path) -> None:
    """The checkpoints, which are written in the background, are those of any placement."""
    config = small_real(4, model=EXACT, checkpoint=Checkpoint(every=1, background=True))
    train(config, directory=tmp_path / "one")
    for number, placed in enumerate((on_ray(config), on_ray(config, 1), config), 2):
        with pytest.raises(ZeroDivisionError):
            train(placed, directory=tmp_path / "run", callbacks=_fails_after(number))
    train(on_ray(config), directory=tmp_path / "run")
    assert_close(tmp_path / "run", tmp_path / "one")


def _fails_after(step: int) -> Any:
    from purerl.loop.callbacks import Callbacks

    def on_step(record: Any, control: Any) -> None:
        if record["step"] == step:
            raise ZeroDivisionError

    return Callbacks(on_step=on_step)


def test_asynchronous_training(tmp_path: Path) -> None:
    """The generator samples while the trainers train: no token is older than the limit, and both are seen to work."""
    rollout = evolve(fake().rollout, max_staleness=1)
    algorithm = Composition(grpo.Config(), (bypass.Config(),))
    config = small_real(5, model=EXACT, rollout=rollout, algorithm=algorithm, evaluate=None)
    train(on_ray(config), directory=tmp_path / "run")
    steps = records(tmp_path / "run")[1:]
    assert {record["rollout/staleness_max"] for record in steps} == {0, 1}
    assert all(0 <= record[f"time/{name}_idle_fraction"] <= 1 for record in steps for name in ("trainer", "generator"))


def test_more_resources_than_the_cluster_has(tmp_path: Path) -> None:
    actors = Actors(count=2, gpus=1)
    config = evolve(fake(), placement=Placement(kind="ray", trainers=actors))
    with pytest.raises(ConfigError, match=r"(?s)0 GPU in the cluster.*2 x 1 GPU"):
        train(config, directory=tmp_path / "run")


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    config = evolve(fake(), placement=Placement(kind="ray", address="127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"no Ray at '127.0.0.1:1'"):
        train(config, directory=tmp_path / "run")


def test_a_process_of_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="start it without the environment"):
        train(on_ray(fake()), directory=tmp_path / "run")


def test_actors_replay_the_experts_of_the_generator(tmp_path: Path) -> None:
    """The first optimizer step would choose the same experts: those of rows that another actor has sampled."""
    run = train(on_ray(config_of(1, num_minibatches=1), generators=Actors(count=2)), directory=tmp_path / "run")
    assert records(run)[1][CHANGED] == 0
    assert not [*(tmp_path / "run" / "routes").iterdir()]
